"""The record that counts for a candidate, and the counts of a job, on SQLite and on PostgreSQL."""

from __future__ import annotations

import math
from dataclasses import replace

from fleet.domain.measuring import ErrorKind
from fleet.domain.scope import ScopeFilter
from fleet.library import Library, RecordKind, StoredWorkload
from tests.contract.library_records import MATMUL, PI5, SCOPE, numbers, record
from tests.contract.library_records import library as library


def test_a_target_is_found_however_it_is_spelled(library: Library) -> None:
    """TVM's own spelling of a target finds the records stored with the user's, and another target does not."""
    library.add_record(record(1))
    by_tvm = '{"tag":"","num-cores":2,"mcpu":"x86-64-v3","keys":["cpu"],"kind":"llvm","feature.has_sve":false}'

    assert numbers(library.best(MATMUL.shash, ScopeFilter(target_json=by_tvm))) == [1]
    assert library.best(MATMUL.shash, ScopeFilter(target_json='{"kind":"llvm","mcpu":"x86-64-v4","num-cores":2}')) == []


def test_best_is_of_the_device_model_and_version_asked_for(library: Library) -> None:
    """Times of other hardware or of another TVM never count."""
    library.add_records(
        [record(1, 3e-3), record(2, 1e-3, scope=PI5), record(3, 2e-3, scope=replace(SCOPE, tvm_version="0.28"))]
    )

    assert numbers(library.best(MATMUL.shash, SCOPE, k=9)) == [1]
    assert numbers(library.best(MATMUL.shash, k=9)) == [2, 3, 1]


def test_the_newest_time_of_a_candidate_speaks(library: Library) -> None:
    """A candidate that was measured again has the second time, and is listed once."""
    library.add_records([record(1, 1e-3), record(2, 2e-3), record(1, 3e-3)])

    found = library.best(MATMUL.shash, k=9)

    assert numbers(found) == [2, 1]
    assert found[1].median_sec == 3e-3
    assert len(library.records(MATMUL.shash)) == 3


def test_a_disturbed_time_gives_way_to_a_calm_one(library: Library) -> None:
    """A calm time wins in any order; only if all of a candidate's times are disturbed does the newest of them count."""
    old, new = {"disturbances": ["throttled"]}, {"disturbances": [{"kind": "OTHER", "text": "throttled"}]}
    calm: dict[str, object] = {"disturbances": [], "before": {"disturbances": "none"}}
    library.add_records([record(1, 1e-3), record(1, 9e-3, provenance=new)])
    library.add_records([record(2, 8e-3, provenance=new), record(2, 2e-3, provenance=calm)])
    library.add_records([record(3, 7e-3, provenance=old), record(3, 3e-3, provenance=new)])

    found = library.best(MATMUL.shash, k=9)

    assert [(candidate, entry.median_sec) for candidate, entry in zip(numbers(found), found, strict=True)] == [
        (1, 1e-3),
        (2, 2e-3),
        (3, 3e-3),
    ]
    assert [entry.id for entry in library.candidates(MATMUL.shash)] == sorted(entry.id for entry in found)


def test_a_candidate_has_a_time_with_each_tvm(library: Library) -> None:
    """Another TVM builds another program from the same schedule, so neither time replaces the other."""
    newer = replace(SCOPE, tvm_version="0.28")
    library.add_records([record(1, 1e-3), record(1, 2e-3, scope=newer)])

    assert [entry.median_sec for entry in library.best(MATMUL.shash, k=9)] == [1e-3, 2e-3]
    assert library.scopes([MATMUL.shash]) == [SCOPE, newer]


def test_a_failed_repetition_does_not_take_a_time_away(library: Library) -> None:
    """A candidate keeps its time when its second measurement fails for lack of a lease."""
    library.add_records([record(1, 1e-3), record(1, None, error=ErrorKind.LEASE_ENDED)])

    assert numbers(library.best(MATMUL.shash)) == [1]


def test_failures_and_baselines_are_never_best(library: Library) -> None:
    """Only candidates with times are ranked."""
    library.add_records([record(1, None), record(2, 1e-6, kind=RecordKind.BASELINE, trace_json=""), record(3, 1e-3)])

    assert numbers(library.best(MATMUL.shash, k=9)) == [3]
    baseline = library.baseline(MATMUL.shash)
    assert baseline is not None
    assert baseline.median_sec == 1e-6


