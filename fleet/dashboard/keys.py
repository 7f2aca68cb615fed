"""Keys of the application, and the hints at the bottom. Pure."""

from __future__ import annotations

from fleet.dashboard.actions import Action, CancelBooking, CancelJob, CancelRequest, Revoke
from fleet.dashboard.head import Hint

ALL_KEYS = (
    ("arrows", "move; also pgup, pgdn, home, end"),
    ("tab", "the next pane; shift+tab the one before"),
    ("enter", "details of the line under the cursor"),
    ("/", "filter the pane by a selector: cpu, or state=free,rack=3"),
    ("s, S", "sort by the next column; the other way round"),
    ("x", "take a device from its holder, end a wait or a booking, or stop a job"),
    ("z", "all the room for this pane"),
    ("esc", "close the details; then clear the filter and the sort order"),
    ("q", "quit"),
)


_ACTS: dict[type[Action], str] = {
    Revoke: "revoke lease",
    CancelRequest: "cancel request",
    CancelBooking: "cancel booking",
    CancelJob: "stop job",
}

FILTER_HINTS = (Hint(key="enter", text="keep", rank=0), Hint(key="esc", text="close", rank=0))
"""While a filter is typed."""


def hints(action: Action | None, *, is_open: bool) -> list[Hint]:
    """Return the keys that have an effect now.

    Args:
        action: action on the selected item.
        is_open: whether there is something to close.
    """
    act = _ACTS[type(action)] if action is not None else ""
    return [
        Hint(key="q", text="quit", rank=1),
        *([Hint(key="esc", text="back", rank=0)] if is_open else []),
        Hint(key="enter", text="details", rank=2),
        *([Hint(key="x", text=act, rank=3)] if action is not None else []),
        Hint(key="/", text="filter", rank=4),
        Hint(key="tab", text="pane", rank=5),
        Hint(key="s", text="sort", rank=6),
        Hint(key="z", text="zoom", rank=7),
        Hint(key="?", text="keys", rank=0),
    ]
