"""Choice of the devices of a set: distinct ones that are all free as early as possible. Pure."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

Choice: TypeAlias = tuple[float, str]
"""Time when a device is free, and its name."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Devices for a set."""

    devices: tuple[str, ...]
    """One for each selector, in their order."""
    at_sec: float
    """All are free then."""


def earliest(choices: Sequence[Sequence[Choice]]) -> Plan | None:
    """Return the plan with the smallest latest time; None if there are not enough distinct devices.

    Args:
        choices: for each selector the devices that suit it, in the order of preference.
    """
    times = sorted({at_sec for each in choices for at_sec, _ in each if at_sec < math.inf})
    index = bisect_left(times, True, key=lambda limit_sec: len(_assigned(choices, limit_sec)) == len(choices))
    if index == len(times):
        return None
    by_member = {member: name for name, member in _assigned(choices, times[index]).items()}
    return Plan(tuple(by_member[member] for member in range(len(choices))), times[index])


def shortage(choices: Sequence[Sequence[str]]) -> list[int]:
    """Return selectors that match fewer devices than they are, by their numbers; empty if there are enough devices."""
    plain = [[(0.0, name) for name in each] for each in choices]
    assigned: dict[str, int] = {}
    for member in range(len(choices)):
        seen: set[str] = set()
        if not _assign(plain, member, 0.0, assigned, seen):
            return sorted({member, *(assigned[name] for name in seen)})
    return []


def _assigned(choices: Sequence[Sequence[Choice]], limit_sec: float) -> dict[str, int]:
    """Assign devices that are free by a moment to as many selectors as possible (Kuhn's algorithm)."""
    assigned: dict[str, int] = {}
    for member in range(len(choices)):
        if not _assign(choices, member, limit_sec, assigned, set()):
            break
    return assigned


def _assign(
    choices: Sequence[Sequence[Choice]], member: int, limit_sec: float, assigned: dict[str, int], seen: set[str]
) -> bool:
    for at_sec, name in choices[member]:
        if at_sec > limit_sec or name in seen:
            continue
        seen.add(name)
        if name not in assigned or _assign(choices, assigned[name], limit_sec, assigned, seen):
            assigned[name] = member
            return True
    return False
