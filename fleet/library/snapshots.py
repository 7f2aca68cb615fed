"""Snapshots of the shared cost model in the database, and notifications of new ones."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Protocol

import sqlalchemy as sa

from fleet.base.digests import digest_of
from fleet.library.engine import translated_errors
from fleet.library.schema import insert_into, snapshots
from fleet.library.values import NewSnapshot, StoredSnapshot

if TYPE_CHECKING:
    import psycopg

_CHANNEL = "tvm_fleet_snapshot"
_POLL_SEC = 0.2
"""Interval of checks of SQLite; reading `data_version` takes 2 us."""


class Watch(Protocol):
    """Watches the database for commits."""

    def wait(self, timeout_sec: float) -> bool:
        """Block until a snapshot may have been published; return False after the time limit."""
        ...


def add(connection: sa.Connection, new: NewSnapshot, *, publishes: bool) -> StoredSnapshot:
    """Store a snapshot, and with `publishes` notify all readers, in one transaction. A known one is stored once,
    and was not trained on later records.
    """
    now = datetime.now(UTC)
    digest = digest_of(new.content)
    row = {
        "digest": digest,
        "content": new.content,
        "feature_version": new.feature_version,
        "record_count": new.record_count,
        "workloads": dict(new.workloads),
        "last_record_id": new.last_record_id,
        "metrics": dict(new.metrics),
        "made_at": now,
        "published_at": now if publishes else None,
    }
    insert = insert_into(connection, snapshots).values(row)
    again = {
        "last_record_id": insert.excluded.last_record_id,
        "published_at": sa.func.coalesce(snapshots.c.published_at, insert.excluded.published_at),
    }
    connection.execute(insert.on_conflict_do_update(index_elements=["digest"], set_=again))
    if publishes and connection.dialect.name == "postgresql":
        connection.execute(sa.select(sa.func.pg_notify(_CHANNEL, digest)))  # sent by the commit
    return _of(connection.execute(sa.select(snapshots).where(snapshots.c.digest == digest)).mappings().one())


def newest(connection: sa.Connection, feature_version: str, *, published_only: bool) -> StoredSnapshot | None:
    query = sa.select(snapshots).where(snapshots.c.feature_version == feature_version)
    if published_only:
        query = query.where(snapshots.c.published_at.is_not(None))
    row = connection.execute(query.order_by(snapshots.c.id.desc()).limit(1)).mappings().one_or_none()
    return None if row is None else _of(row)


def every(connection: sa.Connection) -> list[StoredSnapshot]:
    return [_of(row) for row in connection.execute(sa.select(snapshots).order_by(snapshots.c.id)).mappings()]


@contextmanager
def watching(engine: sa.Engine) -> Iterator[Watch]:
    """Start listening, on a separate connection."""
    with translated_errors(engine), engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.detach()  # closed at the end: the next user of a pooled connection would go on listening
        yield _Listening(connection) if engine.dialect.name == "postgresql" else _Polling(connection)


class _Listening:
    """Watch by PostgreSQL's NOTIFY, sent with the commit."""

    def __init__(self, connection: sa.Connection) -> None:
        connection.exec_driver_sql(f"LISTEN {_CHANNEL}")
        raw = connection.connection.dbapi_connection
        self._raw: psycopg.Connection[tuple[object, ...]] = raw  # type: ignore[assignment]

    def wait(self, timeout_sec: float) -> bool:
        return any(True for _ in self._raw.notifies(timeout=timeout_sec, stop_after=1))


class _Polling:
    """Watch by polling SQLite's `data_version`, which changes with every commit of another connection."""

    def __init__(self, connection: sa.Connection) -> None:
        raw = connection.connection.dbapi_connection
        self._raw: sqlite3.Connection = raw  # type: ignore[assignment]  # within a transaction the number stays
        self._pause = threading.Event()  # never set: `wait` is a sleep
        self._seen = self._version()

    def wait(self, timeout_sec: float) -> bool:
        left_sec = timeout_sec
        while (version := self._version()) == self._seen and left_sec > 0:
            self._pause.wait(min(_POLL_SEC, left_sec))
            left_sec -= _POLL_SEC
        is_new, self._seen = version != self._seen, version
        return is_new

    def _version(self) -> object:
        return self._raw.execute("PRAGMA data_version").fetchone()


def _of(row: sa.RowMapping) -> StoredSnapshot:
    return StoredSnapshot(**{name: row[name] for name in StoredSnapshot.__dataclass_fields__})
