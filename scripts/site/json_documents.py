"""The shapes of the JSON documents of commands, from the types that a test compares with the output."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args, get_origin, get_type_hints

from typing_extensions import is_typeddict

from fleet.cli.json_schema import BY_COMMAND, MODULES, of_errors


def as_markdown() -> str:
    """Return a section for each command, and one for each part that they share."""
    tops = list(BY_COMMAND.values())
    parts = [
        value
        for module in MODULES
        for value in vars(module).values()
        if is_typeddict(value) and value not in (*tops, of_errors.Failed)
    ]
    by_shape = {shape: [name for name, other in BY_COMMAND.items() if other is shape] for shape in tops}
    lines = ["## Errors { #errors }", "", *_fields(of_errors.Failed)]
    for shape, names in by_shape.items():
        lines += [f"## fleet {', '.join(names)} {{ #{_anchor(shape)} }}", "", *_fields(shape)]
    for part in parts:
        lines += [f"### {part.__name__} {{ #{_anchor(part)} }}", "", *_fields(part)]
    return "\n".join(lines)


def _fields(shape: Any) -> Iterator[str]:
    if shape.__doc__ and not shape.__doc__.startswith("dict("):
        yield from (shape.__doc__.strip() + ".", "")
    yield from ("| key | is |", "|---|---|")
    for name, hint in get_type_hints(shape, include_extras=True).items():
        yield f"| `{name}` | {_words(hint)} |"
    yield ""


def _words(hint: Any) -> str:
    for message in getattr(hint, "__metadata__", ()):
        return f"the message [{message.name}](protos.md)"
    if is_typeddict(hint):
        return f"[{hint.__name__}](#{_anchor(hint)})"
    origin, args = get_origin(hint), get_args(hint)
    if origin is list:
        return f"list: {_words(args[0])}"
    if origin is dict:
        return "free object" if args[1] is Any else f"object of {_words(args[1])}"
    if args:
        return " or ".join("null" if one is type(None) else _words(one) for one in args)
    return {str: "text", int: "whole number", float: "number", bool: "true or false"}[hint]


def _anchor(shape: Any) -> str:
    return str(shape.__name__).lower()
