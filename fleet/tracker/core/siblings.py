"""Comparison of a device's reference kernel with that of its siblings: devices of the same model. Pure.

One slow reading says nothing, since another process may disturb it. A device whose readings exceed the siblings' median
by 15 % for half an hour is slow; one whose readings do not for half an hour is well again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from sortedcontainers import SortedList

LIMIT = 1.15
"""Multiple of the siblings' median."""
LASTING_SEC = 1_800.0
_LEAST_SIBLINGS = 3
_LONGEST_SEC = 60.0
"""Longest time of the reference kernel; a larger one is an error."""


@dataclass(slots=True)
class _Device:
    model: str
    reference_sec: float
    is_slow: bool = False
    since_sec: float = math.inf
    """Start of the present readings, slow or not; infinite before the first comparison."""


class Siblings:
    """Latest reference times by device and model."""

    def __init__(self) -> None:
        self._devices: dict[str, _Device] = {}
        self._times: dict[str, SortedList] = {}
        """Sorted reference times by model."""

    def note(self, name: str, model: str, reference_sec: float, at_sec: float) -> bool | None:
        """Note a reading. Return True for a device that has been slow long enough, False for one that has been well
        long enough, None if neither is known.
        """
        if not 0 < reference_sec < _LONGEST_SEC:
            return None
        known = self._devices.get(name)
        if known is not None and known.model != model:
            self.forget(name)
            known = None
        if known is None:
            known = self._devices[name] = _Device(model, reference_sec)
        else:
            self._times[model].remove(known.reference_sec)
            known.reference_sec = reference_sec
        median_sec = self._median(model)
        self._times.setdefault(model, SortedList()).add(reference_sec)
        if median_sec is None:
            known.since_sec = math.inf
            return None
        is_slow = reference_sec > LIMIT * median_sec
        if is_slow is not known.is_slow or not known.since_sec <= at_sec:  # the clock may have been set back
            known.is_slow, known.since_sec = is_slow, at_sec
        return is_slow if at_sec - known.since_sec >= LASTING_SEC else None

    def restart(self, name: str) -> None:
        """Let the half hour of a device begin with its next reading."""
        if (known := self._devices.get(name)) is not None:
            known.since_sec = math.inf

    def forget(self, name: str) -> None:
        """Forget a device. Idempotent."""
        known = self._devices.pop(name, None)
        if known is None:
            return
        times = self._times[known.model]
        times.remove(known.reference_sec)
        if not times:
            del self._times[known.model]

    def _median(self, model: str) -> float | None:
        """Return the median of a model's times; None if there are too few. The device in question is not in them."""
        times = self._times.get(model, ())
        if len(times) < _LEAST_SIBLINGS:
            return None
        middle = len(times) // 2
        return float(times[middle] if len(times) % 2 else (times[middle - 1] + times[middle]) / 2)
