"""Environments of records, and times for judging their freshness, on SQLite and on PostgreSQL."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from fleet.domain.environment import environment_digest
from fleet.library import Library, schema
from fleet.library.migrations import migrate
from tests.contract.library_records import MATMUL, PI5, SCOPE, numbers, record
from tests.contract.library_records import library as library
from tests.contract.test_library_migrations import connected

OLD, NEW = {"kernel": "6.1"}, {"kernel": "6.6", "owner": {"cooling": "fan"}}
DISTURBED = {"disturbances": ["throttled"], "device_sec": 0.5}


def test_a_device_has_the_environment_of_its_newest_record(library: Library) -> None:
    """Each device has one, and a device model has those of its devices; records keep their own."""
    library.add_records([record(1, device_name="devices/a", environment=OLD)])
    library.add_records([record(2, device_name="devices/b", environment=OLD), record(3, device_name="devices/c")])
    library.add_records([record(4, device_name=f"devices/{name}", environment=NEW) for name in "ab"])
    library.add_records([record(1, scope=PI5, device_name="devices/a", environment=OLD)])

    assert library.environments() == {
        "pi4": {environment_digest(NEW)},
        "pi5": {environment_digest(OLD)},
    }
    of_records = [time.environment for time in library.kept_times([SCOPE])]
    assert of_records == [environment_digest(OLD), environment_digest(OLD), ""]


def test_a_repeated_store_leaves_the_first_environment(library: Library) -> None:
    """A record is stored once by its uid, with its environment."""
    library.add_records([record(1, uid="1", environment=OLD)])
    library.add_records([record(1, uid="1", environment=NEW)])

    assert [time.environment for time in library.kept_times([SCOPE])] == [environment_digest(OLD)]


def test_two_jobs_store_one_new_environment_at_once(library: Library) -> None:
    """Neither deadlocks, whatever the order of their records."""
    first = [record(number, device_name=f"devices/{number}", environment={"n": number}) for number in range(8)]

    with ThreadPoolExecutor(2) as jobs:
        list(jobs.map(library.add_records, [first, first[::-1]]))

    assert len(library.environments()["pi4"]) == 8


def test_the_best_three_checked_schedules_are_judged(library: Library) -> None:
    """Unchecked ones only if none was checked. The fastest stands for the calls of the newest job of each model."""
    weights = {"m": 7.0, "n": 5.0}
    for digest, weight in (("m", 2.0), *weights.items()):
        job = library.start_job(title="t", model_digest=digest)
        library.add_job_workloads(job.name, {MATMUL.shash: weight})
    library.add_workload(replace(MATMUL, shash="18"))
    day = datetime(2026, 5, 1, tzinfo=UTC)
    library.add_records(
        [
            *(record(number, number * 1e-3, checked=True, created_at=day) for number in (4, 3, 2, 1)),
            record(9, 1e-6),
            record(5, 5e-3, workload="18", provenance=DISTURBED),
            record(6, 1e-6, scope=PI5),
        ]
    )

    times = library.kept_times([SCOPE])

    assert {time.record_id for time in times} == {one.id for one in library.best_schedules(SCOPE)}
    assert numbers(library.best_schedules(SCOPE, [MATMUL.shash])) == [1, 2, 3]
    assert library.calls() == {MATMUL.shash: 12.0}
    assert [time.models_sec for time in times] == pytest.approx([0.0, 0.0, 12e-3, 0.0])
    assert [time.is_disturbed for time in times] == [False, False, False, True]
    assert [time.device_sec for time in times] == [None, None, None, 0.5]
    assert [time.measured_at == day for time in times] == [True, True, True, False]
    assert {time.device_model for time in times} == {"pi4"}


def test_a_candidate_is_in_doubt_until_a_calm_time(library: Library) -> None:
    """A calm measurement takes the doubt away, whichever came first."""
    library.add_records([record(1, provenance=DISTURBED), record(2), record(2, provenance=DISTURBED)])
    assert sorted(time.is_disturbed for time in library.kept_times([SCOPE])) == [False, True]

    library.add_record(record(1))

    assert [time.is_disturbed for time in library.kept_times([SCOPE])] == [False, False]


def test_records_from_before_have_no_environment(url: str) -> None:
    """They are judged by the rest; an older schema has no place for an environment."""
    with Library.open(url) as library:
        library.add_workload(MATMUL)
        library.add_record(record(1, environment=NEW))
    with connected(url) as connection:
        migrate(connection, schema.SCHEMA_VERSION, 7)

    with Library.open(url) as library:
        assert [time.environment for time in library.kept_times([SCOPE])] == [""]
        assert library.environments() == {}
