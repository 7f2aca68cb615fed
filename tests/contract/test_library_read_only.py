"""Libraries that may only be read, of today's and of earlier versions, on SQLite and on PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fleet.errors import LibraryReadOnly
from fleet.library import Library, schema
from fleet.library.engine import database_url
from tests.contract.test_library_migrations import (
    EARLIER,
    WORKLOAD,
    add_old_records,
    connected,
    make_library,
    record,
    version_of,
)
from tests.contract.test_library_sqlite import opened_up, without_root

VERSIONS = [*EARLIER, schema.SCHEMA_VERSION]


@contextmanager
def read_only(directory: Path) -> Iterator[None]:
    """Make a directory read-only, and run as a user without root's rights."""
    opened_up(directory).chmod(0o555)
    try:
        with without_root():
            yield
    finally:
        directory.chmod(0o755)


def make(url: str, version: int) -> None:
    """Make a library with two records."""
    if version < schema.SCHEMA_VERSION:
        make_library(url, version)
        add_old_records(url, 2)
        return
    with Library.open(url) as library:
        library.add_workload(WORKLOAD)
        library.add_records([record(0), record(1)])


def assert_it_is_read(url: str) -> None:
    """Reading works, and every write is refused."""
    with Library.open(url) as library:
        assert [entry.trace_json for entry in library.records()] == [record(0).trace_json, record(1).trace_json]
        assert [entry.trace_json for entry in library.best("1", k=9)] == [record(0).trace_json, record(1).trace_json]
        assert library.environments() == {}
        assert library.makings([1, 2]) == {}
        assert library.carried() == {}
        assert library.fragments('{"kind": "llvm"}', ["1"]) == {}
        assert {time.environment for time in library.kept_times(library.scopes())} <= {""}
        assert library.claims.poison("1") == frozenset()
        assert library.jobs() == []
        assert library.memory.programs("1", feature_version="v") == {}
        assert library.memory.samples("v", limit=9) == []
        assert library.memory.newest_snapshot("v") is None
        assert library.memory.stand("me", lease_sec=60) is None
        with pytest.raises(LibraryReadOnly):
            library.add_record(record(2))
        with pytest.raises(LibraryReadOnly):
            library.check_writable()


@pytest.mark.parametrize("version", VERSIONS)
def test_a_library_in_a_directory_of_others_is_read(tmp_path: Path, version: int) -> None:
    """SQLite would create its log there even to read, so the file is opened as immutable."""
    path = tmp_path / "a %3f library.sqlite"
    make(str(path), version)
    before = path.read_bytes()

    with read_only(tmp_path):
        assert_it_is_read(str(path))

    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


@pytest.mark.slow
@pytest.mark.parametrize("version", VERSIONS)
def test_a_role_that_may_only_read_reads(url_of_postgres: str, version: int) -> None:
    """PostgreSQL refuses to change the tables, so they are read as they are."""
    make(url_of_postgres, version)
    with connected(url_of_postgres) as connection:
        connection.exec_driver_sql("DROP ROLE IF EXISTS reader")
        connection.exec_driver_sql("CREATE ROLE reader LOGIN")
        connection.exec_driver_sql("GRANT USAGE ON SCHEMA public TO reader")
        connection.exec_driver_sql("GRANT SELECT ON ALL TABLES IN SCHEMA public TO reader")
    reader = database_url(url_of_postgres).set(username="reader", drivername="postgresql")
    try:
        assert_it_is_read(reader.render_as_string(hide_password=False))
        assert version_of(url_of_postgres) == version
    finally:
        with connected(url_of_postgres) as connection:
            connection.exec_driver_sql("DROP OWNED BY reader")
            connection.exec_driver_sql("DROP ROLE reader")
