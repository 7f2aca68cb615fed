"""A job's entry in the library: begun when its workloads are known, updated with its progress, ended once.

`OwnEntry` is that of `fleet tune`, which makes its job itself; `QueuedEntry` that of a job which somebody submitted,
and which optimizers go on with until it is done, over as many processes as that takes.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from fleet.base.machine import account_name
from fleet.base.plain import to_plain
from fleet.domain.scope import RecordScope
from fleet.errors import FleetError, InvalidRequest
from fleet.identity.account_key import account_key_id
from fleet.jobs.claim import JobClaim
from fleet.jobs.patience import patiently
from fleet.jobs.report import ProgressReport, TuneReport
from fleet.library import Job, JobState, Library, RecordKind, new_job_name

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Beginning:
    """Facts about a job, known once its workloads are known."""

    title: str
    model_digest: str
    conditions: Mapping[str, object]
    """The options that decide whether a run continues an interrupted one."""

    scope: RecordScope
    trials: int
    """Those that its user wants in this scope."""

    tuner: str
    weight_by_shash: Mapping[str, float]
    tags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """A run's share of a job."""

    job: Job
    trials: int
    """Those that are left."""

    overdrawn: int = 0
    """Trials that earlier runs spent beyond this kind's share."""

    notice: str = ""
    """Notes for the user."""


class JobEntry(Protocol):
    """One job in the library, from its run's point of view."""

    async def begin(self, beginning: Beginning) -> Begun:
        """Store the known facts; with several kinds of boards, once for each."""

    def tell(self, progress: ProgressReport) -> None:
        """Store the job's progress. Blocks."""


class OwnEntry:
    """The entry of a job that this process created."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self._job: Job | None = None
        self._keeping: asyncio.Task[None] | None = None

    async def begin(self, beginning: Beginning) -> Begun:
        conditions = {**beginning.conditions, **beginning.scope.parts}
        older = await patiently(partial(_interrupted_job, self._library, beginning.model_digest, conditions))
        total, notice = beginning.trials, ""
        if older is not None:
            total = max(0, older.trials_total - older.trials_done)
            notice = f"going on with {older.name}, interrupted after {older.trials_done} of {older.trials_total} trials"
            conditions = {**conditions, "resumes": older.name}
        optimizer = f"optimizers/{uuid.uuid4().hex[:12]}"
        start = partial(
            self._library.start_job,
            name=new_job_name(),  # chosen here: a start repeated after a lost answer is stored once
            title=beginning.title,
            model_digest=beginning.model_digest,
            conditions=conditions,
            tuner=beginning.tuner,
            trials_total=total,
            holder=account_name(),
            owner=await asyncio.to_thread(account_key_id),
            optimizer=optimizer,
            tags=beginning.tags,
        )
        self._job = await patiently(start)
        claim = JobClaim(self._library, self._job.name, optimizer)
        self._keeping = asyncio.create_task(claim.keep(), name="keep the claim")
        await patiently(partial(self._library.add_job_workloads, self._job.name, beginning.weight_by_shash))
        return Begun(job=self._job, trials=total, notice=notice)

    def tell(self, progress: ProgressReport) -> None:
        """Do nothing: the job's user sees its progress directly."""

    async def finish(self, report: TuneReport) -> None:
        """Store the job's end and its report."""
        if self._job is not None:
            kept = kept_reports([report])
            await patiently(partial(self._library.finish_job, self._job.name, JobState.FINISHED, report=kept))
        self._stop_keeping()

    def end(self, state: JobState, message: str) -> None:
        """Store the outcome of a job that is not done.

        Nothing is awaited: it must be written even while the task is being cancelled.
        """
        self._stop_keeping()
        if self._job is None:
            return
        try:
            self._library.finish_job(self._job.name, state, message=message)
        except FleetError as error:
            # Do not hide the error that ended the job. Readers will notice that the process is gone.
            logger.warning("end of job not written", extra={"job": self._job.name, "error": str(error)})

    def _stop_keeping(self) -> None:
        if self._keeping is not None:
            self._keeping.cancel()


class QueuedEntry:
    """The entry of a job that an optimizer has claimed."""

    def __init__(self, library: Library, job: Job, optimizer: str) -> None:
        self._library = library
        self._job = job
        self._optimizer = optimizer
        self._totals: dict[RecordScope, int] = {}
        self._told: dict[str, ProgressReport] = {}
        self._one_at_a_time = asyncio.Lock()

    @property
    def job_name(self) -> str:
        """Name of the job."""
        return self._job.name

    async def begin(self, beginning: Beginning) -> Begun:
        async with self._one_at_a_time:  # the one that begins last knows all trials
            return await self._begin(beginning)

    async def _begin(self, beginning: Beginning) -> Begun:
        scope, name = beginning.scope, self._job.name
        if scope in self._totals:
            raise InvalidRequest(
                f"two selectors of {name} chose {scope.device_model}: give each kind of board one; "
                "a job uses one device of each kind at a time"
            )
        self._totals[scope] = beginning.trials
        find = partial(self._library.records, within=scope, job_name=name, kinds=[RecordKind.CANDIDATE])
        done = len({(record.workload, record.trace_digest) for record in await patiently(find)})
        begin = partial(
            self._library.queue.begin,
            name,
            self._optimizer,
            model_digest=beginning.model_digest,
            trials_total=sum(self._totals.values()),
            tuner=beginning.tuner,
            conditions=beginning.conditions,
        )
        job = await patiently(begin)
        await patiently(partial(self._library.add_job_workloads, name, beginning.weight_by_shash))
        left = max(0, beginning.trials - done)
        notice = f"going on with {name} after {done} of {beginning.trials} trials" if done else ""
        return Begun(job=job, trials=left, overdrawn=max(0, done - beginning.trials), notice=notice)

    def tell(self, progress: ProgressReport) -> None:
        self._told[progress.selector] = progress
        kinds = [to_plain(self._told[selector]) for selector in sorted(self._told)]
        self._library.queue.tell(self._job.name, self._optimizer, {"kinds": kinds})


def kept_reports(reports: Sequence[TuneReport]) -> dict[str, object]:
    """Return the stored form of a job's reports, one for each kind of board."""
    return {"reports": to_plain(reports)}


def _interrupted_job(library: Library, model_digest: str, conditions: Mapping[str, object]) -> Job | None:
    """Return the newest job with these conditions if it was interrupted."""
    for job in library.jobs(limit=1000, model_digest=model_digest):
        own = {key: value for key, value in job.conditions.items() if key != "resumes"}
        if own != dict(conditions):
            continue
        return job if job.state is JobState.INTERRUPTED else None
    return None
