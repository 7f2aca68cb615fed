"""A tracker that measures the turns of its event loop: `python -m benchmarks.metered_tracker FIGURES.json [OPTION...]`.

A turn is all that the loop does between two looks at its sockets. The processor time of its thread counts: a wall clock
would also count other work of the machine. At its end it writes the turns until the stop signal into the file.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

from fleet.base.command_line import parse
from fleet.tracker.options import TrackerOptions
from fleet.tracker.run import run_tracker

FIRST_TURNS = 10
"""Turns of the tracker's start, before any client connects."""


class MeteredLoop(asyncio.SelectorEventLoop):
    """Records the length of each turn [ms]."""

    def __init__(self) -> None:
        super().__init__()
        self.turns_ms: list[float] = []
        self._is_stopping = False

    def add_signal_handler(self, sig: int, callback: Callable[..., object], *args: object) -> None:
        def stop() -> None:
            self._is_stopping = True
            callback(*args)

        super().add_signal_handler(sig, stop)

    def _run_once(self) -> None:
        started_sec = time.thread_time()
        super()._run_once()  # type: ignore[misc] # asyncio's own, and for long
        if not self._is_stopping:
            self.turns_ms.append(1e3 * (time.thread_time() - started_sec))


class _Policy(asyncio.DefaultEventLoopPolicy):
    """Makes one such loop."""

    loop: MeteredLoop

    def new_event_loop(self) -> MeteredLoop:
        self.loop = MeteredLoop()
        return self.loop


def main(argv: list[str]) -> int:
    """Serve until a signal, then write the figures."""
    path, *options = argv
    policy = _Policy()
    asyncio.set_event_loop_policy(policy)
    code = run_tracker(parse(TrackerOptions, options, command="metered_tracker"))
    Path(path).write_text(json.dumps(policy.loop.turns_ms[FIRST_TURNS:]))
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
