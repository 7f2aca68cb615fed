"""Jobs that leave older records out, on SQLite and on PostgreSQL."""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from cross.targets.target import parse_target
from fleet.domain.scope import RecordScope, ScopeFilter
from fleet.domain.workload import Workload
from fleet.library import Library, Record, RecordKind, StoredWorkload, trace_digest
from fleet.optimizer.library_coverage import Coverage, cover
from fleet.optimizer.recall import recall

SCOPE = RecordScope(target_json='{"kind":"llvm"}', device_model="m", tvm_version="1")
NOW = datetime(2026, 11, 1, tzinfo=UTC)
SINCE = NOW - timedelta(days=90)
OLD, NEW = "[[0],[]]", "[[1],[]]"
WORKLOAD = Workload(name="matmul", weight=1, mod_json="{}", shash="1", flop=1.0, args=())


@pytest.fixture
def library(url: str) -> Iterator[Library]:
    """Yield a library in which the older records of a workload are faster."""
    with Library.open(url) as library:
        library.add_workload(StoredWorkload(shash="1", name="matmul", mod_json="{}"))
        for trace, days, sec in ((OLD, 91, 1.0), (NEW, 89, 2.0)):
            add(library, trace, days, sec)
        add(library, "", 91, 3.0, kind=RecordKind.BASELINE)
        yield library


def add(library: Library, trace: str, days: int, sec: float, kind: RecordKind = RecordKind.CANDIDATE) -> None:
    library.add_record(
        Record(
            workload="1",
            scope=SCOPE,
            trace_json=trace,
            kind=kind,
            run_secs=(sec,),
            checked=True,
            created_at=NOW - timedelta(days=days),
        )
    )


def test_a_job_knows_records_that_are_not_older(library: Library) -> None:
    """Trials, times and the unscheduled program's time."""
    [every] = recall(library, [WORKLOAD], SCOPE)
    [newer] = recall(library, [WORKLOAD], SCOPE, since=SINCE)

    assert (every.trials_before, every.right, every.untuned_sec) == (2, {OLD: 1.0, NEW: 2.0}, 3.0)
    assert (newer.trials_before, newer.right, newer.untuned_sec) == (1, {NEW: 2.0}, math.inf)
    assert [one.trace_json for one in newer.records] == [NEW]


def test_only_the_schedules_of_older_records_count(library: Library) -> None:
    """A workload without newer records begins with them, the fastest first."""
    [found] = recall(library, [WORKLOAD], SCOPE, since=NOW)

    assert (found.trials_before, found.records) == (0, [])
    assert [one.trace_json for one in found.seeds] == [OLD, NEW]


def test_coverage_leaves_older_records_out(library: Library) -> None:
    """Without a newer one nothing is known of the operator."""
    target = parse_target(SCOPE.target_json)

    [every] = cover(library, [WORKLOAD], target, SCOPE)
    [newer] = cover(library, [WORKLOAD], target, ScopeFilter(measured_since=NOW).of(SCOPE))

    assert (every.coverage, newer.coverage) == (Coverage.EXACT, Coverage.NOTHING)


def test_an_older_candidate_may_be_measured_again(library: Library) -> None:
    """The newer one is not, as without a limit."""
    job = library.start_job(title="m")
    traces = {trace_digest(one): one for one in (OLD, NEW)}

    assert library.claims.take(job.name, "1", SCOPE, traces) == set()
    assert library.claims.take(job.name, "1", SCOPE, traces, since=SINCE) == {trace_digest(OLD)}
    assert library.count_older(["1"], ScopeFilter(measured_since=SINCE).of(SCOPE)) == 1
