"""Leader election: at most one of all processes that write a library trains its model; another takes over after a
crash.

SQLite: a row with its holder and its end; the holder renews it. PostgreSQL: an advisory lock, which the server
releases with its holder's connection. Either way a snapshot is stored in a transaction that only the holder can commit.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import Protocol

import sqlalchemy as sa

from fleet.errors import FleetError, LibraryError, LibraryReadOnly
from fleet.library import snapshots
from fleet.library.engine import translated_errors, writing
from fleet.library.schema import insert_into, trainer
from fleet.library.schema import snapshots as snapshot_table
from fleet.library.values import NewSnapshot, StoredSnapshot

_TRAINER_LOCK = 0x747261696E657200
""" "trainer" in ASCII."""


class Term(Protocol):
    """The right to train, until it is closed or no longer renewed."""

    def renew(self) -> bool:
        """Extend the term; return False if it was lost."""
        ...

    def publish(self, new: NewSnapshot, *, publishes: bool = True) -> StoredSnapshot:
        """Store a snapshot atomically; with `publishes` it becomes the one in use, and readers are notified.

        Raises:
            LibraryError: the term was lost; another process may train now.
        """
        ...

    def close(self) -> None:
        """End the term, so that another process can train. Does nothing if the term was lost."""
        ...


def stand(engine: sa.Engine, holder: str, lease_sec: float) -> Term | None:
    """Request a term; None while another process has it, or if the library cannot be written.

    Args:
        holder: unlike that of any other trainer.
        lease_sec: SQLite's term ends by itself so long after it was last renewed.
    """
    try:
        if engine.dialect.name == "postgresql":
            return _Locked.stand(engine)
        return _Leased.stand(engine, holder, timedelta(seconds=lease_sec))
    except LibraryReadOnly:
        return None


class _Leased:
    def __init__(self, engine: sa.Engine, holder: str, lease: timedelta) -> None:
        self._engine = engine
        self._holder = holder
        self._lease = lease

    @classmethod
    def stand(cls, engine: sa.Engine, holder: str, lease: timedelta) -> _Leased | None:
        now = datetime.now(UTC)
        with writing(engine) as connection:
            found = connection.execute(sa.select(trainer)).one_or_none()
            if found is not None and found.holder != holder and found.expires_at > now:
                return None
            insert = insert_into(connection, trainer).values(id=1, holder=holder, expires_at=now + lease)
            newer = {name: insert.excluded[name] for name in ("holder", "expires_at")}
            connection.execute(insert.on_conflict_do_update(index_elements=["id"], set_=newer))
        return cls(engine, holder, lease)

    def renew(self) -> bool:
        with writing(self._engine) as connection:
            return self._prolong(connection)

    def publish(self, new: NewSnapshot, *, publishes: bool = True) -> StoredSnapshot:
        with writing(self._engine) as connection:
            if not self._prolong(connection):
                raise LibraryError("the right to train has gone to another process; its snapshot will come")
            return snapshots.add(connection, new, publishes=publishes)

    def close(self) -> None:
        with writing(self._engine) as connection:
            connection.execute(trainer.delete().where(trainer.c.holder == self._holder))

    def _prolong(self, connection: sa.Connection) -> bool:
        now = datetime.now(UTC)
        is_ours = (trainer.c.holder == self._holder) & (trainer.c.expires_at > now)
        return connection.execute(trainer.update().where(is_ours).values(expires_at=now + self._lease)).rowcount == 1


class _Locked:
    def __init__(self, engine: sa.Engine, connection: sa.Connection) -> None:
        self._engine = engine
        self._connection = connection
        self._one_at_a_time = threading.Lock()

    @classmethod
    def stand(cls, engine: sa.Engine) -> _Locked | None:
        with translated_errors(engine):
            connection = engine.connect()
            try:
                connection.detach()  # closing it releases the lock, however this process ends
                with connection.begin():
                    may_write = sa.func.has_table_privilege(snapshot_table.name, "INSERT")
                    locks = sa.case((may_write, sa.func.pg_try_advisory_lock(_TRAINER_LOCK)), else_=False)
                    if connection.scalar(sa.select(locks)):  # otherwise readers could keep writers out
                        return cls(engine, connection)
            except BaseException:  # also if cancelled or interrupted; raised again
                connection.close()
                raise
            connection.close()
            return None

    def renew(self) -> bool:
        try:
            with self._locked() as connection:
                connection.execute(sa.select(1))
        except FleetError:
            return False
        return True

    def publish(self, new: NewSnapshot, *, publishes: bool = True) -> StoredSnapshot:
        with self._locked() as connection:
            return snapshots.add(connection, new, publishes=publishes)

    def close(self) -> None:
        unlocking = sa.select(sa.func.pg_advisory_unlock(_TRAINER_LOCK))
        with self._one_at_a_time:
            try:  # the server would notice the end of the connection a moment later
                with suppress(sa.exc.SQLAlchemyError), self._connection.begin():
                    self._connection.execute(unlocking)
            finally:
                self._connection.close()

    @contextmanager
    def _locked(self) -> Iterator[sa.Connection]:
        """Run a transaction on the connection that holds the lock.

        Raises:
            LibraryError: it was lost, and the lock with it. SQLAlchemy would make another, which has none.
        """
        with self._one_at_a_time, translated_errors(self._engine):
            if self._connection.invalidated:
                raise LibraryError("the right to train was lost with the connection to the library")
            with self._connection.begin():
                yield self._connection
