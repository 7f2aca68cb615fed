"""An event loop that knows how long it stood still."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine
from typing import Any

_LONGEST_SEC = 30.0
_LOGGERS = ("asyncio", "device_agents", "fleet")


class MeteredLoop(asyncio.SelectorEventLoop):
    """Measures its turns, in the time of its thread's processor: waiting for events costs none."""

    longest_turn_sec = 0.0

    def _run_once(self) -> None:
        started = time.thread_time()
        super()._run_once()  # type: ignore[misc]
        self.longest_turn_sec = max(self.longest_turn_sec, time.thread_time() - started)


class Complaints(logging.Handler):
    """Keeps what a server logs of its own faults: what a peer sent is none."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self._first: logging.LogRecord | None = None
        for name in _LOGGERS:
            logging.getLogger(name).addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        self._first = self._first or record

    def close(self) -> None:
        for name in _LOGGERS:
            logging.getLogger(name).removeHandler(self)

    def raise_first(self) -> None:
        """Raise what was logged since the last call."""
        record, self._first = self._first, None
        if record is None:
            return
        error = record.exc_info[1] if record.exc_info else None
        raise error if error is not None else AssertionError(record.getMessage())


class ServerLoop:
    """Where a server runs from one input to the next."""

    def __init__(self) -> None:
        self._loop = MeteredLoop()
        self._complaints = Complaints()

    def run(self, work: Coroutine[Any, Any, None]) -> float:
        """Do something with the server; return the longest turn [s]. What it logs as an error is raised."""
        self._loop.longest_turn_sec = 0.0
        self._loop.run_until_complete(asyncio.wait_for(work, _LONGEST_SEC))
        self._complaints.raise_first()
        return self._loop.longest_turn_sec

    def close(self) -> None:
        """End the loop, and what is left in it."""
        self._complaints.close()
        if left := asyncio.all_tasks(self._loop):
            for task in left:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()
