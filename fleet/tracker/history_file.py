"""history.sqlite: ended leases of the last 90 days, at most 1 GiB. Nothing depends on it: its loss ends no lease.

A file that cannot be read is moved aside, and a new one begun. One writer, in one thread.
"""

from __future__ import annotations

import contextlib
import logging
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

from fleet.domain.usage import LONGEST_SEC, UsageKey, UsageRow
from fleet.errors import FleetError

logger = logging.getLogger(__name__)

_APPLICATION_ID = 0x54564D48
_VERSION = 1
_MAX_BYTES = 1 << 30
_PRUNED_SHARE = 20
"""A file that is too large loses its oldest rows, one in this many."""
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_MOST_SEC, _MOST_LEASES = 1e11, 2**31
_MAX_ROWS = 10_000
"""Most rows of one answer."""


@dataclass(slots=True, kw_only=True)
class LeaseRow:
    """An ended lease, or the sum of short leases of one minute."""

    ended_sec: float
    account: str
    holder: str
    device: str
    model: str
    lease_class: str
    end: str
    leases: int
    length_sec: float
    """Sum of their lengths [s]."""
    wait_sec: float | None
    """Sum of their waits [s]; None: unknown."""
    forecast_sec: float | None
    """Wait that was forecast when the request began to wait [s]; None: no forecast was made."""


_SCHEMA = f"""
CREATE TABLE leases (
    ended_sec REAL NOT NULL, account TEXT NOT NULL, holder TEXT NOT NULL, device TEXT NOT NULL, model TEXT NOT NULL,
    lease_class TEXT NOT NULL, end TEXT NOT NULL, leases INTEGER NOT NULL, length_sec REAL NOT NULL, wait_sec REAL,
    forecast_sec REAL
);
CREATE INDEX leases_by_end ON leases (ended_sec);
PRAGMA application_id = {_APPLICATION_ID};
PRAGMA user_version = {_VERSION};
"""
_INSERT = "INSERT INTO leases VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_DELETE_OLDEST = "DELETE FROM leases WHERE rowid IN (SELECT rowid FROM leases ORDER BY ended_sec LIMIT ?)"
_USAGE = """
SELECT CASE ? WHEN 'account' THEN account WHEN 'device' THEN device ELSE lease_class END AS subject, holder,
    max(ended_sec), sum(leases), sum(length_sec), sum(wait_sec), sum(CASE WHEN wait_sec IS NULL THEN 0 ELSE leases END)
FROM leases WHERE ended_sec >= ? GROUP BY subject ORDER BY sum(length_sec) DESC, subject LIMIT ?
"""
_COLUMNS = [field.name for field in fields(LeaseRow)]
_LATEST = "SELECT * FROM leases WHERE leases = 1 ORDER BY ended_sec DESC LIMIT ?"
T = TypeVar("T")


