"""Opens the database: its address, mode and version, and the translation of its errors.

SQLite runs with a write-ahead log and `synchronous=NORMAL`: commits survive a kill -9 of any process,
several processes write at once, readers never wait. Writers take the lock when they begin, not when they first write:
upgrading a read lock fails at once if another writer was quicker, whatever the busy timeout.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import time
import urllib.parse
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.pool import ConnectionPoolEntry

from fleet.base.config import at_home
from fleet.base.settings import look_up
from fleet.errors import DiskFull, LibraryDamaged, LibraryError, LibraryReadOnly, NoLibrary
from fleet.library import schema
from fleet.library.migrations import migrate

_BUSY_TIMEOUT_MS = 30_000
"""A writer waits this long for the others; a transaction of ours lasts milliseconds."""

_AGAIN_SEC = 0.01
"""Interval of retries where SQLite does not wait by itself."""

_POSTGRES_LOCK = 0x74766D666C656574
"""Advisory lock held while the tables are made or changed: "tvmfleet" in ASCII."""

_POSTGRES_DRIVER = "postgresql+psycopg"
_POSTGRES_DISK_FULL = "53100"
_POSTGRES_READ_ONLY = ("25006", "42501")
"""A transaction that may only read, a role that may."""
_POSTGRES_DAMAGED = ("XX001", "XX002")
"""Data, an index."""


def database_url(url_or_path: str | os.PathLike[str] | None) -> sa.URL:
    """Return the URL of a library: a URL unchanged, a path as a SQLite file, None as the configured or default one.

    Raises:
        NoLibrary: the text starts like a URL, but not that of a supported database.
        ConfigError: the configuration cannot be read.
    """
    if url_or_path is None:
        url_or_path = look_up("library").value
    if not isinstance(url_or_path, str) or "://" not in url_or_path:
        return _sqlite_url(Path(url_or_path))
    try:
        url = sa.make_url(url_or_path)
    except (sa.exc.ArgumentError, ValueError) as error:
        raise NoLibrary(f"{url_or_path!r} is no database URL; give a file, or postgresql://host/database") from error
    if url.drivername in ("postgresql", "postgres", _POSTGRES_DRIVER):
        return url.set(drivername=_POSTGRES_DRIVER)
    if url.drivername not in ("sqlite", "sqlite+pysqlite"):
        raise NoLibrary(
            f"a library lives in SQLite or PostgreSQL, not in {url.drivername}; give a file, or "
            "postgresql://host/database"
        )
    if url.database in (None, "", ":memory:"):
        raise NoLibrary("a library in memory would be gone with its command; name a file")
    if url.query:
        raise NoLibrary(f"the library {url.database} takes no options after '?'; name the file alone")
    return url


def shown_url(url: sa.URL) -> str:
    """Return the URL of a database without its password; for SQLite its path."""
    if url.get_backend_name() == "sqlite" and url.database:
        return url.database
    return url.render_as_string(hide_password=True)


def open_engine(url: sa.URL, *, is_default: bool = False, makes_file: bool = True) -> sa.Engine:
    """Open the database, create missing tables, and migrate older ones if they are writable.

    Args:
        is_default: create the directory if it is missing.
        makes_file: if False, use an empty library in memory in place of a missing file.

    Raises:
        LibraryError: the database is unusable; the message has the reason and a remedy.
        DiskFull: no space left to make it.
    """
    is_stand_in = not makes_file and url.get_backend_name() == "sqlite" and not Path(str(url.database)).exists()
    if is_stand_in:
        _refuse_file_for_directory(Path(str(url.database)).parent)
        engine = _make_engine(url, poolclass=sa.StaticPool, creator=_open_in_memory)
    else:
        _check_directory(url, make=is_default)
        engine = _make_engine(url)
    try:
        with translated_errors(engine):
            _prepare(engine)
    except BaseException:  # also if cancelled or interrupted; raised again
        engine.dispose()
        raise
    if url.get_backend_name() == "sqlite" and not is_stand_in:
        _refuse_another_file(engine, Path(str(url.database)))
    return engine


def migrate_to(url: sa.URL, version: int, backup: Callable[[sa.Engine, int], None]) -> int:
    """Migrate a library to an earlier or later version, in one transaction; return its previous version.

    Args:
        backup: called before anything is changed, with the version that is there; not if that is the wanted one.

    Raises:
        LibraryError: there is none, of no version that this program knows, or it cannot be changed.
    """
    if not schema.OLDEST_VERSION <= version <= schema.SCHEMA_VERSION:
        raise NoLibrary(f"there is no version {version}; known are {schema.OLDEST_VERSION} to {schema.SCHEMA_VERSION}")
    _check_directory(url, make=False)
    if url.get_backend_name() == "sqlite" and not Path(str(url.database)).is_file():
        raise NoLibrary(f"there is no library {url.database}")
    engine = _make_engine(url)
    try:
        with translated_errors(engine):
            with engine.connect() as connection, connection.begin():
                found = _find_version(connection)
            if found is None:
                raise LibraryError(f"there is no library at {url.render_as_string(hide_password=True)}")
            if found != version:
                backup(engine, found)
                _change_version(engine, version)
            return found
    finally:
        engine.dispose()


def _make_engine(url: sa.URL, **options: Any) -> sa.Engine:
    try:
        if options:
            engine = sa.create_engine(url, **options)
        elif _is_frozen(url):
            engine = sa.create_engine(url, creator=lambda: _open_frozen(str(url.database)))
        else:
            engine = sa.create_engine(url, pool_pre_ping=url.get_backend_name() != "sqlite")
    except ModuleNotFoundError as error:
        raise LibraryError(f"{error}; install tvm-fleet with the extra 'postgres' to use a shared library") from error
    if engine.dialect.name == "sqlite":
        sa.event.listen(engine, "connect", _prepare_sqlite)
    sa.event.listen(engine, "begin", _begin)
    return engine


@contextlib.contextmanager
def reading(engine: sa.Engine) -> Iterator[sa.Connection]:
    """Run a read transaction."""
    with translated_errors(engine), engine.connect() as connection, connection.begin():
        yield connection


@contextlib.contextmanager
def writing(engine: sa.Engine) -> Iterator[sa.Connection]:
    """Run a write transaction: committed if the block succeeds, rolled back otherwise."""
    with translated_errors(engine), engine.connect() as connection:
        connection = connection.execution_options(is_write=True)
        with connection.begin():
            yield connection


@contextlib.contextmanager
def translated_errors(engine: sa.Engine) -> Iterator[None]:
    """Translate the database's errors into fleet errors."""
    try:
        yield
    except (sa.exc.DBAPIError, sa.exc.TimeoutError, engine.dialect.loaded_dbapi.Error) as error:
        where = engine.url.render_as_string(hide_password=True)
        raise meaning_of(error.orig if isinstance(error, sa.exc.DBAPIError) else error, where) from error


