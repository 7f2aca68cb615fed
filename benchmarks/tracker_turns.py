"""Length of the turns of the tracker's event loop while 10,000 devices attach, are leased and are watched.

A long turn of the loop delays everything else: grants, renewals, heartbeats. Ten agents attach a thousand devices each,
requests wait, watchers get a snapshot a second, and then devices change hands as fast as they can. The turns are
measured by the tracker itself (`metered_tracker`), in its thread's processor time. There is no peer.
"""

from __future__ import annotations

import asyncio
import json
import math
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path

if not __package__:  # run as a file: python benchmarks/tracker_turns.py
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import common
from benchmarks.processes import python
from benchmarks.tracker_load import Load, measure_fleet
from fleet.testing.identity import account_channel
from fleet.v1 import fleet_service_pb2
from fleet.wire.stubs import fleet_service_stub

_BUDGET_MS = 5.0
_WATCHERS = 5
_BOUNDS_MS = (1.0, 2.0, 5.0, 10.0, 20.0)


@asynccontextmanager
async def _watched(address: str) -> AsyncIterator[None]:
    """Have some watch the fleet."""

    async def watch() -> None:
        async with account_channel(address) as channel:
            async for _ in fleet_service_stub(channel).watch_fleet(fleet_service_pb2.WatchFleetRequest()):
                pass

    watchers = [asyncio.create_task(watch(), name=f"watcher {number}") for number in range(_WATCHERS)]
    try:
        yield
    finally:
        for watcher in watchers:
            watcher.cancel()
        await asyncio.gather(*watchers, return_exceptions=True)


def measure(devices: int, waiting: int, duration_sec: float) -> tuple[Load, list[float]]:
    """Return the tracker's load figures, and the lengths of its turns [ms]."""
    with tempfile.TemporaryDirectory(prefix="fleet-bench-") as scratch:
        path = Path(scratch) / "turns.json"
        program = python("benchmarks.metered_tracker", path, "--devices-per-agent", 20_000)
        load = asyncio.run(measure_fleet(devices, waiting, duration_sec, program=program, beside=_watched))
        turns_ms: list[float] = json.loads(path.read_text())
        return load, turns_ms


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark."""
    options = common.make_parser("tracker_turns", __doc__ or "", rounds=1).parse_args(argv)
    devices, waiting, duration_sec = (1_000, 1_000, 1.0) if options.quick else (10_000, 2_000, 5.0)
    machine = common.machine()
    rounds = [measure(devices, waiting, duration_sec) for _ in range(options.rounds or 1)]
    turns_ms = sorted(turn for _, turns in rounds for turn in turns)
    rows = [
        (f"{low:g} to {high:g} ms", f"{sum(low <= turn < high for turn in turns_ms):,}")
        for low, high in pairwise((0.0, *_BOUNDS_MS, math.inf))
    ]
    notes = [
        f"{devices:,} devices, {waiting:,} requests waiting, {_WATCHERS} watchers, "
        + ", ".join(f"{load.cycles_per_sec:,.0f} cycles/s" for load, _ in rounds),
        f"the longest: {', '.join(f'{turn:.1f}' for turn in turns_ms[:-6:-1])} ms",
        *common.doubts(machine, quick=options.quick),
    ]
    common.print_table("turns of the tracker's event loop", ("processor time", "turns"), rows, notes)
    figures = {
        "name": "tracker_turns",
        "unit": "longest turn [ms]",
        "budget": _BUDGET_MS,
        "ours": round(turns_ms[-1], 2),
        "turns": len(turns_ms),
        "over_budget": sum(turn > _BUDGET_MS for turn in turns_ms),
        "longest_ms": [round(turn, 2) for turn in turns_ms[:-11:-1]],
        "cycles_per_sec": [round(load.cycles_per_sec) for load, _ in rounds],
        "quick": options.quick,
        "machine": machine,
    }
    common.print_json(figures, wanted=options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
