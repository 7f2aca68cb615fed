"""A tracker that logs whether its standby keeps up: `python -m tests.chaos.tracker`."""

from __future__ import annotations

import sys

from fleet.base import command_line
from fleet.tracker import engine
from fleet.tracker.options import TrackerOptions
from fleet.tracker.replica.gate import Gate
from fleet.tracker.run import run_tracker
from tests.chaos.history import What
from tests.chaos.observer import tracker_log


class LoggedGate(Gate[engine.Turn]):
    """A gate that logs when it begins and ceases to wait for a standby."""

    def __init__(self) -> None:
        self._log = tracker_log()
        self._is_followed = False
        super().__init__()

    @property
    def is_followed(self) -> bool:
        return self._is_followed

    @is_followed.setter
    def is_followed(self, is_followed: bool) -> None:
        if is_followed != self._is_followed:
            self._log.write(What.FOLLOWED if is_followed else What.ALONE)
        self._is_followed = is_followed


if __name__ == "__main__":
    vars(engine).update(Gate=LoggedGate)
    sys.exit(command_line.run(TrackerOptions, run_tracker, command="python -m tests.chaos.tracker"))
