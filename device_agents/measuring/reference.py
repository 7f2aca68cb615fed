"""Judges a device by its reference kernel: compares the current time of a fixed workload with its usual time.

The mean of the pieces shows the slowdown that a kernel would see now. The fastest piece shows the speed of the cores
without interruptions. The usual time is the median of the fastest pieces of calm runs, so even a first run beside a
busy process is recognized as disturbed. The history is in memory, as long as the agent serves the device.

A holder can heat or load the device and so raise the usual time. Two rules limit that. A full history takes one run
per 20 s, so a drift over minutes stands out. Several runs in a row that are much faster than usual reset the history,
so a holder that slowed the device down leaves no mark.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Sequence

from fleet.domain.measuring import Disturbance, DisturbanceKind

DEFAULT_LIMIT = 1.15
"""A multiple of the usual time; above it, measurements count as disturbed."""

_DUE_SEC = 0.5
_DUE_DRIFTED_SEC = 0.2
"""Sooner, to notice the end of the drift, but not before every candidate: on a busy machine the kernel is slow."""

_DUE_COSTLY_SEC = 10.0
"""Interval for devices on which each run costs a new worker and a new connection."""

_LONGEST_SEC = 60.0
"""Longest time of a piece; the whole run is abandoned sooner."""

_CURRENT_SEC = 30.0
_REMEMBERED = 31
_REMEMBER_EVERY_SEC = 20.0
"""Interval between entries of a full history, which then covers ten minutes instead of a quarter of a minute."""

_FASTER_RUNS = 3
"""Consecutive runs much faster than usual that reset the history, which was recorded on a slow device."""

_MOST_MISSES = 3
_MISSED_PAUSE_SEC = 300.0
"""Pause after several misses in a row, because each may have cost a worker and ten seconds."""

_LASTING_SEC = 600.0
"""Duration after which a drift becomes the usual state: another governor, a hotter room."""


class ReferenceTimes:
    """History of the reference kernel's times on one device. Pure: callers run the kernel and pass its times in."""

    def __init__(self, limit: float = DEFAULT_LIMIT, *, is_costly: bool = False) -> None:
        """Args:
        limit: multiple of the usual time above which the device has drifted.
        is_costly: True if each run needs a new worker; the kernel then runs less often.
        """
        self.limit = limit
        self._is_costly = is_costly
        self.latest_sec: float | None = None
        """Mean time of a piece in the latest run; None before the first."""

        self._fastest: deque[float] = deque(maxlen=_REMEMBERED)
        self._remembered_at_sec = -math.inf
        self._faster: list[float] = []
        """Fastest piece [s] of each of the latest consecutive runs that were much faster than usual."""

        self._worker_pid = 0
        self._taken_at_sec = 0.0
        self._drifting_since_sec: float | None = None
        self._is_absent = False
        self._misses = 0
        self._missed_at_sec = 0.0

    @property
    def usual_sec(self) -> float | None:
        """Usual time of a piece; None before the first run."""
        return statistics.median(self._fastest) if self._fastest else None

    def current_sec(self, now_sec: float) -> float | None:
        """Return the latest time while it is current; most of the time, the kernel does not run."""
        return self.latest_sec if now_sec - self._taken_at_sec < _CURRENT_SEC else None

    @property
    def ratio(self) -> float:
        """The latest time over the usual one; 1.0 while there is none."""
        usual = self.usual_sec
        return self.latest_sec / usual if usual and self.latest_sec else 1.0

    @property
    def has_drifted(self) -> bool:
        """True if current times are not trustworthy."""
        return self.ratio > self.limit

    def is_due(self, worker_pid: int, now_sec: float, *, is_wanted: bool = False) -> bool:
        """Tell whether the kernel has to run now: in a new worker, or after an interval, shorter during a drift."""
        if self._is_absent:
            return False
        if self._misses >= _MOST_MISSES and now_sec - self._missed_at_sec < _MISSED_PAUSE_SEC:
            return False
        after_sec = _DUE_DRIFTED_SEC if self.has_drifted else _DUE_SEC
        if self._is_costly:
            after_sec = _DUE_COSTLY_SEC
        return is_wanted or worker_pid != self._worker_pid or now_sec - self._taken_at_sec > after_sec

    def take(self, secs: Sequence[float], worker_pid: int, now_sec: float) -> None:
        """Record the times of a run's pieces; none: the device has no reference kernel.

        A run counts as missed if its answer is no possible time, or none on a device that has one: it failed, or
        a candidate has answered in its worker's place.
        """
        self._worker_pid, self._taken_at_sec = worker_pid, now_sec
        if not secs and not self._fastest:
            self._is_absent = True
            return
        if not secs or not all(0 < sec < _LONGEST_SEC for sec in secs):
            self.miss(now_sec)
            return
        self._misses = 0
        fastest = min(secs)
        self._notice_faster(fastest)
        if not self._fastest:
            self._fastest.append(fastest)
        self.latest_sec = statistics.fmean(secs)
        if not self.has_drifted:
            self._drifting_since_sec = None
            self._remember(fastest, now_sec)
            return
        if self._drifting_since_sec is None:
            self._drifting_since_sec = now_sec
        if fastest < min(self._fastest):
            # The usual time was learnt while the device was slow.
            self._fastest.append(fastest)
        elif now_sec - self._drifting_since_sec > _LASTING_SEC:
            self._fastest.clear()
            self._fastest.append(fastest)
            self._drifting_since_sec = None

    def _notice_faster(self, fastest: float) -> None:
        """Reset the history after several runs in a row that are much faster than usual."""
        usual = self.usual_sec
        if usual is None or fastest * self.limit > usual:
            self._faster.clear()
            return
        self._faster.append(fastest)
        if len(self._faster) >= _FASTER_RUNS:
            self._fastest.clear()
            self._fastest.extend(self._faster)
            self._faster.clear()

    def _remember(self, fastest: float, now_sec: float) -> None:
        if len(self._fastest) < _REMEMBERED or now_sec - self._remembered_at_sec >= _REMEMBER_EVERY_SEC:
            self._fastest.append(fastest)
            self._remembered_at_sec = now_sec

    def miss(self, now_sec: float) -> None:
        """Record a failed run or worker, for which a candidate is to blame. Pause after several in a row."""
        self._misses += 1
        self._missed_at_sec = now_sec

    @property
    def drift(self) -> Disturbance | None:
        """Current drift; None if there is none."""
        if not self.has_drifted:
            return None
        return Disturbance(DisturbanceKind.REFERENCE_DRIFT, f"reference kernel {self.ratio:.2f} times its usual time")
