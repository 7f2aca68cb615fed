"""Options that choose records of the library, shared by all commands that read it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated, NamedTuple

import typer

from cross.targets.boards import load_boards
from fleet.base.quantities import count_text, parse_duration
from fleet.cli import completion_values
from fleet.domain.scope import ScopeFilter

DAY_SEC = 86400.0
_CENTURY_SEC = 36500 * DAY_SEC


def _target_of_board(text: str | None) -> str | None:
    """Return the target of a named board. Other texts are returned unchanged, since imported records have targets
    of any form.
    """
    boards = load_boards()
    return boards[text].target_json if text is not None and text in boards else text


def age(text: str | float) -> float:
    """Parse an age in seconds, at most a century. Invalid text is a usage error."""
    sec = parse_duration(str(text))
    if sec is None or sec > _CENTURY_SEC:
        raise typer.BadParameter(f"{text!r} is not an age of at most 36500d; write it like 12h or 180d")
    return sec


class Fact(NamedTuple):
    """A fact of an environment."""

    name: str
    value: str
    """Shell pattern."""


def _fact(text: str) -> Fact:
    name, equals, value = text.partition("=")
    if not (name and equals and value):
        raise typer.BadParameter(f"{text!r} is no fact; write it like cooling=fan or 'kernel=6.6*'")
    return Fact(name, value)


TargetOption = Annotated[
    str | None,
    typer.Option(
        "--target",
        metavar="TARGET",
        help="Only records of this TVM target (JSON), or of this board ('fleet targets').",
        autocompletion=completion_values.boards,
        callback=_target_of_board,
    ),
]
DeviceModelOption = Annotated[
    str | None, typer.Option("--device-model", metavar="MODEL", help="Only records of this device model.")
]
MaxAgeOption = Annotated[
    float | None,
    typer.Option("--max-age", parser=age, metavar="TIME", help="Only records that are not older: 12h, 90d."),
]
WhereOption = Annotated[
    list[Fact] | None,
    typer.Option(
        "--where",
        parser=_fact,
        metavar="FACT=VALUE",
        help="Only records measured with this kernel, system, firmware, driver, microcode, governor, runtime, or fact "
        "of the device's owner: cooling=fan, 'kernel=6.6*'. May be repeated.",
    ),
]


def record_filter(
    *,
    target: str | None = None,
    device_model: str | None = None,
    max_age: float | None = None,
    where: list[Fact] | None = None,
) -> ScopeFilter:
    """Return the filter of these options."""
    return ScopeFilter(
        target_json=target,
        device_model=device_model,
        measured_since=None if max_age is None else datetime.now(UTC) - timedelta(seconds=max_age),
        facts=tuple((fact.name, fact.value) for fact in where or ()),
    )


def older_line(count: int) -> str:
    """Return a note about records that --max-age leaves out; empty if there are none."""
    return f"left out: {count_text(count, 'record')} older than --max-age" if count else ""


def asked_text(within: ScopeFilter) -> str:
    """Return the parts of a filter for messages about records that are missing."""
    asked = {"target": within.target_json, "device model": within.device_model}
    parts = [f"{name} {value!r}" for name, value in asked.items() if value is not None]
    parts += [f"{name}={value}" for name, value in within.facts]
    return "".join(f", {part}" for part in parts)
