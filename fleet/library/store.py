"""The library: the only long-term memory. Every call is one transaction, committed when it returns.

    with Library.open() as library:
        job = library.start_job(title="squeezenet")
        library.add_workload(workload)
        library.add_record(NewRecord(workload=workload.shash, ...))
        fastest = library.best(workload.shash, target_json=..., device_model=...)

Calls block and may come from any thread; async code uses `asyncio.to_thread`.
"""

from __future__ import annotations

import contextlib
import fnmatch
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

import sqlalchemy as sa

from fleet.errors import LibraryError, NotFound
from fleet.library import engine as engines
from fleet.library import jobs, records
from fleet.library.records import Where
from fleet.library.rows import clean
from fleet.library.values import (
    Job,
    JobState,
    JobSummary,
    ModelRun,
    NewRecord,
    Record,
    RecordKind,
    Workload,
    WorkloadSummary,
)
from fleet.measuring import ErrorKind


class Library:
    """One open library. Raises LibraryError or DiskFull whenever the database does not do as told."""

    def __init__(self, engine: sa.Engine) -> None:
        """Use `Library.open`."""
        self._engine = engine

    @classmethod
    def open(cls, url_or_path: str | Path | None = None) -> Self:
        """Open a library and make it where there is none. None = the user's own, in the data directory.

        Raises:
            LibraryError: it cannot be used; the text says why and what to do.
            DiskFull: no space left to make it.
        """
        url = engines.database_url(url_or_path)
        return cls(engines.open_engine(url, is_default=url_or_path is None))

    @property
    def url(self) -> str:
        """Where it is, without a password."""
        url = self._engine.url
        if url.get_backend_name() == "sqlite" and url.database:
            return url.database
        return url.render_as_string(hide_password=True)

    def close(self) -> None:
        """Close all connections; idempotent."""
        self._engine.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start_job(
        self,
        *,
        title: str,
        model_digest: str = "",
        conditions: Mapping[str, object] | None = None,
        tuner: str = "",
        trials_total: int = 0,
        holder: str = "",
    ) -> Job:
        """Note a job that this process runs from now on."""
        texts = {"title": title, "model_digest": model_digest, "tuner": tuner, "holder": holder}
        fields = {key: clean(text) for key, text in texts.items()}
        with engines.writing(self._engine) as connection:
            name = jobs.insert_job(
                connection, {**fields, "conditions": dict(conditions or {}), "trials_total": trials_total}
            )
            return jobs.read_jobs(connection, name=name)[0]

    def finish_job(self, name: str, state: JobState, message: str = "") -> Job:
        """End a job. Raises NotFound, and InvalidRequest for RUNNING."""
        with engines.writing(self._engine) as connection:
            jobs.finish(connection, name, state, message)
            return jobs.read_jobs(connection, name=name)[0]

    def add_job_workloads(self, name: str, weight_by_shash: Mapping[str, float]) -> None:
        """Say which workloads a job has, and how often its model calls each. Raises NotFound."""
        with engines.writing(self._engine) as connection:
            jobs.add_job_workloads(connection, name, weight_by_shash)

    def add_model_run(self, run: ModelRun) -> None:
        """Keep a whole model's latency. Raises NotFound."""
        with engines.writing(self._engine) as connection:
            jobs.add_model_run(connection, run)

    def jobs(self, limit: int | None = 100) -> list[Job]:
        """Jobs, newest first. Running ones whose process on this host is gone become INTERRUPTED."""
        self._interrupt_abandoned()
        with engines.reading(self._engine) as connection:
            return jobs.read_jobs(connection, limit=limit)

    def job(self, name: str) -> JobSummary:
        """A job with what it did for each workload. Raises NotFound."""
        self._interrupt_abandoned()
        with engines.reading(self._engine) as connection:
            owner = jobs.job_id(connection, name)
            job = jobs.read_jobs(connection, name=name)[0]
            weight_by_shash = {row["shash"]: row["weight"] for row in jobs.job_workload_rows(connection, owner)}
            by_shash = {w.shash: w for w in records.read_workloads(connection, list(weight_by_shash))}
            counts = records.error_counts(connection, Where(job_name=name))
            summaries = tuple(
                _summary(connection, by_shash[shash], weight, counts.get(shash, {}), name)
                for shash, weight in weight_by_shash.items()
            )
            return JobSummary(
                job=job, workloads=summaries, model_runs=tuple(jobs.read_model_runs(connection, owner, name))
            )

    def add_workload(self, workload: Workload) -> None:
        """Add a workload unless its hash is known."""
        self.add_workloads([workload])

    def add_workloads(self, workloads: Iterable[Workload]) -> None:
        """Add the workloads whose hashes are not known; of the others only missing facts are filled in."""
        with engines.writing(self._engine) as connection:
            records.add_workloads(connection, workloads)

    def workload(self, shash: str) -> Workload:
        """Raises NotFound."""
        with engines.reading(self._engine) as connection:
            found = records.read_workloads(connection, [shash])
        if not found:
            raise NotFound(f"the library has no workload {shash!r}")
        return found[0]

    def find_workloads(self, pattern: str = "*") -> list[Workload]:
        """Workloads whose name fits a shell pattern or whose hash is the pattern, oldest first."""
        with engines.reading(self._engine) as connection:
            found = records.read_workloads(connection)
        return [w for w in found if fnmatch.fnmatchcase(w.name, pattern) or w.shash == pattern]

    def add_record(self, record: NewRecord) -> Record:
        """Store one record. Raises NotFound for its workload or job, and InvalidRequest if it is no verdict."""
        return self.add_records([record])[0]

    def add_records(self, new: Iterable[NewRecord]) -> list[Record]:
        """Store records, all or none. Raises as `add_record`."""
        with engines.writing(self._engine) as connection:
            return records.add_records(connection, list(new))

    def records(
        self,
        workload: str | None = None,
        *,
        target_json: str | None = None,
        device_model: str | None = None,
        tvm_version: str | None = None,
        job_name: str | None = None,
        kind: RecordKind | None = RecordKind.CANDIDATE,
        with_errors: bool = True,
        limit: int | None = None,
    ) -> list[Record]:
        """Records that fit, oldest first; with a limit the newest of them."""
        where = Where(
            workloads=None if workload is None else [workload],
            target_json=target_json,
            device_model=device_model,
            tvm_version=tvm_version,
            job_name=job_name,
            kind=kind,
        )
        with engines.reading(self._engine) as connection:
            return records.read_records(connection, where, with_errors=with_errors, limit=limit)

    def best(
        self,
        workload: str,
        *,
        target_json: str | None = None,
        device_model: str | None = None,
        tvm_version: str | None = None,
        k: int = 1,
        checked_only: bool = False,
    ) -> list[Record]:
        """The k fastest candidates, fastest first: the newest time of each, and none ever found wrong."""
        where = Where(workloads=[workload], target_json=target_json, device_model=device_model, tvm_version=tvm_version)
        with engines.reading(self._engine) as connection:
            return records.best(connection, where, k=k, checked_only=checked_only)

    def places(
        self, workload: str, *, target_json: str | None = None, device_model: str | None = None
    ) -> list[tuple[str, str]]:
        """Target and device model of every kind of hardware on which the workload has a time."""
        where = Where(workloads=[workload], target_json=target_json, device_model=device_model)
        with engines.reading(self._engine) as connection:
            return records.places(connection, where)

    def known_uids(self, uids: Iterable[str]) -> set[str]:
        """Those of the uids whose record is stored already."""
        with engines.reading(self._engine) as connection:
            return records.known_uids(connection, list(uids))

    def baseline(
        self,
        workload: str,
        *,
        target_json: str | None = None,
        device_model: str | None = None,
        tvm_version: str | None = None,
    ) -> Record | None:
        """The newest valid time of the workload without a schedule."""
        found = self.records(
            workload,
            target_json=target_json,
            device_model=device_model,
            tvm_version=tvm_version,
            kind=RecordKind.BASELINE,
            with_errors=False,
            limit=1,
        )
        return found[0] if found else None

    def mark_checked(self, record_id: int) -> None:
        """Note that the candidate's output is right. Raises NotFound."""
        with engines.writing(self._engine) as connection:
            records.mark(connection, record_id, is_right=True, message="")

    def mark_wrong(self, record_id: int, message: str = "") -> None:
        """Turn the candidate's records to WRONG_OUTPUT; `best` never returns it again. Raises NotFound."""
        with engines.writing(self._engine) as connection:
            records.mark(connection, record_id, is_right=False, message=message)

    def trial_counts(
        self,
        workloads: Iterable[str],
        *,
        target_json: str | None = None,
        device_model: str | None = None,
        tvm_version: str | None = None,
    ) -> dict[str, int]:
        """Distinct candidates with a verdict, by workload; 0 for those without."""
        wanted = list(workloads)
        where = Where(workloads=wanted, target_json=target_json, device_model=device_model, tvm_version=tvm_version)
        with engines.reading(self._engine) as connection:
            found = records.trial_counts(connection, where)
        return {shash: found.get(shash, 0) for shash in wanted}

    def _interrupt_abandoned(self) -> None:
        with engines.reading(self._engine) as connection:
            names = jobs.abandoned(connection)
        if not names:
            return
        # Whoever may only read still gets to read.
        with contextlib.suppress(LibraryError), engines.writing(self._engine) as connection:
            jobs.interrupt(connection, names)


def _summary(
    connection: sa.Connection,
    workload: Workload,
    weight: float,
    counts: Mapping[ErrorKind | None, int],
    job_name: str,
) -> WorkloadSummary:
    where = Where(workloads=[workload.shash], job_name=job_name)
    fastest = records.best(connection, where, k=1, checked_only=False)
    baselines = Where(workloads=[workload.shash], job_name=job_name, kind=RecordKind.BASELINE)
    untuned = records.read_records(connection, baselines, with_errors=False, limit=1)
    return WorkloadSummary(
        workload=workload,
        weight=weight,
        trials=sum(counts.values()),
        errors={kind: count for kind, count in counts.items() if kind is not None},
        untuned_sec=untuned[0].median_sec if untuned else None,
        best_sec=fastest[0].median_sec if fastest else None,
        best_record_id=fastest[0].id if fastest else None,
    )
