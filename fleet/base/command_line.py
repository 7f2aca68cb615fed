"""Options of a process, declared once: the fields of a frozen dataclass make its command line.

`fleet.cli.process_options` makes options of `fleet` from the same fields.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import sys
import typing
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn, TypeVar

from fleet.errors import ConfigError, FleetError

T = TypeVar("T")


@dataclasses.dataclass(frozen=True, slots=True)
class Option:
    """Annotation of a field that is an option: `port: Annotated[int, Option("Port to listen on.")] = 0`."""

    help: str
    """Empty: the option is hidden."""

    flag: str = ""
    """Default: the field's name. A flag without a value inverts the field's default."""

    metavar: str | None = None
    least: int | None = None
    most: int | None = None
    choices: Sequence[str] | None = None
    variable: str | None = None
    """Environment variable that `fleet` reads as well."""

    is_module_only: bool = False
    """Not an option of `fleet`, only of `python -m`."""

    name: str = ""
    """Name of the field; it, and the fields below, are set by `options_of`."""

    default: Any = None
    kind: type = str
    """str, int, Path, or bool for a flag without a value."""

    is_many: bool = False
    """May be repeated; the field is a tuple."""


def options_of(cls: type) -> Iterator[Option]:
    """Yield the options that a dataclass declares."""
    hints = typing.get_type_hints(cls, include_extras=True)
    for field in dataclasses.fields(cls):
        hint, declared = typing.get_args(hints[field.name])
        yield dataclasses.replace(
            declared,
            name=field.name,
            flag=declared.flag or f"--{field.name.replace('_', '-')}",
            default=field.default,
            kind=(*typing.get_args(hint), hint)[0],
            is_many=typing.get_origin(hint) is tuple,
        )


def parse(cls: type[T], argv: Sequence[str] | None = None, *, command: str) -> T:
    """Parse the command line of a process: its own if `argv` is None.

    Raises:
        ConfigError: the command line is invalid; the message names `command`.
    """
    parser, declared = _Parser(prog=command, description=cls.__doc__), list(options_of(cls))
    for one in declared:
        if one.kind is bool:
            details: dict[str, Any] = {"action": "store_false" if one.default else "store_true"}
        elif one.choices:
            details = {"type": str.upper, "choices": one.choices, "default": one.default}
        else:
            details = {"type": one.kind, "metavar": one.metavar or one.flag[2:].upper(), "default": one.default}
            details |= {"action": "append", "default": None} if one.is_many else {}
        parser.add_argument(one.flag, dest=one.name, help=one.help or argparse.SUPPRESS, **details)
    given = vars(parser.parse_args(argv))
    for one in declared:
        if one.least is not None and not one.least <= given[one.name] <= (one.most or math.inf):
            limits = f"{one.least} to {one.most}" if one.most else f"{one.least} or more"
            parser.error(f"argument {one.flag}: expected {limits}, found {given[one.name]}")
    return cls(**given | {one.name: tuple(given[one.name] or ()) for one in declared if one.is_many})


def run(cls: type[T], serve: Callable[[T], int], *, command: str) -> int:
    """Serve with the options of this process's command line; return the exit code."""
    try:
        return serve(parse(cls, command=command))
    except FleetError as error:
        sys.stderr.write(f"error: {error}\n")
        return error.exit_code


def to_argv(options: object) -> list[str]:
    """Return a command line for a child process, the inverse of `parse`."""
    argv: list[str] = []
    for one in options_of(type(options)):
        value = getattr(options, one.name)
        for item in [] if value == one.default else value if one.is_many else [value]:
            argv += [one.flag] if one.kind is bool else [one.flag, str(item)]
    return argv


class _Parser(argparse.ArgumentParser):
    """Parser that raises ConfigError, where argparse prints its usage and exits."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message}; see: {self.prog} -h")
