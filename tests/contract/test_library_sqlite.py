"""Unusable SQLite files: one clear error each, and no loss of data."""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from fleet.domain.scope import RecordScope
from fleet.errors import DiskFull, LibraryDamaged, LibraryError
from fleet.library import Library, Record, StoredWorkload
from fleet.library.engine import database_url, meaning_of, open_engine, reading

WORKLOAD = StoredWorkload(shash="1", name="w", mod_json="{}")


def record(number: int) -> Record:
    return Record(
        workload="1",
        scope=RecordScope(target_json='{"kind":"llvm"}', device_model="m", tvm_version="0.27"),
        trace_json=f"[[{number}],[]]",
        run_secs=(1.0,),
    )


def fill(library: Library) -> None:
    """Store until it fails."""
    for number in range(100_000):
        library.add_record(record(number))


@contextlib.contextmanager
def being_made(path: Path) -> Iterator[sqlite3.Connection]:
    """Hold the lock of a process that is about to make the tables."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield other


@contextlib.contextmanager
def without_root() -> Iterator[None]:
    """Run as a user without root's rights."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def opened_up(directory: Path) -> Path:
    """Open a test's own directory to other users."""
    for path in [directory, *directory.parents][:-2]:
        path.chmod(path.stat().st_mode | 0o755)
    return directory


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    """The file stays as it is."""
    path = tmp_path / "notes.txt"
    path.write_text("not a database, " * 100)

    with pytest.raises(LibraryError, match=r"notes\.txt is no SQLite database"):
        Library.open(path)
    assert path.read_text().startswith("not a database")


def test_an_exhausted_connection_pool_raises_a_retryable_error() -> None:
    """A client that waits for an absent library retries in this case, too."""
    engine = sa.create_engine("sqlite://", poolclass=sa.QueuePool, pool_size=1, max_overflow=0, pool_timeout=0)

    with reading(engine), pytest.raises(LibraryError, match="cannot be used"), reading(engine):
        pass
    engine.dispose()


def test_opening_waits_for_a_library_under_creation(tmp_path: Path) -> None:
    """Two commands on a new library: the second neither fails nor makes it again."""
    path = tmp_path / "library.sqlite"
    with being_made(path) as other:
        threading.Timer(0.2, other.rollback).start()
        Library.open(path).close()

        assert not other.in_transaction


def test_a_library_that_stays_locked_while_it_is_made_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the remedy after the usual time limit of writers."""
    monkeypatch.setattr("fleet.library.engine._BUSY_TIMEOUT_MS", 50)

    with being_made(tmp_path / "library.sqlite"), pytest.raises(LibraryError, match="been locked by another program"):
        Library.open(tmp_path / "library.sqlite")


def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    """A directory that the user named is theirs to make."""
    with pytest.raises(LibraryError, match=r"missing.*does not exist; make it"):
        Library.open(tmp_path / "missing" / "library.sqlite")


def test_a_directory_is_no_library(tmp_path: Path) -> None:
    """The message says to name a file in it."""
    with pytest.raises(LibraryError, match="name a file in it"):
        Library.open(tmp_path)


def test_the_users_own_library_is_made_with_its_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a name the library is in the data directory, which is made."""
    monkeypatch.setenv("FLEET_DATA_DIR", str(tmp_path / "a" / "b"))

    with Library.open() as library:
        assert library.url == str(tmp_path / "a" / "b" / "library.sqlite")
    assert (tmp_path / "a" / "b" / "library.sqlite").exists()


def test_a_read_only_library_is_read_and_refuses_records(tmp_path: Path) -> None:
    """A library of a dead process's job can be read, too; a write's error names the file and the remedy."""
    path = opened_up(tmp_path) / "library.sqlite"
    with Library.open(path) as library:
        library.add_workload(WORKLOAD)
        library.start_job(title="j")
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE jobs SET process_started_sec = 1")
    for file in tmp_path.iterdir():
        file.chmod(0o444)
    tmp_path.chmod(0o777)

    with without_root(), Library.open(path) as library:
        assert library.workload("1") == WORKLOAD
        assert [job.title for job in library.jobs()] == ["j"]
        with pytest.raises(LibraryError, match=r"library\.sqlite is read-only; make it writable"):
            library.add_record(record(1))


