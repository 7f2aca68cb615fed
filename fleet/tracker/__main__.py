"""`python -m fleet.tracker`: one tracker until SIGTERM or SIGINT. Prints one line to stdout once it is listening."""

from __future__ import annotations

import sys

from fleet.base import command_line
from fleet.tracker.options import TrackerOptions
from fleet.tracker.run import run_tracker

if __name__ == "__main__":
    sys.exit(command_line.run(TrackerOptions, run_tracker, command="python -m fleet.tracker"))