class HistoryFile:
    """Writer of the file. Opens it at the first use, and anew after an error or a loss of the file."""

    def __init__(self, path: Path, *, max_bytes: int = _MAX_BYTES) -> None:
        self.path = path
        self._max_bytes = max_bytes
        self._connection: sqlite3.Connection | None = None

    def write(self, rows: Sequence[LeaseRow]) -> None:
        """Append rows.

        Raises:
            sqlite3.Error: the disk is full or read-only; nothing was written.
        """
        with self._opened() as connection, connection:
            connection.executemany(_INSERT, map(astuple, rows))

    def prune(self, now: float) -> None:
        """Delete leases that ended over 90 days ago, and the oldest ones of a file that is too large.

        Raises:
            sqlite3.Error: the file cannot be written.
        """
        with self._opened() as connection:
            with connection:
                connection.execute("DELETE FROM leases WHERE ended_sec < ?", (now - LONGEST_SEC,))
            while _used_bytes(connection) > self._max_bytes and (count := _count(connection)):
                with connection:
                    connection.execute(_DELETE_OLDEST, (count // _PRUNED_SHARE + 1,))

    def close(self) -> None:
        """Close the file. Idempotent."""
        if self._connection:
            with contextlib.suppress(sqlite3.Error):
                self._connection.close()
        self._connection = None

    @contextlib.contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        """Provide the open file. A damaged one is moved aside, so that the next use begins a new one."""
        try:
            yield self._open()
        except sqlite3.DatabaseError as error:
            self.close()
            if error.sqlite_errorcode & 0xFF in _DAMAGED:
                self._move_aside()
            raise

    def _open(self) -> sqlite3.Connection:
        if self._connection and self.path.exists():
            return self._connection
        self.close()
        self._connection = sqlite3.connect(self.path, timeout=1.0)
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = NORMAL")
        if self._connection.execute("PRAGMA application_id").fetchone()[0] != _APPLICATION_ID:
            self._connection.executescript(_SCHEMA)
        self.path.chmod(0o600)
        return self._connection

    def _move_aside(self) -> None:
        """Rename a damaged file."""
        aside = self.path.with_name(f"{self.path.name}.damaged")
        self.path.replace(aside)
        for suffix in ("-wal", "-shm"):
            self.path.with_name(self.path.name + suffix).unlink(missing_ok=True)
        logger.error("lease history is damaged and begins anew", extra={"path": str(self.path), "aside": str(aside)})


def read_usage(path: Path, by: UsageKey, since_sec: float) -> list[UsageRow]:
    """Return the use since a moment, largest first. May take seconds.

    Raises:
        FleetError: the file cannot be read.
    """
    rows = _select(path, _USAGE, by.value, since_sec, _MAX_ROWS)
    return _readable(lambda row: _usage_row(by, *row), rows)


def read_latest(path: Path, limit: int) -> list[LeaseRow]:
    """Return the latest leases of at least ten seconds, oldest first.

    Raises:
        FleetError: the file cannot be read.
    """
    return _readable(lambda row: _lease_row(*row), reversed(_select(path, _LATEST, limit)))


def _readable(read: Callable[[Sequence[Any]], T], rows: Iterable[Sequence[Any]]) -> list[T]:
    """Return the rows as values; leave malformed ones out."""
    found = []
    for row in rows:
        with contextlib.suppress(TypeError, ValueError, OverflowError):
            found.append(read(row))
    return found


def _usage_row(
    by: UsageKey, subject: Any, holder: Any, _: Any, count: Any, device_sec: Any, wait_sec: Any, waits: Any
) -> UsageRow:
    return UsageRow(
        key=_text(subject),
        holder=_text(holder) if by is UsageKey.ACCOUNT else "",
        lease_count=_number(count),
        device_sec=_sec(device_sec),
        wait_sec=_sec(wait_sec) / waits if waits else None,
    )


def _lease_row(*values: Any) -> LeaseRow:
    found: dict[str, Any] = dict(zip(_COLUMNS, values, strict=True))
    for name in ("account", "holder", "device", "model", "lease_class", "end"):
        _text(found[name])
    for name in ("ended_sec", "length_sec"):
        _sec(found[name])
    for name in ("wait_sec", "forecast_sec"):
        _sec(found[name] or 0.0)
    _number(found["leases"])
    return LeaseRow(**found)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"text expected, not {type(value).__name__}")
    return value


def _sec(value: Any) -> float:
    if not (isinstance(value, int | float) and 0.0 <= value < _MOST_SEC):  # false for NaN, too
        raise ValueError(f"no time: {value!r}")
    return float(value)


def _number(value: Any) -> int:
    if not (isinstance(value, int) and 0 <= value < _MOST_LEASES):
        raise ValueError(f"no number of leases: {value!r}")
    return value


def _select(path: Path, query: str, *values: str | float) -> list[Any]:
    if not path.exists():
        return []
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=5.0)) as connection:
            if connection.execute("PRAGMA application_id").fetchone()[0] != _APPLICATION_ID:
                return []  # the file is being created
            return connection.execute(query, values).fetchall()
    except (sqlite3.Error, UnicodeError) as error:
        raise FleetError(
            f"the history of leases in {path} cannot be read: {error}; a damaged file begins anew within a minute"
        ) from error


def _count(connection: sqlite3.Connection) -> int:
    return int(connection.execute("SELECT count(*) FROM leases").fetchone()[0])


def _used_bytes(connection: sqlite3.Connection) -> int:
    (pages,), (free,), (size,) = (
        connection.execute(f"PRAGMA {name}").fetchone() for name in ("page_count", "freelist_count", "page_size")
    )
    return int((pages - free) * size)
