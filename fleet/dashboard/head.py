"""Top and bottom lines of the screen: the tracker, and the keys. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.text import Text

from fleet.base.quantities import age_text, elapsed_text
from fleet.domain.devices import DeviceState
from fleet.domain.snapshot import Snapshot

_BETWEEN = " · "
_KEY_GAP = 2
_NARROW = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Hint:
    """A key and its action."""

    key: str
    text: str
    rank: int
    """If space is short, the largest are left out first."""


def head_line(snapshot: Snapshot, now_sec: float, address: str, *, width: int) -> Text:
    """Return the line about the tracker, shortened to fit."""
    busy = sum(device.state == DeviceState.LEASED for device in snapshot.devices)
    parts = [  # with the rank of each: those with the largest are left out first
        (0, f"tracker {address}".strip() if width >= _NARROW else address),
        (5, snapshot.tracker_version or "version ?"),
        (3, f"up {age_text(snapshot.started_at_sec, now_sec)}"),
        (4, f"{snapshot.grant_count} grants"),
        (1, f"{busy}/{len(snapshot.devices)} leased"),
        (2, f"{snapshot.request_count} waiting"),
    ]
    for most in range(5, -1, -1):
        text = _BETWEEN.join(part for rank, part in parts if rank <= most)
        if len(text) <= width:
            break
    return Text(text, "bold", no_wrap=True, overflow="ellipsis")


def away_line(address: str, since: str, away_sec: float) -> Text:
    """Return the line about an unreachable tracker. `since`: the time of day."""
    text = f"tracker {address} away since {since} ({elapsed_text(away_sec)}), trying again"
    return Text(text, "bold red", no_wrap=True, overflow="ellipsis")


def keys_line(hints: Sequence[Hint], *, width: int) -> Text:
    """Return the keys and their actions, as many as fit."""
    for most in sorted({hint.rank for hint in hints}, reverse=True):
        shown = [hint for hint in hints if hint.rank <= most]
        line = Text(" " * _KEY_GAP).join(Text.assemble((hint.key, "bold"), " ", (hint.text, "dim")) for hint in shown)
        if line.cell_len <= width:
            return line
    return Text()