def _sqlite_url(path: Path) -> sa.URL:
    return sa.URL.create("sqlite", database=str(at_home(path)))


def _refuse_file_for_directory(directory: Path) -> None:
    if directory.exists() and not directory.is_dir():
        raise NoLibrary(f"{directory} cannot be the library's directory: {directory} is a file")


def _check_directory(url: sa.URL, *, make: bool) -> None:
    if url.get_backend_name() != "sqlite":
        return
    path = Path(str(url.database))
    if make:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # private, since it contains models and jobs; the database reports errors
            with contextlib.suppress(OSError):
                os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        except (FileExistsError, NotADirectoryError) as error:
            raise NoLibrary(f"{path.parent} cannot be the library's directory: {error.filename} is a file") from error
        except OSError as error:
            raise LibraryError(f"cannot make {path.parent} for the library: {error.strerror}") from error
    if not path.parent.is_dir():
        raise NoLibrary(f"the directory of the library {path} does not exist; make it, or name another --library")
    if path.is_dir():
        raise NoLibrary(f"the library {path} is a directory; name a file in it")
    if path.exists() and not path.is_file():
        raise NoLibrary(f"the library {path} is a device or a pipe; name a file")


def _is_frozen(url: sa.URL) -> bool:
    """Tell whether no process can write this file from here: SQLite creates its log beside it, even to read.

    Where a log is left, its content counts, so it is opened as any other.
    """
    if url.get_backend_name() != "sqlite":
        return False
    path = Path(str(url.database))
    may_write = os.access(path.parent, os.W_OK, effective_ids=os.access in os.supports_effective_ids)
    return path.is_file() and not may_write and not path.with_name(f"{path.name}-wal").exists()


def _open_frozen(database: str) -> sqlite3.Connection:
    path = urllib.parse.quote(str(Path(database).absolute()))
    return sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True, check_same_thread=False)


def _open_in_memory() -> sqlite3.Connection:
    return sqlite3.connect(":memory:", check_same_thread=False)


def _refuse_another_file(engine: sa.Engine, path: Path) -> None:
    """Make each transaction fail once the library's file has been removed or replaced.

    SQLite would continue with the removed file, and everything stored there would be lost.
    """
    opened = _identity(path)

    def check(_connection: sa.Connection) -> None:
        if _identity(path) != opened:
            raise LibraryDamaged(
                f"the library {path} was removed or replaced while it was in use, and nothing can be stored in it any "
                "more; put it back from a copy, or begin anew"
            )

    sa.event.listen(engine, "begin", check, insert=True)


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _prepare_sqlite(connection: sqlite3.Connection, _entry: ConnectionPoolEntry) -> None:
    connection.isolation_level = None  # the driver issues BEGIN late and deferred; `_begin` issues it instead
    connection.execute(f"PRAGMA busy_timeout = {_BUSY_TIMEOUT_MS}")
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute("PRAGMA foreign_keys = ON")


def _begin(connection: sa.Connection) -> None:
    if connection.dialect.name != "sqlite":
        return
    is_write = connection.get_execution_options().get("is_write", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if is_write else "BEGIN")


