"""A job's entry while its library is away: it waits, and is written once."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from fleet.domain.scope import RecordScope
from fleet.errors import LibraryError
from fleet.jobs.entry import Beginning, OwnEntry, QueuedEntry
from fleet.jobs.patience import patiently
from fleet.jobs.report import TuneReport
from fleet.library import Job, JobState, Library, ModelRun, StoredWorkload


class Forgetful(Library):
    """A library that loses its first answer to each of these calls."""

    def __init__(self, engine: sa.Engine) -> None:
        super().__init__(engine)
        self._answered: set[str] = set()

    def start_job(self, **fields: Any) -> Job:
        return self._answer("start", super().start_job(**fields))

    def add_job_workloads(self, name: str, weight_by_shash: Mapping[str, float]) -> None:
        return self._answer("name workloads", super().add_job_workloads(name, weight_by_shash))

    def finish_job(self, *given: Any, **fields: Any) -> Job:
        return self._answer("finish", super().finish_job(*given, **fields))

    def add_model_run(self, run: ModelRun) -> None:
        return self._answer("add model run", super().add_model_run(run))

    def _answer(self, call: str, found: Any) -> Any:
        if call not in self._answered:
            self._answered.add(call)
            raise LibraryError("the connection is lost")
        return found


@pytest.fixture
def forgetful(tmp_path: Path) -> Iterator[Library]:
    with Forgetful.open(tmp_path / "library.sqlite") as library:
        library.add_workload(StoredWorkload(shash="w", name="w", mod_json="{}"))
        yield library


def beginning(device_model: str = "pi4", trials: int = 8) -> Beginning:
    return Beginning(
        title="m",
        model_digest="d",
        conditions={},
        scope=RecordScope(target_json='{"kind":"llvm"}', device_model=device_model, tvm_version="0.27.0"),
        trials=trials,
        tuner="",
        weight_by_shash={"w": 2.0},
        tags=("a",),
    )


def report(job: str) -> TuneReport:
    return TuneReport(
        job=job,
        title="m",
        device="",
        device_model="",
        library="",
        trials=0,
        wall_sec=1.0,
        first_trial_sec=None,
        last_record_sec=None,
        workloads=(),
        model=None,
    )


async def test_a_job_is_stored_once_although_a_commits_answer_is_lost(forgetful: Library) -> None:
    """The connection may end between a commit and its answer; a retry creates no duplicate."""
    entry = OwnEntry(forgetful)

    begun = await entry.begin(beginning())
    run = ModelRun(job_name=begun.job.name, created_at=datetime.now(UTC))
    await patiently(partial(forgetful.add_model_run, run))
    await entry.finish(report(begun.job.name))

    [job] = forgetful.jobs()
    assert (job.name, job.state) == (begun.job.name, JobState.FINISHED)
    assert job.report is not None
    summary = forgetful.job(job.name)
    assert [item.weight for item in summary.workloads] == [2.0]
    assert len(summary.model_runs) == 1


async def test_a_jobs_conditions_stay_those_of_earlier_versions(tmp_path: Path) -> None:
    """With others it would not continue a job that an earlier version left behind."""
    with Library.open(tmp_path / "library.sqlite") as library:
        library.add_workload(StoredWorkload(shash="w", name="w", mod_json="{}"))
        entry = OwnEntry(library)

        begun = await entry.begin(beginning())
        entry.end(JobState.INTERRUPTED, "")

        assert begun.job.conditions == {
            "target_json": '{"kind":"llvm"}',
            "device_model": "pi4",
            "tvm_version": "0.27.0",
        }
        assert begun.job.tags == ("a",)


async def test_a_busy_library_does_not_block_lease_renewal(forgetful: Library, tmp_path: Path) -> None:
    """Leases are renewed on the same event loop."""
    entry = OwnEntry(forgetful)
    with closing(sqlite3.connect(tmp_path / "library.sqlite", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        beginning_it = asyncio.create_task(entry.begin(beginning()))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not beginning_it.done()
        other.execute("ROLLBACK")

    begun = await beginning_it
    entry.end(JobState.CANCELLED, "")

    assert [job.name for job in forgetful.jobs()] == [begun.job.name]


async def test_a_submitted_job_begins_on_each_kind_of_board_once_its_library_answers(forgetful: Library) -> None:
    """All kinds begin at the same time; the last one knows the trials of all."""
    job = forgetful.queue.submit(title="m", spec={})
    assert forgetful.queue.take("o") is not None
    entry = QueuedEntry(forgetful, job, "o")

    begun = await asyncio.gather(entry.begin(beginning("pi4", 8)), entry.begin(beginning("pi5", 4)))

    assert [each.trials for each in begun] == [8, 4]
    assert forgetful.queue.get(job.name).trials_total == 12
