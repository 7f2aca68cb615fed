"""Command options from the dataclass of a process: see `fleet.base.command_line`."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable
from typing import Annotated, Any, TypeVar

import typer

from fleet.base.command_line import Option, options_of

T = TypeVar("T")

Command = Callable[..., None]


def takes(cls: type[T]) -> Callable[[Command], Command]:
    """Give a command the options that a dataclass declares, in place of its parameter of that class."""
    declared = [one for one in options_of(cls) if not one.is_module_only]

    def decorate(command: Command) -> Command:
        signature = inspect.signature(command, eval_str=True)
        (taken,) = (one.name for one in signature.parameters.values() if one.annotation is cls)
        kept = [one for one in signature.parameters.values() if one.name != taken]
        parameters = [*kept, *map(_parameter, declared)]

        @functools.wraps(command)
        def taking(**given: Any) -> None:
            values = {one.name: _value(one, given.pop(one.name)) for one in declared}
            command(**given, **{taken: cls(**values)})

        taking.__annotations__ = {one.name: one.annotation for one in parameters}
        taking.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        return taking

    return decorate


def _parameter(one: Option) -> inspect.Parameter:
    hint: Any = types.GenericAlias(list, one.kind) if one.is_many else one.kind
    default = False if one.kind is bool else None if one.is_many else one.default

    limits: Any = {"min": one.least, "max": one.most}
    info = typer.Option(
        one.flag, help=one.help, hidden=not one.help, metavar=one.metavar, envvar=one.variable, **limits
    )
    hint = hint | None if default is None else hint
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(one.name, kind, default=default, annotation=Annotated[hint, info])


def _value(one: Option, given: Any) -> Any:
    if one.kind is bool:
        return given is not one.default
    return tuple(given or ()) if one.is_many else given