def _prepare(engine: sa.Engine) -> None:
    with engine.connect() as connection, connection.begin():
        found = _find_version(connection)
    if found == schema.SCHEMA_VERSION:
        return
    if found is not None:
        with contextlib.suppress(LibraryReadOnly):
            _make_or_migrate(engine)
        return
    if engine.dialect.name == "sqlite":
        with engine.connect() as connection:
            _use_write_ahead_log(connection)
    _make_or_migrate(engine)


def _make_or_migrate(engine: sa.Engine) -> None:
    """Create missing tables, or migrate old ones. A second process waits, and finds them up to date."""
    with writing(engine) as connection:
        if engine.dialect.name == "postgresql":
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_POSTGRES_LOCK)))
        found = _find_version(connection)
        if found is None:
            schema.metadata.create_all(connection)
            row = {"schema_version": schema.SCHEMA_VERSION, "created_at": datetime.now(UTC)}
            connection.execute(schema.library.insert(), row)
        elif found < schema.SCHEMA_VERSION:
            migrate(connection, found, schema.SCHEMA_VERSION)


def _change_version(engine: sa.Engine, version: int) -> None:
    with writing(engine) as connection:
        if engine.dialect.name == "postgresql":
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_POSTGRES_LOCK)))
        found = _find_version(connection)
        if found is not None and found != version:
            migrate(connection, found, version)


def _use_write_ahead_log(connection: sa.Connection) -> None:
    # The setting persists, so once at creation is enough. It cannot change inside a transaction, hence the driver's
    # connection.
    raw: Any = connection.connection.driver_connection
    until_sec = time.monotonic() + _BUSY_TIMEOUT_MS / 1e3
    while True:
        try:
            raw.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            # SQLite does not wait for this statement: it fails at once while another process creates the library.
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > until_sec:
                raise
            time.sleep(_AGAIN_SEC)
        else:
            return


def _find_version(connection: sa.Connection) -> int | None:
    """Return the schema version, or None without tables.

    Raises:
        LibraryError: a version that this program cannot read, or the tables of another one.
    """
    where = connection.engine.url.render_as_string(hide_password=True)
    names = set(sa.inspect(connection).get_table_names())
    if schema.library.name not in names:
        # A PostgreSQL database may serve several programs, but a file with other tables is not a library.
        if names if connection.dialect.name == "sqlite" else names & set(schema.metadata.tables):
            raise LibraryError(f"{where} is the database of another program; name another --library")
        return None
    found: int = connection.scalar(sa.select(sa.func.max(schema.library.c.schema_version))) or 0
    if schema.OLDEST_VERSION <= found <= schema.SCHEMA_VERSION:
        return found
    advice = "install a newer tvm-fleet" if found > schema.SCHEMA_VERSION else "export it with its own tvm-fleet"
    raise LibraryError(
        f"{where} has schema version {found}, this program reads {schema.SCHEMA_VERSION}; "
        f"{advice}, or name another --library"
    )


def meaning_of(error: BaseException | None, where: str) -> LibraryError | DiskFull:
    """Return the fleet error for a database's error, for users of the library at `where`."""
    if isinstance(error, sqlite3.Error):
        return _meaning_of_sqlite(error, where)
    sqlstate, said = getattr(error, "sqlstate", None), " ".join(str(error).split())
    if sqlstate == _POSTGRES_DISK_FULL:
        return DiskFull(f"no space left for the library {where}; free some on its server")
    if sqlstate in _POSTGRES_READ_ONLY:
        return LibraryReadOnly(f"the library {where} may only be read: {said}; ask for a role that writes")
    if sqlstate in _POSTGRES_DAMAGED:
        return LibraryDamaged(f"the library {where} is damaged: {said}; restore it from a copy")
    return LibraryError(f"the library {where} cannot be used: {said}")


def _meaning_of_sqlite(error: sqlite3.Error, where: str) -> LibraryError | DiskFull:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code == sqlite3.SQLITE_FULL or (code == sqlite3.SQLITE_IOERR and _is_disk_full(where)):
        return DiskFull(f"no space left for the library {where}; free some, or name another --library")
    if code == sqlite3.SQLITE_READONLY:
        return LibraryReadOnly(f"{where} is read-only; make it writable, or name another --library")
    if code == sqlite3.SQLITE_CORRUPT:
        return LibraryDamaged(f"{where} is damaged; restore it from a copy, or name another --library")
    advice_by_code = {
        sqlite3.SQLITE_CANTOPEN: "cannot be opened; check that it and its directory are yours to read and write",
        sqlite3.SQLITE_BUSY: f"has been locked by another program for {_BUSY_TIMEOUT_MS // 1000} s; end that first",
    }
    if code == sqlite3.SQLITE_NOTADB:
        return NoLibrary(f"{where} is no SQLite database; name another --library")
    return LibraryError(f"{where} {advice_by_code.get(code, f'cannot be used: {error}')}")


def _is_disk_full(where: str) -> bool:
    """Tell whether the database's disk is full: if SQLite cannot grow its files beside the database, it reports an I/O
    error, even for a read.
    """
    database = sa.make_url(where).database
    try:
        return database is not None and shutil.disk_usage(Path(database).parent).free == 0
    except OSError:
        return False
