"""Removal of old records, on SQLite and on PostgreSQL."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
import sqlalchemy as sa

from fleet.domain.making import Making
from fleet.domain.measuring import Disturbance, DisturbanceKind
from fleet.library import JobState, Library, RecordKind, RecordProgram, schema
from fleet.library.record_pruning import Kept
from tests.contract.library_records import PI5, SCOPE, numbers, record
from tests.contract.library_records import library as library
from tests.contract.test_library_migrations import connected

OLD = datetime(2026, 1, 1, tzinfo=UTC)
SINCE = OLD + timedelta(days=1)
PROGRAM = RecordProgram(program_hash="ff", feature_version="v", stores=b"s")


def add(library: Library, number: int, sec: float | None = 1e-3, **facts: object) -> int:
    """Store an old record with rows in all tables; return its id."""
    known: dict[str, object] = {
        "created_at": OLD,
        "program": PROGRAM,
        "environment": {"kernel": "6.1"},
        "making": Making(object_digest="sha256:1", version="1.0"),
    }
    return library.add_record(record(number, sec, **(known | facts))).id


def left(library: Library) -> list[int]:
    return sorted(numbers(library.records(kinds=tuple(RecordKind), with_reverted=True)))


def test_the_best_of_each_scope_and_the_young_stay(library: Library) -> None:
    """Also the best checked ones, if others are faster. A trial run counts the same."""
    add(library, 1, 1e-3)
    add(library, 2, 2e-3)
    add(library, 3, 3e-3, checked=True)
    add(library, 4, 4e-3, checked=True)
    add(library, 5, 9e-3, scope=PI5)
    add(library, 6, None)
    add(library, 7, 9e-3, created_at=SINCE)

    told = library.prune_records(best=1, made_before=SINCE, is_trial=True)
    assert left(library) == [1, 2, 3, 4, 5, 6, 7]
    gone = library.prune_records(best=1, made_before=SINCE)

    assert told == gone
    assert (gone.removed, gone.kept) == (3, {Kept.BEST: 3, Kept.YOUNG: 1})
    assert left(library) == [1, 3, 5, 7]
    assert library.scopes() == [SCOPE, PI5]
    assert library.prune_records(best=1, made_before=SINCE).removed == 0


def test_the_time_that_counts_for_a_candidate_stays(library: Library) -> None:
    """A disturbed time that is faster does not count, and neither does an earlier one."""
    busy = Disturbance(DisturbanceKind.CONTENTION, "busy")
    add(library, 1, 3e-3)
    add(library, 1, 2e-3)
    add(library, 1, 1e-3, provenance={"disturbances": [{"kind": busy.kind.value, "text": busy.text}]})
    add(library, 2, 5e-3)

    library.prune_records(best=1, made_before=SINCE)

    assert [
        (one.run_secs, number) for one, number in zip(library.records(), numbers(library.records()), strict=True)
    ] == [
        ((2e-3,), 1),
        ((5e-3,), 2),
    ]


@pytest.mark.parametrize("state", [JobState.RUNNING, JobState.FINISHED])
def test_records_of_running_jobs_stay(library: Library, state: JobState) -> None:
    """As long as the job may go on."""
    job = library.start_job(title="m")
    add(library, 1, 1e-3)
    add(library, 2, 2e-3, job_name=job.name)
    add(library, 3, 1e-4)
    if state is not JobState.RUNNING:
        library.finish_job(job.name, state)

    gone = library.prune_records(best=1, made_before=SINCE)

    assert left(library) == ([2, 3] if state is JobState.RUNNING else [3])
    assert gone.removed == (1 if state is JobState.RUNNING else 2)


def test_other_kinds_of_records_stay(library: Library) -> None:
    """Untuned programs, choices in whole models, and measurements behind records of another TVM version."""
    add(library, 1, kind=RecordKind.BASELINE)
    add(library, 2, kind=RecordKind.IN_PLACE)
    carried = add(library, 3, 3e-3)
    add(library, 4, 1e-3)
    assert library.carry(carried, "0.28.0", Making(object_digest="sha256:1", version="2.0")) is not None

    library.prune_records(best=1, made_before=SINCE)

    assert left(library) == [1, 2, 3, 3, 4]
    assert library.scopes() == [SCOPE, replace(SCOPE, tvm_version="0.28.0")]


def test_the_number_of_the_last_record_is_not_given_again(library: Library) -> None:
    """Trainers and other jobs remember the last number that they have seen."""
    add(library, 1, 1e-3)
    last = add(library, 2, 2e-3)

    gone = library.prune_records(best=1, made_before=SINCE)

    assert gone.kept == {Kept.BEST: 1, Kept.NEWEST: 1}
    assert add(library, 3) > last


def test_nothing_of_a_removed_record_is_left(library: Library, url: str) -> None:
    """Neither features nor environment nor making, in any table with records' numbers."""
    gone = add(library, 1, 2e-3)
    add(library, 2, 1e-3)
    add(library, 3, 3e-3)

    library.prune_records(best=1, made_before=SINCE)

    tables = [table for table in schema.metadata.tables.values() if "record_id" in table.c]
    assert len(tables) >= 6
    with connected(url) as connection:
        for table in tables:
            assert connection.scalar(sa.select(sa.func.count()).where(table.c.record_id == gone)) == 0
