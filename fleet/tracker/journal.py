"""The tracker's memory across restarts: one SQLite file with the newest version of every entry.

Commits are in WAL mode without a sync each: a killed tracker loses nothing, a power cut may lose the last moments.
Even then an epoch must never repeat, so every start makes a new `boot` number durable before anything else, and
epochs count from it. It is the clock's, so that neither a lost journal nor a restored copy brings old ones back.
"""

from __future__ import annotations

import contextlib
import json
import logging
import sqlite3
import threading
from pathlib import Path
from typing import TypeAlias

from fleet.errors import ConfigError, DiskFull
from fleet.tracker.core.entries import Changes, DeviceEntry, Durable, LeaseEntry, RequestEntry

logger = logging.getLogger(__name__)

_APPLICATION_ID = 0x54564D46
_SCHEMA_VERSION = 1
_SCHEMA = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE devices (
    name TEXT PRIMARY KEY, kind TEXT NOT NULL, labels TEXT NOT NULL, description BLOB NOT NULL, address TEXT NOT NULL,
    agent_id TEXT NOT NULL, attached_at_sec REAL NOT NULL, detached_at_sec REAL
) WITHOUT ROWID;
CREATE TABLE leases (
    device_name TEXT PRIMARY KEY, epoch INTEGER NOT NULL, name TEXT, client_id TEXT, request_id TEXT, holder TEXT,
    purpose TEXT, ttl_sec REAL, granted_at_sec REAL, expires_at_sec REAL, ends_at_sec REAL
) WITHOUT ROWID;
CREATE TABLE requests (
    client_id TEXT NOT NULL, request_id TEXT NOT NULL, holder TEXT NOT NULL, selector TEXT NOT NULL,
    priority INTEGER NOT NULL, ttl_sec REAL NOT NULL, max_duration_sec REAL NOT NULL, deadline_sec REAL,
    asked_at_sec REAL NOT NULL, purpose TEXT NOT NULL, order_sec REAL NOT NULL, arrival INTEGER NOT NULL,
    PRIMARY KEY (client_id, request_id)
) WITHOUT ROWID;
"""
_Row: TypeAlias = tuple[str | bytes | int | float | None, ...]

_LAST_CLOCK_MS = int(4e12)
"""The year 2096. A clock that says more is wrong, and must not use the numbers up."""

_CHECKPOINT_PAGES = 2_000
"""The log is folded into the file, by another thread, each time it has grown by this much [pages of 4 KiB]."""
_MAX_LOG_BYTES = 256 * 1024 * 1024
"""Beyond this size the log is folded in at once, since the other thread has found no quiet moment for it."""


class Journal:
    """One open journal file. Not for use by two threads or two processes at once."""

    def __init__(self, path: Path, *, checkpoint_pages: int = _CHECKPOINT_PAGES) -> None:
        self.path = path
        self._checkpoint_pages = checkpoint_pages
        self._connection: sqlite3.Connection | None = None
        self._folding: threading.Thread | None = None
        self._pages_unfolded = 0

    def open(self, now: float) -> Durable:
        """Open or make the file, count this start, and return what it holds.

        Raises:
            ConfigError: the file is no database, or one of another program or version.
            DiskFull: there is no space to count the start.
        """
        try:
            connection = self._connection = self._connect()
            self._check_schema(connection)
            boot = self._count_boot(connection, now)
            return Durable(boot=boot, devices=_load_devices(connection), requests=_load_requests(connection))
        except sqlite3.Error as error:
            self.close()
            if error.sqlite_errorcode in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE):
                raise DiskFull(f"no space left for {self.path}; free some and start again") from error
            raise ConfigError(
                f"cannot use {self.path} as the tracker's journal: {error}; move it away or name another --state-dir"
            ) from error
        except BaseException:
            self.close()
            raise

    def write(self, changes: Changes) -> None:
        """Make these changes part of the file, all or none.

        Raises:
            DiskFull: it cannot be written now; nothing was.
        """
        if not changes or self._connection is None:
            return
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            _write_devices(self._connection, changes)
            _write_leases(self._connection, changes)
            _write_requests(self._connection, changes)
            self._connection.execute("COMMIT")
        except sqlite3.Error as error:
            with contextlib.suppress(sqlite3.Error):
                self._connection.rollback()
            raise DiskFull(f"the tracker cannot write {self.path}: {error}; free some space there") from error
        self._fold_log(len(changes.devices) + len(changes.leases) + len(changes.requests))

    def close(self) -> None:
        """Close the file. Idempotent."""
        if self._folding:
            self._folding.join()
        if self._connection:
            self._connection.close()
        self._connection = self._folding = None

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self.path, isolation_level=None, timeout=1.0)
        self.path.chmod(0o600)  # client ids are secret: whoever knows one can take its leases over
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA wal_autocheckpoint = 0")
        return connection

    def _check_schema(self, connection: sqlite3.Connection) -> None:
        (application_id,) = connection.execute("PRAGMA application_id").fetchone()
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        (tables,) = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        if not tables and not application_id:
            header = f"PRAGMA application_id = {_APPLICATION_ID}; PRAGMA user_version = {_SCHEMA_VERSION};"
            connection.executescript(f"BEGIN; {header} {_SCHEMA} COMMIT;")
            return
        advice = "move it away or name another --state-dir"
        if application_id != _APPLICATION_ID:
            raise ConfigError(f"{self.path} is a database of another program, no tracker's journal; {advice}")
        if version != _SCHEMA_VERSION:
            raise ConfigError(f"{self.path} has version {version}, this tracker reads {_SCHEMA_VERSION}; {advice}")

    def _count_boot(self, connection: sqlite3.Connection, now: float) -> int:
        """Count this start: the clock [ms], unless the journal has that number or a larger one."""
        connection.execute("PRAGMA synchronous = FULL")
        row = connection.execute("SELECT value FROM meta WHERE key = 'boot'").fetchone()
        stored = int(row[0]) if row else 0
        boot = max(stored + 1, min(int(now * 1e3), _LAST_CLOCK_MS))
        connection.execute("INSERT OR REPLACE INTO meta VALUES ('boot', ?)", (boot,))
        connection.execute("PRAGMA synchronous = NORMAL")
        return boot

    def _fold_log(self, pages: int) -> None:
        self._pages_unfolded += pages
        if self._pages_unfolded < self._checkpoint_pages or (self._folding and self._folding.is_alive()):
            return
        self._pages_unfolded = 0
        log = self.path.with_name(f"{self.path.name}-wal")
        try:
            if self._connection and log.stat().st_size > _MAX_LOG_BYTES:
                self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
                return
            self._folding = threading.Thread(target=_fold, args=(self.path,), name="journal-checkpoint", daemon=True)
            self._folding.start()
        except (OSError, RuntimeError, sqlite3.Error):
            # Nothing is lost: with a full disk or too few threads, the log only grows until the next try.
            self._folding = None
            logger.warning("journal checkpoint failed", exc_info=True, extra={"path": str(self.path)})


def _fold(path: Path) -> None:
    """Checkpoint with a connection of its own: its syncs take tens of milliseconds, which no grant should wait for."""
    try:
        connection = sqlite3.connect(path, isolation_level=None, timeout=1.0)
        try:
            connection.execute("PRAGMA wal_autocheckpoint = 0")
            connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
        finally:
            connection.close()
    except sqlite3.Error:
        logger.warning("journal checkpoint failed", exc_info=True, extra={"path": str(path)})


def _load_devices(connection: sqlite3.Connection) -> list[DeviceEntry]:
    leases = {row[0]: row for row in connection.execute("SELECT * FROM leases")}
    return [_device(row, leases.get(row[0])) for row in connection.execute("SELECT * FROM devices ORDER BY name")]


def _device(
    row: tuple[str, str, str, bytes, str, str, float, float | None], last: tuple[object, ...] | None
) -> DeviceEntry:
    name, kind, labels, description, address, agent_id, attached_at_sec, detached_at_sec = row
    device = DeviceEntry(
        name=name,
        kind=kind,
        labels=json.loads(labels),
        description=description,
        address=address,
        agent_id=agent_id,
        attached_at_sec=attached_at_sec,
        detached_at_sec=detached_at_sec,
    )
    if last is not None:
        device.epoch = int(str(last[1]))
        device.lease = _lease(last) if last[2] is not None else None
    return device


_LEASE_FIELDS = (
    "device_name",
    "epoch",
    "name",
    "client_id",
    "request_id",
    "holder",
    "purpose",
    "ttl_sec",
    "granted_at_sec",
    "expires_at_sec",
    "ends_at_sec",
)


def _lease(row: tuple[object, ...]) -> LeaseEntry:
    return LeaseEntry(**dict(zip(_LEASE_FIELDS, row, strict=True)))  # type: ignore[arg-type]


def _load_requests(connection: sqlite3.Connection) -> list[RequestEntry]:
    return [
        RequestEntry(
            client_id=row[0],
            request_id=row[1],
            holder=row[2],
            selector=row[3],
            priority=row[4],
            ttl_sec=row[5],
            max_duration_sec=row[6],
            deadline_sec=row[7],
            asked_at_sec=row[8],
            purpose=row[9],
            order=(row[10], row[11]),
        )
        for row in connection.execute("SELECT * FROM requests")
    ]


def _write_devices(connection: sqlite3.Connection, changes: Changes) -> None:
    present = [device for device in changes.devices.values() if device]
    connection.executemany("INSERT OR REPLACE INTO devices VALUES (?,?,?,?,?,?,?,?)", map(_device_row, present))
    gone = ((name,) for name, device in changes.devices.items() if not device)
    connection.executemany("DELETE FROM devices WHERE name = ?", gone)


def _device_row(device: DeviceEntry) -> _Row:
    return (
        device.name,
        device.kind,
        json.dumps(device.labels),
        device.description,
        device.address,
        device.agent_id,
        device.attached_at_sec,
        device.detached_at_sec,
    )


def _write_leases(connection: sqlite3.Connection, changes: Changes) -> None:
    present = [device for device in changes.leases.values() if device]
    connection.executemany("INSERT OR REPLACE INTO leases VALUES (?,?,?,?,?,?,?,?,?,?,?)", map(_lease_row, present))
    gone = ((name,) for name, device in changes.leases.items() if not device)
    connection.executemany("DELETE FROM leases WHERE device_name = ?", gone)


_NO_LEASE = (None,) * (len(_LEASE_FIELDS) - 2)


def _lease_row(device: DeviceEntry) -> _Row:
    lease = device.lease
    if lease is None:
        return (device.name, device.epoch, *_NO_LEASE)
    return (
        lease.device_name,
        lease.epoch,
        lease.name,
        lease.client_id,
        lease.request_id,
        lease.holder,
        lease.purpose,
        lease.ttl_sec,
        lease.granted_at_sec,
        lease.expires_at_sec,
        lease.ends_at_sec,
    )


def _write_requests(connection: sqlite3.Connection, changes: Changes) -> None:
    present = [request for request in changes.requests.values() if request]
    statement = "INSERT OR REPLACE INTO requests VALUES (?,?,?,?,?,?,?,?,?,?,?,?)"
    connection.executemany(statement, map(_request_row, present))
    gone = (key for key, request in changes.requests.items() if not request)
    connection.executemany("DELETE FROM requests WHERE client_id = ? AND request_id = ?", gone)


def _request_row(request: RequestEntry) -> _Row:
    return (
        request.client_id,
        request.request_id,
        request.holder,
        request.selector,
        request.priority,
        request.ttl_sec,
        request.max_duration_sec,
        request.deadline_sec,
        request.asked_at_sec,
        request.purpose,
        *request.order,
    )
