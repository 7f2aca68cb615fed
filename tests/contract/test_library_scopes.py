"""The table of scopes, against the query over all records, on SQLite and on PostgreSQL."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import sqlalchemy as sa

from fleet.domain.proving import Proof, ProofVerdict
from fleet.domain.scope import ScopeFilter
from fleet.library import JobState, Library, Record, RecordKind, schema
from tests.contract.library_records import MATMUL, PI5, SCOPE, record
from tests.contract.library_records import library as library
from tests.contract.test_library_migrations import connected

SCOPES = [SCOPE, PI5, replace(SCOPE, tvm_version="0.28"), replace(SCOPE, target_json="llvm")]
KINDS = [RecordKind.CANDIDATE, RecordKind.STATIC, RecordKind.BASELINE]


def random_record(randomness: random.Random, jobs: list[str]) -> Record:
    return record(
        randomness.randrange(6),
        randomness.choice([1e-3, 2e-3, None]),
        scope=randomness.choice(SCOPES),
        kind=randomness.choice(KINDS),
        job_name=randomness.choice(["", *jobs]),
        uid=str(randomness.randrange(60)),
    )


def change(library: Library, randomness: random.Random, jobs: list[str]) -> None:
    """Change the records in one of the ways that can change a scope."""
    stored = library.records(kinds=KINDS, with_reverted=True)
    way = randomness.choice(["add", "add", "wrong", "refute", "revert", "undo"])
    if way == "add" or not stored:
        library.add_records(random_record(randomness, jobs) for _ in range(randomness.randrange(4)))
    elif way == "wrong":
        library.mark_wrong(randomness.choice(stored).id)
    elif way == "refute":
        one = randomness.choice(stored)
        library.add_proof(one.workload, one.scope, one.trace_json, Proof(verdict=ProofVerdict.REFUTED, message="no"))
    else:
        library.queue.revert(randomness.choice(jobs), is_undone=way == "undo")


def test_scopes_are_those_of_the_records_after_any_change(library: Library) -> None:
    """In the same order, for each filter."""
    randomness = random.Random(7)
    jobs = [library.start_job(title=title).name for title in "ab"]
    for name in jobs:
        library.finish_job(name, JobState.FINISHED)
    seen = set()
    for _ in range(80):
        change(library, randomness, jobs)
        for within in (ScopeFilter(), ScopeFilter(device_model="pi4"), ScopeFilter(target_json="llvm"), SCOPE):
            assert library.scopes(within=within) == library.scopes([MATMUL.shash], within)
        seen.add(len(library.scopes()))

    assert seen >= {0, 1, 2, 3}


def test_records_that_two_writers_store_at_once_count_once(library: Library, url: str) -> None:
    """Two imports of the same file store the same records."""
    same = [record(number, uid=str(number)) for number in range(50)]

    with ThreadPoolExecutor(2) as writers:
        list(writers.map(library.add_imported, [same, same[::-1]]))

    with connected(url) as connection:
        assert connection.scalars(sa.select(schema.record_scopes.c.times)).all() == [50]
    for stored in library.records():
        library.mark_wrong(stored.id)
    assert library.scopes() == []


def test_a_scope_whose_first_time_is_wrong_moves_to_its_next(library: Library) -> None:
    """Scopes are in the order of their first time."""
    first, *_ = library.add_records([record(1), record(2, scope=PI5), record(3)])
    assert library.scopes() == [SCOPE, PI5]

    library.mark_wrong(first.id)

    assert library.scopes() == library.scopes([MATMUL.shash]) == [PI5, SCOPE]
