"""Measures the processor load of other processes while a worker runs, from /proc/stat and /proc/<pid>/stat.

A worker cannot pass its own load off as foreign: its threads, its descendants and its keeper count as its own.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection
from pathlib import Path

_BUSY_FIELDS = (0, 1, 2, 5, 6, 7)
"""Fields of a line in /proc/stat: user, nice, system, irq, softirq, steal. Skips idle and iowait."""

_OWN_FIELDS = slice(11, 15)
"""Fields of /proc/<pid>/stat after the name: user and system time, of the process and of children it waited for."""


class ForeignLoad:
    """Processor load of other processes since the object was made."""

    def __init__(self, processes: Callable[[], Collection[int]], cpus: Collection[int] = ()) -> None:
        """Args:
        processes: returns the process ids of the worker.
        cpus: processors that the worker is pinned to; empty if it is not pinned.
        """
        self._processes = processes
        self._cpus = {f"cpu{cpu}" for cpu in cpus}
        self._began_sec = time.monotonic()
        self._began = self._busy_sec()

    def share(self) -> float:
        """Return the share of the worker's processors that other processes used, 0 to 1; 0 without /proc/stat."""
        now, began = self._busy_sec(), self._began
        elapsed_sec = time.monotonic() - self._began_sec
        if now is None or began is None or elapsed_sec <= 0:
            return 0.0
        (busy_sec, own_sec, count), (busy_before_sec, own_before_sec, _) = now, began
        others_sec = (busy_sec - busy_before_sec) - (own_sec - own_before_sec)
        return min(1.0, max(0.0, others_sec / (elapsed_sec * count)))

    def _busy_sec(self) -> tuple[float, float, int] | None:
        """Return the processor time of all processes and of the worker [s], and the number of processors."""
        tick = os.sysconf("SC_CLK_TCK")
        try:
            lines = [line.split() for line in Path("/proc/stat").read_text().splitlines() if line.startswith("cpu")]
            wanted = [line for line in lines if line[0] != "cpu" and (not self._cpus or line[0] in self._cpus)]
            busy = sum(int(line[1 + field]) for line in wanted for field in _BUSY_FIELDS)
        except (OSError, ValueError, IndexError):
            return None
        own = sum(map(self._ticks_of, self._processes()))
        return (busy / tick, own / tick, len(wanted)) if wanted else None

    def _ticks_of(self, pid: int) -> int:
        """Return the processor time of a process and its ended children [clock ticks]; 0 if the process is gone."""
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[_OWN_FIELDS]
            return sum(map(int, fields))
        except (OSError, ValueError):
            return 0
