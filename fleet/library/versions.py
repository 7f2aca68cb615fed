"""Migrates a library to another schema version on demand, up or down, after making a copy.

Programs do the way up by themselves when they open a library. The way down is for a return to an older program: it
drops data that the older version cannot store, so the copy is not optional if this module can make it.
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import sqlalchemy as sa

from fleet.errors import InvalidRequest, LibraryError
from fleet.library import engine as engines
from fleet.library import jobs as stored
from fleet.library.queue import JobQueue
from fleet.library.schema import SCHEMA_VERSION, jobs
from fleet.library.values import JobState


@dataclass(frozen=True, slots=True, kw_only=True)
class Changed:
    """Result of a change of versions."""

    found: int
    """The previous version."""

    backup: Path | None
    """The copy of that version; None: nothing was changed, or the user has one."""


def change_version(
    url_or_path: str | Path | None, version: int, *, backup: Path | None = None, has_backup: bool = False
) -> Changed:
    """Migrate a library to a version that this program supports.

    Args:
        backup: the file for the copy; None: beside the library, named after its version and the time.
        has_backup: the user has made a backup, which a library in PostgreSQL requires.

    Raises:
        LibraryError: there is no library, no such version, or no copy could be made; nothing was changed.
        InvalidRequest: another process uses it.
    """
    url = engines.database_url(url_or_path)
    made: list[Path] = []

    def prepare(engine: sa.Engine, found: int) -> None:
        _check_idle(engine, found)
        if not has_backup:
            made.append(_copy(engine, backup, found))

    found = engines.migrate_to(url, version, prepare)
    return Changed(found=found, backup=made[0] if made else None)


def _check_idle(engine: sa.Engine, found: int) -> None:
    with engines.reading(engine) as connection:
        running = sa.select(jobs.c.name).where(jobs.c.state == JobState.RUNNING.value)
        names = sorted(set(connection.scalars(running)) - set(stored.abandoned(connection)))
    names += [one.name for one in JobQueue(engine).optimizers()] if found == SCHEMA_VERSION else []
    if names:
        raise InvalidRequest(f"the library is in use by {', '.join(names)}; stop them first")


def _copy(engine: sa.Engine, backup: Path | None, found: int) -> Path:
    database = engine.url.database
    if engine.dialect.name != "sqlite" or not database:
        raise LibraryError("only SQLite libraries are copied here; make a copy with pg_dump, then give --no-backup")
    path = backup or Path(f"{database}.v{found}.{datetime.now(UTC):%Y%m%d-%H%M%S}.bak")
    if path.exists():
        raise LibraryError(f"{path} exists; name another --backup")
    try:
        with engine.connect() as connection:
            source: sqlite3.Connection = connection.connection.dbapi_connection  # type: ignore[assignment]
            target = sqlite3.connect(path)
            try:
                source.backup(target)
            finally:
                target.close()
    except (sqlite3.Error, OSError) as error:
        path.unlink(missing_ok=True)
        raise LibraryError(f"no copy could be made at {path}: {error}; nothing was changed") from error
    return path
