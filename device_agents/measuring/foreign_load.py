"""How busy others keep the processors while a worker runs, by the kernel's counts in /proc/stat and /proc/<pid>/stat.

A worker cannot make itself look like others: its threads, all that descends from it, and its keeper count for it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection
from pathlib import Path

_BUSY_FIELDS = (0, 1, 2, 5, 6, 7)
"""Of a line of /proc/stat: user, nice, system, irq, softirq, steal. Idle and waiting for I/O are between them."""

_OWN_FIELDS = slice(11, 15)
"""Of /proc/<pid>/stat behind the name: user and system time, its own and that of children that it waited for."""


class ForeignLoad:
    """Counts from when it is made."""

    def __init__(
        self,
        processes: Callable[[], Collection[int]],
        cpus: Collection[int] = (),
        *,
        root: Path = Path("/proc"),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Args:
        processes: returns the worker's.
        cpus: those that the worker is kept on; empty: any.
        """
        self._processes = processes
        self._cpus = {f"cpu{cpu}" for cpu in cpus}
        self._root = root
        self._clock = clock
        self._began_sec = clock()
        self._began = self._busy_sec()

    def share(self) -> float:
        """Return the share of its processors that others used; 0 where the kernel does not tell."""
        now, began = self._busy_sec(), self._began
        elapsed_sec = self._clock() - self._began_sec
        if now is None or began is None or elapsed_sec <= 0:
            return 0.0
        (busy_sec, own_sec, count), (busy_before_sec, own_before_sec, _) = now, began
        others_sec = (busy_sec - busy_before_sec) - (own_sec - own_before_sec)
        return min(1.0, max(0.0, others_sec / (elapsed_sec * count)))

    def _busy_sec(self) -> tuple[float, float, int] | None:
        """Return processor time of all and of the worker [s], and the number of processors."""
        tick = os.sysconf("SC_CLK_TCK")
        try:
            lines = [line.split() for line in (self._root / "stat").read_text().splitlines() if line.startswith("cpu")]
            wanted = [line for line in lines if line[0] != "cpu" and (not self._cpus or line[0] in self._cpus)]
            busy = sum(int(line[1 + field]) for line in wanted for field in _BUSY_FIELDS)
        except (OSError, ValueError, IndexError):
            return None
        own = sum(map(self._ticks_of, self._processes()))
        return (busy / tick, own / tick, len(wanted)) if wanted else None

    def _ticks_of(self, pid: int) -> int:
        """Return the time of a process, and of its children that have ended; 0 if it is gone."""
        try:
            fields = (self._root / str(pid) / "stat").read_text().rpartition(")")[2].split()[_OWN_FIELDS]
            return sum(map(int, fields))
        except (OSError, ValueError):
            return 0
