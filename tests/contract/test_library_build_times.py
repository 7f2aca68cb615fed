"""Best times by build, on SQLite and on PostgreSQL."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

from fleet.domain.environment import environment_digest
from fleet.domain.making import Making
from fleet.library import JobState, Library, RecordKind, StoredWorkload, build_times, schema
from fleet.library.migrations import migrate
from fleet.optimizer.library_report import read_figures
from tests.contract.library_records import MATMUL, PI5, SCOPE, record
from tests.contract.library_records import library as library
from tests.contract.test_library_migrations import connected

OLD, NEW = {"kernel": "6.1"}, {"kernel": "6.6"}
V8, V9 = Making(version="0.8"), Making(version="0.9")
DISTURBED = {"disturbances": [{"kind": "CONTENTION", "text": "busy"}]}
NEWER = replace(SCOPE, tvm_version="0.28.0")


def test_each_build_has_its_best_time(library: Library) -> None:
    """TVM, version of this package, environment and device model are separate; unknown ones are empty."""
    when = datetime(2026, 5, 1, tzinfo=UTC)
    library.add_records(
        [
            record(1, 3e-3),
            record(1, 2e-3, making=V8, environment=OLD),
            record(2, 1e-3, making=V8, environment=OLD, created_at=when),
            record(1, 2e-3, making=V9, environment=NEW),
            record(1, 4e-3, scope=PI5, making=V9, environment=NEW),
            record(1, 5e-3, scope=NEWER, making=V9, environment=NEW),
        ]
    )

    found = library.build_times()

    assert [(one.device_model, one.tvm_version, one.version, one.environment, one.best_sec) for one in found] == [
        ("pi4", "0.27.0", "", "", 3e-3),
        ("pi4", "0.27.0", "0.8", environment_digest(OLD), 1e-3),
        ("pi4", "0.27.0", "0.9", environment_digest(NEW), 2e-3),
        ("pi5", "0.27.0", "0.9", environment_digest(NEW), 4e-3),
        ("pi4", "0.28.0", "0.9", environment_digest(NEW), 5e-3),
    ]
    assert {one.workload for one in found} == {MATMUL.shash}
    assert [one.candidates for one in found] == [1, 2, 1, 1, 1]
    assert found[1].last_at >= when


def test_a_candidate_counts_once_in_a_build(library: Library) -> None:
    """By its newest undisturbed time; failed, wrong and unscheduled ones count for nothing."""
    library.add_records(
        [
            record(1, 1e-3),
            record(1, 3e-3),
            record(1, 2e-3, provenance=DISTURBED),
            record(2, 1e-6, checked=False),
            record(3, None),
            record(4, 1e-6, kind=RecordKind.BASELINE),
        ]
    )

    (found,) = library.build_times()

    assert (found.best_sec, found.candidates, found.is_checked) == (3e-3, 1, False)


def test_checked_candidates_are_preferred(library: Library) -> None:
    """A check on one device holds on all, as in `best`."""
    library.add_records([record(1, 1e-3), record(2, 2e-3), record(2, 9e-3, scope=PI5, checked=True)])

    assert [(one.best_sec, one.is_checked) for one in library.build_times()] == [(2e-3, True), (9e-3, True)]


def test_records_of_reverted_jobs_count_for_nothing(library: Library) -> None:
    """As everywhere."""
    job = library.start_job(title="m").name
    library.add_records([record(1, job_name=job)])
    assert len(library.build_times()) == 1

    library.finish_job(job, JobState.FINISHED)
    library.queue.revert(job)

    assert library.build_times() == []


def test_jobs_are_found_by_their_records(library: Library) -> None:
    """A record without a job is left out."""
    job = library.start_job(title="m", conditions={"selector": "cpu"}).name
    own, other = library.add_records([record(1, job_name=job), record(2)])

    assert library.jobs_of([own.id, other.id]) == {own.id: ("m", {"selector": "cpu"})}
    assert library.jobs_of([]) == {}


def test_a_library_of_an_older_version_has_builds_without_versions(url: str) -> None:
    """One that may only be read has no tables for environments and builds."""
    with Library.open(url) as library:
        library.add_workload(MATMUL)
        library.add_record(record(1, 1e-3, making=V8, environment=OLD))
    with connected(url) as connection:
        migrate(connection, schema.SCHEMA_VERSION, 3)

    with connected(url) as connection:
        (found,) = build_times.read(connection)
    assert (found.best_sec, found.version, found.environment) == (1e-3, "", "")


def test_the_figures_of_a_library_come_from_its_records(library: Library) -> None:
    """Freshness, coverage, curves and regressions of one library; without records of the installed TVM, of any."""
    library.add_workload(StoredWorkload(shash="18", name="matmul", mod_json="{}", args=MATMUL.args))
    library.add_records([record(1, 1e-3, making=V8, checked=True), record(1, 2e-3, making=V9, checked=True)])

    found = read_figures(library)

    assert found.tvm_version is None
    assert found.freshness.all.records == found.freshness.all.workloads == 1
    assert [(one.exact, one.nothing + one.neighbour) for one in found.coverage] == [(1, 1)]
    assert [point.ratio for point in found.points["pi4"]] == [1.0, 2.0]
    (slow,) = found.regressions
    assert slow.command == "fleet library best 17 --device-model pi4 --tvm-version all"
