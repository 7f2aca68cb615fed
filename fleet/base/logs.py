"""Logging, set up once per process: text for people on a terminal, JSON lines for everything else."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType

from fleet.base.text import sanitize

context: ContextVar[Mapping[str, str]] = ContextVar("fleet_log_context", default=MappingProxyType({}))
"""Fields added to every record of the current task: device, lease, job, peer."""

LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")

_THROTTLE_SEC = 10.0
_MOST_IN_A_WINDOW = 20
"""Warnings of one text in that time."""
_MOST_TEXTS = 1_000
_MOST_HELD_BACK = 100

_STANDARD = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}


def setup(level: str = "INFO", *, is_json: bool | None = None) -> None:
    """Send the process's log to stderr. `is_json` None: JSON lines unless stderr is a terminal."""
    handler = logging.StreamHandler(sys.stderr)
    as_json = not sys.stderr.isatty() if is_json is None else is_json
    handler.setFormatter(_JsonFormatter() if as_json else _TextFormatter())
    handler.addFilter(Throttle())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())


@contextmanager
def held_back() -> Iterator[None]:
    """Buffer log lines while the terminal is in full-screen use; write the newest at the end."""
    root = logging.getLogger()
    former, keeping = root.handlers[:], _Keeping()
    root.handlers[:] = [keeping]
    try:
        yield
    finally:
        root.handlers[:] = former
        for record in keeping.records:
            root.handle(record)


class _Keeping(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.records: deque[logging.LogRecord] = deque(maxlen=_MOST_HELD_BACK)

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


def _fields(record: logging.LogRecord) -> dict[str, object]:
    own = {key: value for key, value in record.__dict__.items() if key not in _STANDARD}
    return {**context.get(), **own}


class Throttle(logging.Filter):
    """Rate limit for repeated warnings; the first one after a pause gives the number of suppressed ones.

    A peer can repeat an error a thousand times a second.
    """

    def __init__(self, clock_sec: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock_sec = clock_sec
        self._seen: dict[tuple[str, str, int], tuple[float, int]] = {}
        """By text: the start of the window, and the number of warnings in it."""

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.WARNING:
            return True
        key, now_sec = (record.name, str(record.msg)[:200], record.levelno), self._clock_sec()
        since_sec, count = self._seen.get(key, (now_sec, 0))
        if now_sec - since_sec > _THROTTLE_SEC:
            if count > _MOST_IN_A_WINDOW:
                record.left_out = count - _MOST_IN_A_WINDOW
            since_sec, count = now_sec, 0
        if len(self._seen) > _MOST_TEXTS:
            self._seen.clear()
        self._seen[key] = (since_sec, count + 1)
        return count < _MOST_IN_A_WINDOW


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S"),
            "level": record.levelname,
            "logger": record.name,
            "event": record.getMessage(),
            **_fields(record),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class _TextFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        fields = " ".join(f"{key}={value}" for key, value in _fields(record).items())
        words = sanitize(f"{record.getMessage()} {fields}".rstrip())
        text = f"{self.formatTime(record, '%H:%M:%S')} {record.levelname:<7} {words}"
        return f"{text}\n{self.formatException(record.exc_info)}" if record.exc_info else text
