"""Libraries of earlier versions: brought to today's and back, whole or not at all, on SQLite and on PostgreSQL."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from fleet.domain.proving import Proof, ProofVerdict
from fleet.domain.scope import RecordScope
from fleet.errors import InvalidRequest, LibraryError
from fleet.library import JobState, Library, Record, RecordKind, StoredWorkload, schema
from fleet.library.engine import database_url
from fleet.library.migrations import migrate
from fleet.library.versions import change_version
from tests.programs import here

WORKLOAD = StoredWorkload(shash="1", name="w", mod_json="{}")
EARLIER = range(schema.OLDEST_VERSION, schema.SCHEMA_VERSION)
SCOPES_SINCE = 9
"""First version with a table of scopes; rows that a test inserts are not in it."""


def record(number: int, kind: RecordKind = RecordKind.CANDIDATE, **more: object) -> Record:
    scope = RecordScope(target_json='{"kind":"llvm"}', device_model="m", tvm_version="0.27")
    given = Record(workload="1", scope=scope, trace_json=f"[[{number}],[]]", run_secs=(1.0,), kind=kind)
    return replace(given, **more)  # type: ignore[arg-type]


@contextmanager
def connected(url: str) -> Iterator[sa.Connection]:
    engine = sa.create_engine(database_url(url))
    try:
        with engine.begin() as connection:
            yield connection
    finally:
        engine.dispose()


def make_library(url: str, version: int) -> None:
    """Make a library of an earlier version."""
    with connected(url) as connection:
        migrate(connection, 0, version)
        row = {"schema_version": version, "created_at": datetime.now(UTC)}
        connection.execute(schema.library.insert(), row)


def add_old_records(url: str, count: int) -> None:
    """Store rows of tables that are the same in every version."""
    with connected(url) as connection:
        connection.execute(
            schema.workloads.insert(), {"id": 1, "shash": "1", "name": "w", "mod_json": "{}", "flop": 0.0, "args": []}
        )
        row = {
            "workload_id": 1,
            "kind": "candidate",
            "target_json": '{"kind":"llvm"}',
            "target_key": '{"kind":"llvm"}',
            "device_model": "m",
            "device_name": "",
            "device_fingerprint": "",
            "tvm_version": "0.27",
            "run_secs": [1.0],
            "median_sec": 1.0,
            "error_message": "",
            "artifact_digest": "",
            "provenance": {},
            "created_at": datetime.now(UTC),
        }
        rows = [
            row | {"uid": str(number), "trace_json": f"[[{number}],[]]", "trace_digest": str(number)}
            for number in range(count)
        ]
        connection.execute(schema.records.insert(), rows)


def described(url: str) -> dict[str, list[tuple[str, str, bool]]]:
    """Name, type and nullability of each column, by table; indices and keys by name."""
    with connected(url) as connection:
        inspector = sa.inspect(connection)
        return {
            table: sorted((column["name"], str(column["type"]), column["nullable"]) for column in columns)
            + sorted((str(index["name"]), "index", True) for index in inspector.get_indexes(table))
            + sorted((str(key["constrained_columns"]), "key", False) for key in inspector.get_foreign_keys(table))
            for table, columns in ((name, inspector.get_columns(name)) for name in inspector.get_table_names())
        }


def version_of(url: str) -> int:
    with connected(url) as connection:
        return int(connection.execute(sa.select(schema.library.c.schema_version)).scalar_one())


@pytest.mark.parametrize("version", EARLIER)
def test_a_library_of_an_earlier_version_becomes_one_of_today(url: str, version: int) -> None:
    """Its records are kept, its tables are those of a new library, and new kinds of records are stored beside them."""
    make_library(url, version)
    add_old_records(url, 3)

    with Library.open(url) as library:
        library.add_record(record(3, RecordKind.STATIC))
        if version < SCOPES_SINCE:
            assert library.scopes() == library.scopes(["1"])
        found = [entry.trace_json for entry in library.records()]

    assert found == [record(number).trace_json for number in range(4)]
    assert version_of(url) == schema.SCHEMA_VERSION
    with connected(url) as connection:
        assert compare_metadata(MigrationContext.configure(connection), schema.metadata) == []


@pytest.mark.parametrize("version", EARLIER)
def test_a_library_goes_back_to_an_earlier_version(url: str, version: int, tmp_path: Path) -> None:
    """Its records stay, and its tables equal those of that version."""
    with Library.open(url) as library:
        library.add_workload(WORKLOAD)
        library.add_records(record(number) for number in range(3))

    with connected(url) as connection:
        migrate(connection, schema.SCHEMA_VERSION, version)

    assert version_of(url) == version
    if "://" not in url:
        make_library(str(tmp_path / "old.sqlite"), version)
        assert described(str(tmp_path / "old.sqlite")) == described(url)
    with Library.open(url) as library:
        assert len(library.records()) == 3


def test_version_1_takes_static_schedules_for_trials_and_has_no_place_for_those_in_models(url: str) -> None:
    """It knows candidates and baselines only."""
    kinds = [RecordKind.CANDIDATE, RecordKind.STATIC, RecordKind.IN_PLACE, RecordKind.BASELINE]
    with Library.open(url) as library:
        library.add_workload(WORKLOAD)
        library.add_records(record(number, kind) for number, kind in enumerate(kinds))

    with connected(url) as connection:
        migrate(connection, schema.SCHEMA_VERSION, 1)
        left = connection.execute(sa.select(schema.records.c.kind).order_by(schema.records.c.id)).scalars().all()

    assert left == ["candidate", "candidate", "baseline"]


def test_version_6_has_reverted_kinds_and_finds_disturbances_in_the_provenance(url: str) -> None:
    """Reverted and disturbed records stay so on the way down to version 6 and up again."""
    disturbed = {"disturbances": [{"kind": "OTHER", "text": "throttled"}]}
    with Library.open(url) as library:
        library.add_workload(WORKLOAD)
        jobs = [library.start_job(title=title).name for title in "ab"]
        new = [record(0, job_name=jobs[0]), record(1, job_name=jobs[1]), record(2, RecordKind.STATIC, job_name=jobs[1])]
        library.add_records([*new, record(0, run_secs=(9.0,), provenance=disturbed)])
        library.finish_job(jobs[1], JobState.FINISHED)
        library.queue.revert(jobs[1])

    with connected(url) as connection:
        migrate(connection, schema.SCHEMA_VERSION, 6)
        kinds = connection.execute(sa.select(schema.records.c.kind).order_by(schema.records.c.id)).scalars().all()
        assert not sa.inspect(connection).has_table("disturbed_records")

    assert kinds == ["candidate", "reverted candidate", "reverted static", "candidate"]
    with Library.open(url) as library:
        assert [found.run_secs for found in library.best("1", k=9)] == [(1.0,)]
        assert library.queue.get(jobs[1]).trials_done == 1
        library.queue.revert(jobs[1], is_undone=True)
        assert [found.kind for found in library.records()] == [new_one.kind for new_one in new] + ["candidate"]
    with connected(url) as connection:
        assert connection.execute(sa.select(schema.disturbed_records.c.record_id)).scalars().all() == [4]


def test_version_5_knows_no_proofs(url: str) -> None:
    """Downgrading keeps records with a refuted time failed, under an error kind that the older schema knows."""
    refuted = Proof(verdict=ProofVerdict.REFUTED, message="7 calls took longer")
    with Library.open(url) as library:
        library.add_workload(WORKLOAD)
        stored = library.add_record(record(1))
        library.add_proof("1", stored.scope, stored.trace_json, refuted)

    with connected(url) as connection:
        migrate(connection, schema.SCHEMA_VERSION, 5)
        left = connection.execute(sa.select(schema.records.c.error)).scalars().all()

    assert left == ["RUN_FAILED"]


def test_a_migration_that_fails_leaves_the_library_as_it_was(url: str) -> None:
    """No table of the new version is left behind, and the version stays."""
    make_library(url, 2)
    add_old_records(url, 1)
    with connected(url) as connection:
        connection.execute(sa.text("CREATE TABLE trainer (x INTEGER)"))
    before = described(url)

    with pytest.raises(LibraryError, match=r"trainer.* already exists"):
        Library.open(url)

    assert described(url) == before
    assert version_of(url) == 2


@pytest.mark.slow
def test_one_of_two_processes_migrates_and_the_other_waits(url: str) -> None:
    """Both open an old library at once, and both store into it."""
    make_library(url, 2)
    add_old_records(url, 1)
    code = f"""
