"""`fleet devices drain`, `resume`, `quarantine`, `maintain` and `retire`: health marks of devices, set by admins."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from fleet.base.moments import parse_moment
from fleet.base.quantities import count_text
from fleet.cli import completion_values, options
from fleet.cli.device_words import named_selector
from fleet.dashboard import formatting
from fleet.domain.health import HealthState, checked_mark_reason

if TYPE_CHECKING:
    from fleet.client.aio import Fleet

_SelectorArgument = Annotated[
    str,
    typer.Argument(
        help="The devices: a name, or a selector such as 'kind=cpu,rack=3'.",
        autocompletion=completion_values.selectors,
    ),
]
_ReasonOption = Annotated[str, typer.Option(help="Why, for everybody that looks at the devices.")]
_ByOption = Annotated[
    str | None,
    typer.Option(
        "--by",
        metavar="TIME",
        help="Revoke leases that are left then: 14:00, '2026-11-30 14:00' or 2h. Default: let them end.",
    ),
]
_SHOWN = 10
"""Names listed after a change."""


_MARKS = {
    "drain": (
        HealthState.DRAINING,
        """Grant devices to nobody any more: batch leases give way, others end by themselves. For admins.

        Example: fleet devices drain rack=3 --reason 'new power supply' --by 14:00
        """,
    ),
    "quarantine": (
        HealthState.QUARANTINED,
        """Mark devices as not trustworthy. An admin still leases one: fleet acquire name=X --even-if quarantined.

        Example: fleet devices quarantine pi4-03 --reason 'wrong results'
        """,
    ),
    "maintain": (
        HealthState.MAINTENANCE,
        """Mark devices on which somebody works. Otherwise as `drain`. For admins.

        Example: fleet devices maintain pi4-03 --reason 'reflash the SD card' --by 2h
        """,
    ),
    "retire": (
        HealthState.RETIRED,
        """Mark devices that are not meant to come back. Otherwise as `drain`. For admins.

        Example: fleet devices retire pi4-03 --reason 'broken'
        """,
    ),
}
"""State and help of each command that marks devices."""


def _command(name: str, state: HealthState, text: str) -> Callable[..., None]:
    """Return the command that marks devices with a state."""

    def mark(
        selector: _SelectorArgument,
        reason: _ReasonOption,
        by: _ByOption = None,
        json_output: options.JsonOption = False,
        tracker: options.TrackerOption = None,
        connect_timeout: options.ConnectTimeoutOption = 10.0,
    ) -> None:
        _set(selector, state, reason, by, json_output, tracker, connect_timeout)

    mark.__name__, mark.__doc__ = name, text
    return mark


def resume(
    selector: _SelectorArgument,
    reason: _ReasonOption,
    json_output: options.JsonOption = False,
    tracker: options.TrackerOption = None,
    connect_timeout: options.ConnectTimeoutOption = 10.0,
) -> None:
    """Grant devices to everybody again, whatever mark they had. For admins.

    Example: fleet devices resume rack=3 --reason 'power supply replaced'
    """
    _set(selector, HealthState.GOOD, reason, None, json_output, tracker, connect_timeout)


COMMANDS: tuple[Callable[..., None], ...] = (
    *(_command(name, state, text) for name, (state, text) in _MARKS.items()),
    resume,
)


def _set(
    selector: str,
    state: HealthState,
    reason: str,
    by: str | None,
    as_json: bool,
    tracker: str | None,
    connect_timeout_sec: float,
) -> None:
    checked_mark_reason(reason)  # and the time: refused before connecting
    until_sec = None if by is None else parse_moment(by, time.time())

    async def set_health(client: Fleet) -> list[str]:
        named = named_selector(selector, (await client.snapshot()).devices)
        return await client.set_health(named, state, reason, until_sec=until_sec)

    names = options.query_tracker(tracker, connect_timeout_sec, set_health)
    if as_json:
        options.print_json({"devices": names, "state": state.value, "reason": reason, "until_sec": until_sec})
        return
    listed = ", ".join(map(formatting.short_name, names[:_SHOWN]))
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    shown = f"in {state}" if state is HealthState.MAINTENANCE else state
    options.stderr().print(f"{count_text(len(names), 'device')} {shown}: {listed}{more}")
