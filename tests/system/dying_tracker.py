"""A tracker that ends by kill -9 when a client checks a selector."""

from __future__ import annotations

import os
import signal
import sys
from typing import NoReturn

from fleet.base import command_line
from fleet.tracker.fleet_service import FleetServicer
from fleet.tracker.options import TrackerOptions
from fleet.tracker.run import run_tracker
from fleet.v1 import fleet_service_pb2


async def _die(self: FleetServicer, request: fleet_service_pb2.CheckSelectorRequest, _: object) -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


if __name__ == "__main__":
    FleetServicer.check_selector = _die  # type: ignore[method-assign, assignment]
    sys.exit(command_line.run(TrackerOptions, run_tracker, command="dying_tracker"))