import sys
from tests.contract.test_library_migrations import record
from fleet.library import Library
sys.stdin.readline()
with Library.open({url!r}) as library:
    library.add_record(record(int(sys.argv[1])))
"""
    openers = [
        subprocess.Popen([sys.executable, "-c", code, number], env=here(), stdin=subprocess.PIPE, text=True)
        for number in ("1", "2")
    ]
    for opener in openers:
        assert opener.stdin is not None
        opener.stdin.write("go\n")
        opener.stdin.close()

    assert [opener.wait(100) for opener in openers] == [0, 0]
    with Library.open(url) as library:
        assert len(library.records()) == 3


@pytest.mark.slow
def test_opening_a_library_of_today_loads_no_alembic(tmp_path: Path) -> None:
    """Importing it would dominate the start-up time of every command that opens the library."""
    path = tmp_path / "library.sqlite"
    Library.open(path).close()
    code = f"""
import sys
from fleet.library import Library
with Library.open({str(path)!r}) as library:
    library.jobs()
print([name for name in sys.modules if name.startswith("alembic")])
"""

    done = subprocess.run([sys.executable, "-c", code], env=here(), capture_output=True, text=True, check=True)

    assert done.stdout == "[]\n"


@pytest.mark.parametrize("version", EARLIER)
def test_a_library_goes_back_on_demand_with_a_copy_made_first(tmp_path: Path, version: int) -> None:
    """The copy equals the original library; if no copy can be made, the library is unchanged."""
    path, copy = tmp_path / "library.sqlite", tmp_path / "copy"
    with Library.open(path) as library:
        library.add_workload(WORKLOAD)
        library.add_records(record(number) for number in range(3))

    done = change_version(path, version, backup=copy)
    again = change_version(path, version)
    with pytest.raises(LibraryError, match="exists"):
        change_version(path, schema.SCHEMA_VERSION, backup=copy)

    assert (done.found, done.backup, again.found, again.backup) == (schema.SCHEMA_VERSION, copy, version, None)
    assert (version_of(str(path)), version_of(str(copy))) == (version, schema.SCHEMA_VERSION)
    with Library.open(copy) as library:
        assert len(library.records()) == 3


def test_a_library_in_use_is_not_changed(tmp_path: Path) -> None:
    """A running job would find its tables gone."""
    with Library.open(tmp_path / "library.sqlite") as library:
        job = library.start_job(title="t")
        with pytest.raises(InvalidRequest, match=job.name):
            change_version(tmp_path / "library.sqlite", 3)
        library.finish_job(job.name, JobState.FINISHED)
        optimizer = library.queue.register(tracker="here:1", holder="u@h")
        with pytest.raises(InvalidRequest, match=optimizer):
            change_version(tmp_path / "library.sqlite", 3)

    assert version_of(str(tmp_path / "library.sqlite")) == schema.SCHEMA_VERSION


@pytest.mark.parametrize(("version", "says"), [(0, "known are"), (99, "known are"), (3, "there is no library")])
def test_an_invalid_version_or_library_is_refused(tmp_path: Path, version: int, says: str) -> None:
    """No library and no copy is made."""
    with pytest.raises(LibraryError, match=says):
        change_version(tmp_path / "none.sqlite", version)

    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_of_postgresql_its_user_makes_the_copy(url_of_postgres: str) -> None:
    """PostgreSQL is migrated only after the user confirms a backup."""
    Library.open(url_of_postgres).close()

    with pytest.raises(LibraryError, match="pg_dump"):
        change_version(url_of_postgres, 3)
    done = change_version(url_of_postgres, 3, has_backup=True)

    assert (done.found, done.backup, version_of(url_of_postgres)) == (schema.SCHEMA_VERSION, None, 3)
