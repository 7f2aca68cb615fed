"""Runs a tracker until a signal, for `python -m fleet.tracker`, `fleet tracker serve` and `fleet up`."""

from __future__ import annotations

import asyncio
import gc
import sys
from dataclasses import replace

from fleet.base import logs
from fleet.base.inspection import forbid_inspection
from fleet.base.open_files import raise_file_limit
from fleet.base.readiness import Ready, write_ready
from fleet.base.signals import stop_on_signals
from fleet.tracker.core.records import TrackerLimits
from fleet.tracker.observers import installed_observers
from fleet.tracker.options import TrackerOptions
from fleet.tracker.server import Tracker

_STOP_SEC = 15.0
"""Grace period before a hanging tracker is killed. A tracker normally ends within a second."""


def run_tracker(options: TrackerOptions) -> int:
    """Serve until a signal; return the exit code.

    Raises:
        FleetError: it cannot start.
    """
    logs.setup(options.log_level)
    # Most garbage is young: young objects are few and collected often; all objects of a large fleet rarely.
    gc.set_threshold(700, 3, 20_000)
    forbid_inspection()
    raise_file_limit()
    asyncio.run(_serve(options))
    return 0


async def _serve(options: TrackerOptions) -> None:
    stop = asyncio.Event()
    stop_on_signals(stop, most_sec=_STOP_SEC)
    async with Tracker(options, limits=_limits(options), observers=installed_observers()) as tracker:
        gc.freeze()  # objects from before the first caller: they stay, and are never scanned again
        if options.is_json:
            write_ready(Ready(address=tracker.address))
        else:
            sys.stdout.write(f"tracker listening on {tracker.address}\n")
            sys.stdout.flush()
        await stop.wait()


def _limits(options: TrackerOptions) -> TrackerLimits:
    most, usual = options.devices_per_agent, TrackerLimits()
    return replace(usual, max_names_per_agent=most, max_devices_per_agent=max(usual.max_devices_per_agent, most))