def test_a_wrong_candidate_never_comes_back(library: Library) -> None:
    """After mark_wrong no time of that candidate counts, whatever its device and however often it is measured again."""
    fast, slow = library.add_records([record(1, 1e-3), record(2, 2e-3)])
    library.mark_wrong(fast.id, "max error 0.5")
    library.add_records([record(1, 1e-4), record(1, 1e-4, scope=PI5)])

    assert [entry.id for entry in library.best(MATMUL.shash, k=9)] == [slow.id]
    assert library.best(MATMUL.shash, PI5) == []
    wrong = library.records(MATMUL.shash)[0]
    assert (wrong.error, wrong.error_message, wrong.checked) == (ErrorKind.WRONG_OUTPUT, "max error 0.5", False)
    assert wrong.run_secs == (1e-3,)
    assert wrong.median_sec == math.inf


def test_checked_only_returns_records_with_compared_outputs(library: Library) -> None:
    """A check of one measurement covers the candidate, measured again too."""
    [first, _] = library.add_records([record(1, 2e-3), record(2, 1e-3)])
    library.mark_checked(first.id)
    library.add_record(record(1, 3e-3))

    assert numbers(library.best(MATMUL.shash, k=9, checked_only=True)) == [1]
    assert library.best(MATMUL.shash, checked_only=True)[0].median_sec == 3e-3


def test_a_wrong_workload_leaves_others_alone(library: Library) -> None:
    """The same trace text on another workload is another candidate."""
    library.add_workload(StoredWorkload(shash="18", name="other", mod_json="{}"))
    wrong, _ = library.add_records([record(1), record(1, workload="18")])
    library.mark_wrong(wrong.id)

    assert numbers(library.best("18")) == [1]


def test_trial_counts_are_verdicts_on_distinct_candidates(library: Library) -> None:
    """Repetitions count once, failures of the candidate count, failures of lease or device do not."""
    library.add_records([record(1), record(1), record(2, None), record(3, None, error=ErrorKind.DEVICE_FAULTED)])
    library.add_record(record(4, scope=PI5))

    assert library.trial_counts([MATMUL.shash, "18"], SCOPE) == {MATMUL.shash: 2, "18": 0}


def test_a_job_counts_candidates_not_measurements(library: Library) -> None:
    """A candidate that was measured again, as the best few and disturbed ones are, is one trial of its workload,
    too.
    """
    job = library.start_job(title="m")
    library.add_job_workloads(job.name, {MATMUL.shash: 1.0})
    new = [record(1), record(1), record(2), record(3, None), record(3, None), record(9, kind=RecordKind.STATIC)]
    library.add_records(replace(entry, job_name=job.name) for entry in new)

    summary = library.job(job.name)

    [workload] = summary.workloads
    assert (summary.job.trials_done, summary.job.trials_failed) == (3, 1)
    assert (workload.trials, workload.errors) == (3, {ErrorKind.CRASHED: 1})


def test_a_static_schedule_is_a_candidate_but_no_trial(library: Library) -> None:
    """It may be the best, and is exported, but it cost no trial."""
    library.add_records([record(1, 1e-3, kind=RecordKind.STATIC), record(2, 2e-3)])

    assert numbers(library.best(MATMUL.shash, k=9)) == [1, 2]
    assert numbers(library.candidates(MATMUL.shash)) == [1, 2]
    assert numbers(library.records(kinds=[RecordKind.CANDIDATE])) == [2]
    assert library.trial_counts([MATMUL.shash]) == {MATMUL.shash: 1}


def test_several_workloads_are_answered_as_each_alone(library: Library) -> None:
    """Each has its own fastest candidates, baseline and newest record of a kind; those without any are left out."""
    shashes = [MATMUL.shash, "18", "19", "20"]
    library.add_workloads(replace(MATMUL, shash=shash) for shash in shashes)
    for number, shash in enumerate(shashes[:3]):
        library.add_records(
            [
                record(10 * number + 1, (3 - number) * 1e-3, workload=shash, checked=True),
                record(10 * number + 2, 1e-4, workload=shash),
                record(10 * number + 3, 5e-3, workload=shash, kind=RecordKind.IN_PLACE),
                record(10 * number + 4, 4e-3, workload=shash, kind=RecordKind.IN_PLACE),
                record(0, 9e-3 + number, workload=shash, kind=RecordKind.BASELINE),
            ]
        )

    checked = library.best_of(shashes, SCOPE, k=2, checked_only=True)
    fastest = library.best_of(shashes, SCOPE, k=2)
    untuned = library.baselines(shashes, SCOPE)
    placed = library.newest_of(shashes, SCOPE, kind=RecordKind.IN_PLACE)

    assert {shash: numbers(found) for shash, found in checked.items()} == {"17": [1], "18": [11], "19": [21]}
    assert fastest == {shash: library.best(shash, SCOPE, k=2) for shash in shashes[:3]}
    assert [len(found) for found in fastest.values()] == [2, 2, 2]
    assert untuned == {shash: library.baseline(shash, SCOPE) for shash in shashes[:3]}
    assert {shash: numbers([found]) for shash, found in placed.items()} == {"17": [4], "18": [14], "19": [24]}
