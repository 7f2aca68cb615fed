"""Rests between blocks of different programs on this machine: idle worker threads spin for a while after a run.

The threads of ONNX Runtime spin for some 50 ms, and those of TVM's pool for up to 10 ms. A rest ends once no thread
runs any more, or after `MOST_SEC`: on a busy machine other programs keep the cores busy.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Collection
from pathlib import Path

MOST_SEC = 0.15
"""Maximum length of a rest."""

LOOK_SEC = 0.02
"""Interval between looks at the cores: two ticks, the resolution of /proc/stat."""

_STAT = Path("/proc/stat")
_BUSY_FIELDS = (0, 1, 2, 5, 6, 7)
"""Fields of a line in /proc/stat: user, nice, system, irq, softirq, steal."""


async def rest(busy: Callable[[], int | None], sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
    """Wait until the cores are idle, or until `MOST_SEC` have passed.

    Args:
        busy: returns the time for which the cores have been busy [clock ticks], or None; see `busy_ticks`.
    """
    before = busy()
    for _ in range(math.ceil(MOST_SEC / LOOK_SEC)):
        await sleep(LOOK_SEC)
        now = busy()
        if now is not None and now == before:
            return
        before = now


def busy_ticks(cpus: Collection[int] = ()) -> int | None:
    """Return the time for which cores have been busy [clock ticks]; None if the system does not report it.

    Args:
        cpus: the cores; empty for all.
    """
    names = {f"cpu{cpu}" for cpu in cpus} or {"cpu"}
    try:
        lines = [line.split() for line in _STAT.read_text().splitlines()]
        found = [int(line[1 + field]) for line in lines if line[0] in names for field in _BUSY_FIELDS]
    except (OSError, ValueError, IndexError):
        return None
    return sum(found) if found else None