def test_an_unreadable_library_is_reported(tmp_path: Path) -> None:
    """A missing permission is reported as such, not as damage of the file."""
    path = opened_up(tmp_path) / "library.sqlite"
    Library.open(path).close()
    path.chmod(0)

    with without_root(), pytest.raises(LibraryError, match="cannot be opened; check"):
        Library.open(path)


@pytest.mark.slow
def test_a_full_disk_loses_no_record(tmp_path: Path) -> None:
    """A record without room fails with DiskFull; earlier ones stay, and later ones are stored once there is room."""
    engine = open_engine(database_url(tmp_path / "library.sqlite"), is_default=False)
    with Library(engine) as library:
        library.add_workload(WORKLOAD)
        limit = {"pages": 60}
        sa.event.listen(
            engine,
            "begin",
            lambda connection: connection.exec_driver_sql(f"PRAGMA max_page_count = {limit['pages']}"),
        )
        with pytest.raises(DiskFull, match=r"no space left for the library .*library\.sqlite; free some"):
            fill(library)
        stored = len(library.records())
        assert stored > 10
        assert [r.trace_json for r in library.records()] == [record(n).trace_json for n in range(stored)]

        limit["pages"] = 10_000
        library.add_record(record(stored))
        assert len(library.records()) == stored + 1


def test_an_io_error_where_no_byte_is_left_is_a_full_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """SQLite reports an I/O error when it cannot make its files beside the database, even to read."""
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorcode = sqlite3.SQLITE_IOERR_SHMSIZE
    where = f"sqlite:///{tmp_path / 'library.sqlite'}"
    usage = shutil.disk_usage(tmp_path)

    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=0))
    full = meaning_of(error, where)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1))
    other = meaning_of(error, where)

    assert isinstance(full, DiskFull)
    assert isinstance(other, LibraryError)
    assert "disk I/O error" in str(other)


def test_a_damaged_library_is_refused(tmp_path: Path) -> None:
    """A file with overwritten pages is reported as damaged."""
    path = tmp_path / "library.sqlite"
    with Library.open(path) as library:
        library.add_workload(WORKLOAD)
        library.add_records([record(number) for number in range(50)])
    raw = sqlite3.connect(path)
    raw.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    raw.close()
    content = bytearray(path.read_bytes())
    content[4096:] = os.urandom(len(content) - 4096)
    path.write_bytes(content)

    with pytest.raises(LibraryDamaged, match="is damaged; restore it"), Library.open(path) as library:
        library.records()


@pytest.mark.parametrize(
    ("given", "message"),
    [("mysql://host/db", "not in mysql"), ("postgresql://:port:/x", "no database URL")],
)
def test_other_databases_are_refused(given: str, message: str) -> None:
    """The error for another URL lists the supported databases."""
    with pytest.raises(LibraryError, match=message):
        Library.open(given)


def test_an_absent_server_is_named_without_the_password() -> None:
    """The error names the host, and the password stays secret."""
    with pytest.raises(LibraryError, match=r"127\.0\.0\.1") as caught:
        Library.open("postgresql://me:s3cret@127.0.0.1:1/fleet")
    assert "s3cret" not in str(caught.value)


def test_urls_and_paths_name_libraries() -> None:
    """A path is a SQLite file; PostgreSQL's usual URLs mean the driver that is installed with us."""
    assert database_url("/x/y.sqlite").database == "/x/y.sqlite"
    assert database_url("postgresql://h/d").drivername == "postgresql+psycopg"
    assert database_url("postgres://h/d").drivername == "postgresql+psycopg"
    assert database_url("sqlite:////x/y.sqlite").database == "/x/y.sqlite"
