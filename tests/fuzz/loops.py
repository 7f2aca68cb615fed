"""An event loop that measures its longest stall."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Coroutine
from typing import Any

_LONGEST_SEC = 100.0
_LOGGERS = ("device_agents", "fleet")


class MeteredLoop(asyncio.SelectorEventLoop):
    """Measures the processor time of each of its turns, without the wait for events."""

    longest_turn_sec = 0.0

    def _run_once(self) -> None:
        started = time.thread_time()
        super()._run_once()  # type: ignore[misc]
        self.longest_turn_sec = max(self.longest_turn_sec, time.thread_time() - started)


class Complaints(logging.Handler):
    """Keeps the first traceback that a server of this thread logs; a peer's bad input must not appear as its own
    fault.
    """

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self._thread = threading.get_ident()
        self._first: BaseException | None = None
        for name in _LOGGERS:
            logging.getLogger(name).addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and record.thread == self._thread:
            self.note(record.exc_info[1])

    def note(self, error: BaseException | None) -> None:
        """Keep an error, unless there is one already."""
        self._first = self._first or error

    def close(self) -> None:
        for name in _LOGGERS:
            logging.getLogger(name).removeHandler(self)
        super().close()

    def raise_first(self) -> None:
        """Raise the error noted since the last call."""
        error, self._first = self._first, None
        if error is not None:
            raise error


class ServerLoop:
    """Event loop of a server that lives from one input to the next."""

    def __init__(self) -> None:
        self._loop = MeteredLoop()
        self._complaints = Complaints()
        self._loop.set_exception_handler(lambda _, context: self._complaints.note(context.get("exception")))

    def run(self, work: Coroutine[Any, Any, None]) -> float:
        """Do something with the server; return the longest turn [s]. Raise an error that it logs."""
        self._loop.longest_turn_sec = 0.0
        self._loop.run_until_complete(asyncio.wait_for(work, _LONGEST_SEC))
        self._complaints.raise_first()
        return self._loop.longest_turn_sec

    def close(self) -> None:
        """End the loop and the tasks left in it."""
        self._complaints.close()
        if left := asyncio.all_tasks(self._loop):
            for task in left:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()
