"""Logging, set up once per process: text for people on a terminal, JSON lines for everything else."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping
from contextvars import ContextVar
from types import MappingProxyType

context: ContextVar[Mapping[str, str]] = ContextVar("fleet_log_context", default=MappingProxyType({}))
"""Fields added to every record of the current task: device, lease, job, peer."""

_STANDARD = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}


def setup(level: str = "INFO", *, is_json: bool | None = None) -> None:
    """Send the process's log to stderr. `is_json` None: JSON lines unless stderr is a terminal."""
    handler = logging.StreamHandler(sys.stderr)
    as_json = not sys.stderr.isatty() if is_json is None else is_json
    handler.setFormatter(_JsonFormatter() if as_json else _TextFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())


def _fields(record: logging.LogRecord) -> dict[str, object]:
    own = {key: value for key, value in record.__dict__.items() if key not in _STANDARD}
    return {**context.get(), **own}


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
        text = f"{self.formatTime(record, '%H:%M:%S')} {record.levelname:<7} {record.getMessage()} {fields}".rstrip()
        return f"{text}\n{self.formatException(record.exc_info)}" if record.exc_info else text
