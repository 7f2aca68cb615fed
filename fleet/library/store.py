"""The library: the fleet's only long-term storage. Every call is one transaction, committed on return.

    with Library.open() as library:
        job = library.start_job(title="squeezenet")
        library.add_workload(workload)
        library.add_record(Record(workload=workload.shash, ...))
        fastest = library.best(workload.shash, RecordScope(...))

Calls block and may come from any thread; async code uses `asyncio.to_thread`.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from fnmatch import fnmatchcase
from pathlib import Path
from types import TracebackType
from typing import Self

import sqlalchemy as sa

from fleet.artifacts.artifact import Artifact
from fleet.base.batches import batched
from fleet.base.settings import look_up
from fleet.domain.freshness import KeptTime
from fleet.domain.making import Making
from fleet.domain.proving import Proof
from fleet.domain.scope import ANY_SCOPE, RecordScope, ScopeFilter
from fleet.errors import LibraryReadOnly, NotFound
from fleet.library import (
    build_times,
    carrying,
    claims,
    environments,
    fragments,
    jobs,
    kept_artifacts,
    kept_times,
    makings,
    origins,
    proofs,
    records,
    schema,
)
from fleet.library import engine as engines
from fleet.library.build_times import BuildTime
from fleet.library.claims import CandidateClaims
from fleet.library.memory import Memory
from fleet.library.model_files import ModelFiles
from fleet.library.ownership import store_owner
from fleet.library.pruning import Pruned, prune
from fleet.library.queue import JobQueue, claim_end
from fleet.library.record_pruning import PrunedRecords, prune_records
from fleet.library.records import Selection
from fleet.library.rows import clean
from fleet.library.tags import store_tags
from fleet.library.values import (
    SCHEDULED,
    Job,
    JobState,
    JobSummary,
    ModelRun,
    Record,
    RecordKind,
    StoredWorkload,
    TimedTrace,
    WorkloadOutline,
    WorkloadSummary,
)

_BATCH = 500
"""Rows of large columns that are read at a time."""

_TRIALS = (RecordKind.CANDIDATE,)


class Library:
    """An open library. Raises LibraryError or DiskFull if the database fails."""

    def __init__(self, engine: sa.Engine) -> None:
        """Use `Library.open`."""
        self._engine = engine
        self.queue = JobQueue(engine)
        self.claims = CandidateClaims(engine)
        self.model_files = ModelFiles(engine)

    @classmethod
    def open(cls, url_or_path: str | os.PathLike[str] | None = None) -> Self:
        """Open a library, creating it if missing. Close it, or use it in a `with` block.

        Args:
            url_or_path: a file, as text or path ("records.sqlite"), or a URL ("postgresql://host/database",
                "sqlite:///records.sqlite"); None: the one that is configured ($FLEET_LIBRARY,
                then the client's file), else the user's own, in the data directory.

        Raises:
            LibraryError: it cannot be used; the text has the reason and the remedy.
            DiskFull: no space left to make it.
        """
        url = engines.database_url(url_or_path)
        return cls(engines.open_engine(url, is_default=url_or_path is None and look_up("library").asked is None))

    @classmethod
    def open_to_read(cls, url_or_path: str | os.PathLike[str] | None = None) -> Self:
        """Open a library without creating files or folders. A missing library is empty; an older one is migrated.

        Raises:
            LibraryError: see `open`.
        """
        return cls(engines.open_engine(engines.database_url(url_or_path), makes_file=False))

    def __repr__(self) -> str:
        return f"<Library {self.url}>"

    @property
    def url(self) -> str:
        """The URL of the database, without a password."""
        return engines.shown_url(self._engine.url)

    @property
    def memory(self) -> Memory:
        """Data for the cost model."""
        return Memory(self._engine)

    def close(self) -> None:
        """Close all connections; idempotent."""
        self._engine.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def prune(self, *, newest: int, made_before: datetime, is_trial: bool = False) -> Pruned:
        """Remove old snapshots, and models of old jobs; see `fleet.library.pruning`."""
        with engines.writing(self._engine) as connection:
            return prune(connection, newest=newest, made_before=made_before, is_trial=is_trial)

    def prune_records(self, *, best: int, made_before: datetime, is_trial: bool = False) -> PrunedRecords:
        """Remove old records that no build would take; see `fleet.library.record_pruning`."""
        with engines.writing(self._engine) as connection:
            return prune_records(connection, best=best, made_before=made_before, is_trial=is_trial)

    def check_writable(self) -> None:
        """Check write access without writing, before work whose results have to be stored.

        Raises:
            LibraryReadOnly: it may only be read.
            LibraryError, DiskFull: it cannot be used now.
        """
        with engines.writing(self._engine) as connection:
            connection.execute(schema.jobs.update().where(sa.false()).values(message=""))

    def start_job(
        self,
        *,
        title: str,
        model_digest: str = "",
        conditions: Mapping[str, object] | None = None,
        tuner: str = "",
        trials_total: int = 0,
        holder: str = "",
        owner: str = "",
        optimizer: str = "",
        name: str = "",
        tags: Iterable[str] = (),
    ) -> Job:
        """Store a job that this process starts now.

        Args:
            name: of two jobs with one name the first is kept, so a start may be repeated; empty = generated.
            owner: key id of the owning account; empty if every account may change the job.
            optimizer: under which name it claims candidates; then it renews its claim, see `fleet.library.queue`.
        """
        texts = {"title": title, "model_digest": model_digest, "tuner": tuner, "holder": holder}
        fields: dict[str, object] = {key: clean(text) for key, text in texts.items()}
        fields |= {"conditions": dict(conditions or {}), "trials_total": trials_total}
        fields |= {"name": name} if name else {}
        order = {"optimizer": optimizer, "claimed_until": claim_end()} if optimizer else {}
        with engines.writing(self._engine) as connection:
            inserted = jobs.insert_job(connection, fields)
            jobs.insert_order(connection, inserted, order)
            store_owner(connection, jobs.job_id(connection, inserted), owner)
            store_tags(connection, jobs.job_id(connection, inserted), tags)
            return jobs.read_jobs(connection, name=inserted)[0]

    def finish_job(
        self, name: str, state: JobState, message: str = "", *, report: Mapping[str, object] | None = None
    ) -> Job:
        """End a job. Raises NotFound, and InvalidRequest for RUNNING.

        Args:
            report: see `Job.report`; None leaves it as it is.
        """
        with engines.writing(self._engine) as connection:
            jobs.finish(connection, name, state, message, report)
            claims.forget(connection, jobs.job_id(connection, name))  # later runs are other jobs
            return jobs.read_jobs(connection, name=name)[0]

    def add_job_workloads(self, name: str, weight_by_shash: Mapping[str, float]) -> None:
        """Store a job's workloads with their numbers of calls in the model. Raises NotFound."""
        with engines.writing(self._engine) as connection:
            jobs.add_job_workloads(connection, name, weight_by_shash)

    def add_model_run(self, run: ModelRun) -> None:
        """Store a whole model's latency. Raises NotFound."""
        with engines.writing(self._engine) as connection:
            jobs.add_model_run(connection, run)

    def jobs(self, limit: int | None = 100, *, model_digest: str | None = None, tags: Sequence[str] = ()) -> list[Job]:
        """Return jobs, newest first. Running ones of an ended process on this host become INTERRUPTED.

        Args:
            model_digest: only those of this model.
            tags: only those with all of these.
        """
        self._interrupt_abandoned()
        with engines.reading(self._engine) as connection:
            return jobs.read_jobs(connection, model_digest=model_digest, tags=tags, limit=limit)

    def job(self, name: str) -> JobSummary:
        """Return a job with its results for each workload. Raises NotFound."""
        self._interrupt_abandoned()
        with engines.reading(self._engine) as connection:
            owner = jobs.job_id(connection, name)
            job = jobs.read_jobs(connection, name=name)[0]
            weight_by_shash = {row["shash"]: row["weight"] for row in jobs.job_workload_rows(connection, owner)}
            by_shash = {w.shash: w for w in records.read_workloads(connection, list(weight_by_shash))}
            measured = Selection(job_name=name, kinds=(*SCHEDULED, RecordKind.BASELINE))
            scopes = records.scopes(connection, measured, with_errors=True)
            by_model: list[RecordScope | None] = [*{scope.device_model: scope for scope in scopes}.values()]
            summaries = tuple(
                summary
                for scope in by_model or [None]
                for summary in _summaries(connection, job, scope, by_shash, weight_by_shash)
            )
            return JobSummary(
                job=job, workloads=summaries, model_runs=tuple(jobs.read_model_runs(connection, owner, name))
            )

    def add_workload(self, workload: StoredWorkload) -> None:
        """Add a workload unless its hash is known."""
        self.add_workloads([workload])

    def add_workloads(self, workloads: Iterable[StoredWorkload]) -> None:
        """Add the workloads with unknown hashes; for the others, fill in missing columns."""
        with engines.writing(self._engine) as connection:
            records.add_workloads(connection, workloads)

    def add_fragments(self, target_json: str, by_workload: Mapping[str, bytes]) -> None:
        """Store fragments of known workloads for a target; of each the first is kept."""
        with engines.writing(self._engine) as connection:
            fragments.add(connection, target_json, by_workload)

    def fragments(self, target_json: str, workloads: Iterable[str]) -> dict[str, bytes]:
        """Return the fragments of workloads for a target, by workload hash. `fleet.fragments.stored` reads them."""
        with engines.reading(self._engine) as connection:
            return fragments.read(connection, target_json, workloads)

    def workload(self, shash: str) -> StoredWorkload:
        """Return a workload. Raises NotFound."""
        with engines.reading(self._engine) as connection:
            found = records.read_workloads(connection, [shash])
        if not found:
            raise NotFound(f"the library has no workload {shash!r}")
        return found[0]

    def workloads(self, shashes: Iterable[str]) -> list[StoredWorkload]:
        """Return the workloads among these hashes that the library has; oldest first."""
        with engines.reading(self._engine) as connection:
            return records.read_workloads(connection, list(shashes))

    def find_workloads(self, pattern: str = "*") -> list[StoredWorkload]:
        """Return the workloads that match a shell pattern of names (TVM's or ours) or a hash; oldest first."""
        with engines.reading(self._engine) as connection:
            if found := records.read_workloads(connection, [pattern]):
                return found
            outlines = records.outlines(connection)
            possible = [one.shash for one in outlines if not one.kind or _is_named(one, pattern)]
            return [one for one in records.read_workloads(connection, possible) if _is_named(one, pattern)]

    def find_outlines(self, pattern: str = "*") -> list[WorkloadOutline]:
        """Return the same as `find_workloads`, and read only programs without which a name is unknown."""
        outlines = self.outlines()
        if found := [one for one in outlines if one.shash == pattern]:
            return found
        unnamed = [one.shash for one in outlines if not one.kind and not _is_named(one, pattern)]
        named = {one.shash for part in batched(unnamed, _BATCH) for one in self._named(part, pattern)}
        return [one for one in outlines if one.shash in named or _is_named(one, pattern)]

    def outlines(self) -> list[WorkloadOutline]:
        """Return all workloads without their programs, oldest first."""
        with engines.reading(self._engine) as connection:
            return records.outlines(connection)

    def add_record(self, record: Record) -> Record:
        """Store one record. Raises NotFound for its workload or job, InvalidRequest if it has no verdict."""
        return self.add_records([record])[0]

    def add_records(self, new: Iterable[Record]) -> list[Record]:
        """Store records, all or none. Raises as `add_record`."""
        with engines.writing(self._engine) as connection:
            return records.add_records(connection, list(new))

    def add_unread(self, new: Sequence[Record]) -> None:
        """Store undisturbed records as `add_records` does, in half the time: they are not read back."""
        with engines.writing(self._engine) as connection:
            records.add_unread(connection, new)

    def add_imported(self, new: Sequence[Record]) -> int:
        """Store records as other programs have them, all or none, and return the number of new ones.

        Args:
            new: with uids. Environments, programs and disturbances are not stored.
        """
        with engines.writing(self._engine) as connection:
            known = records.known_uids(connection, [record.uid for record in new])
            records.insert(connection, [record for record in new if record.uid not in known])
        return len(new) - len(known)

    def records(
        self,
        workload: str | None = None,
        within: ScopeFilter = ANY_SCOPE,
        *,
        job_name: str | None = None,
        kinds: Sequence[RecordKind] = SCHEDULED,
        with_errors: bool = True,
        with_reverted: bool = False,
        limit: int | None = None,
    ) -> list[Record]:
        """Return the matching records, oldest first; with a limit, the newest of them."""
        wanted = None if workload is None else [workload]
        selection = Selection(
            workloads=wanted, within=within, job_name=job_name, kinds=kinds, with_reverted=with_reverted
        )
        with engines.reading(self._engine) as connection:
            return records.read_records(connection, selection, with_errors=with_errors, limit=limit)

    def timed_traces(
        self, workload: str, within: ScopeFilter = ANY_SCOPE, *, k: int | None = None, checked_only: bool = False
    ) -> Iterator[TimedTrace]:
        """Yield the schedule and the times of each candidate, chosen as in `best`, oldest first.

        Reads some hundred at a time.

        Args:
            k: only the fastest ones; None: all.
        """
        selection = Selection(workloads=[workload], within=within)
        with engines.reading(self._engine) as connection:
            ids = records.counting_ids(connection, selection, k=k, checked_only=checked_only)
        for part in batched(ids, _BATCH):
            with engines.reading(self._engine) as connection:
                found = records.timed_traces(connection, part)
            yield from found

    def best(
        self,
        workload: str,
        within: ScopeFilter = ANY_SCOPE,
        *,
        k: int = 1,
        checked_only: bool = False,
        proven_only: bool = False,
    ) -> list[Record]:
        """Return the k fastest candidates, fastest first, without any that was ever found wrong.

        A candidate counts with its newest undisturbed time, or its newest time when all were disturbed.

        Args:
            proven_only: leave out candidates without a proven time.
        """
        found = self.best_of([workload], within, k=k, checked_only=checked_only, proven_only=proven_only)
        return found.get(workload, [])

    def best_of(
        self,
        workloads: Iterable[str],
        within: ScopeFilter = ANY_SCOPE,
        *,
        k: int = 1,
        checked_only: bool = False,
        proven_only: bool = False,
    ) -> dict[str, list[Record]]:
        """Return for each workload that has any the same as `best`, by one query."""
        selection = Selection(workloads=list(workloads), within=within)
        with engines.reading(self._engine) as connection:
            found = records.best(connection, selection, k=k, checked_only=checked_only, proven_only=proven_only)
        return _by_workload(found)

    def candidates(self, workload: str, within: ScopeFilter = ANY_SCOPE) -> list[Record]:
        """Return one record for each candidate, chosen as in `best`, oldest first."""
        with engines.reading(self._engine) as connection:
            return records.candidates(connection, Selection(workloads=[workload], within=within))

    def scopes(self, workloads: Iterable[str] | None = None, within: ScopeFilter = ANY_SCOPE) -> list[RecordScope]:
        """Return the scopes in which any of the workloads has a time, in the order of their first one."""
        wanted = None if workloads is None else list(workloads)
        with engines.reading(self._engine) as connection:
            return records.scopes(connection, Selection(workloads=wanted, within=within))

    def count_older(self, workloads: Iterable[str] | None, within: ScopeFilter) -> int:
        """Return the number of records with a time that only `within.measured_since` leaves out."""
        wanted = None if workloads is None else list(workloads)
        with engines.reading(self._engine) as connection:
            return records.count_older(connection, Selection(workloads=wanted, within=within))

    def kept_times(self, scopes: Sequence[RecordScope], within: ScopeFilter = ANY_SCOPE) -> list[KeptTime]:
        """Return the times of the best three schedules of each workload by scope, see `fleet.domain.freshness`.

        Args:
            within: facts and age of the records that count.
        """
        with engines.reading(self._engine) as connection:
            return kept_times.read(connection, scopes, within)

    def build_times(self) -> list[BuildTime]:
        """Return the best time of each workload by scope, version of this package and environment."""
        with engines.reading(self._engine) as connection:
            return build_times.read(connection)

    def jobs_of(self, record_ids: Sequence[int]) -> dict[int, tuple[str, Mapping[str, object]]]:
        """Return title and conditions of the jobs behind records, by record id; none for records without a job."""
        with engines.reading(self._engine) as connection:
            return build_times.jobs_of(connection, record_ids)

    def known_facts(self) -> list[str]:
        """Return the names of the facts of all environments, sorted."""
        with engines.reading(self._engine) as connection:
            return environments.known_facts(connection)

    def best_schedules(self, scope: RecordScope, workloads: Sequence[str] | None = None) -> list[Record]:
        """Return the records of the best three schedules of each workload: checked ones, or any if none was checked.

        Args:
            workloads: only of these; None: of all.
        """
        with engines.reading(self._engine) as connection:
            return kept_times.best_records(connection, scope, workloads)

    def calls(self) -> dict[str, float]:
        """Return the number of calls of each workload in all models, by the newest job of each model that has it."""
        with engines.reading(self._engine) as connection:
            return kept_times.calls(connection)

    def environments(self) -> dict[str, frozenset[str]]:
        """Return the digests of the environments in which each device model's devices measured last."""
        with engines.reading(self._engine) as connection:
            return environments.of_models(connection)

    def environments_of(self, record_ids: Iterable[int]) -> dict[int, tuple[str, Mapping[str, object]]]:
        """Return digest and facts of the environment of each record that has one."""
        with engines.reading(self._engine) as connection:
            return origins.environments_of(connection, record_ids)

    def makings(self, record_ids: Iterable[int]) -> dict[int, Making]:
        """Return build and measuring of the records for which they are known, by record id."""
        with engines.reading(self._engine) as connection:
            return makings.read(connection, record_ids)

    def keep_artifacts(self, by_record: Mapping[int, Artifact], best: Collection[int]) -> None:
        """Store artifacts of records, and remove those of records that are not among the best of their workload.

        Args:
            best: ids of the best records of each workload, whether their artifacts are new or not.

        Raises:
            OSError: a file cannot be read.
        """
        with engines.writing(self._engine) as connection:
            kept_artifacts.keep(connection, by_record, best)

    def write_artifacts(self, record_ids: Iterable[int], folder: Path) -> dict[int, Artifact]:
        """Write the kept artifacts of records into a folder, and return them by record id.

        Raises:
            OSError: a file cannot be written.
        """
        with engines.reading(self._engine) as connection:
            return kept_artifacts.write(connection, record_ids, folder)

    def carry(self, record_id: int, tvm_version: str, making: Making) -> Record | None:
        """Let a record count for another TVM version that builds its code, see `fleet.library.carrying`.

        Returns:
            The copy; None if the candidate has a record there.

        Raises:
            NotFound: no such record.
        """
        with engines.writing(self._engine) as connection:
            copy = carrying.carry(connection, records.only_row(connection, record_id), tvm_version, making)
            return None if copy is None else records.by_id(connection, copy)

    def carried(self) -> dict[int, int]:
        """Return the ids of the measured records behind the carried ones, by the id of the copy."""
        with engines.reading(self._engine) as connection:
            return carrying.origins(connection)

    def newest_record(self) -> int:
        """Return the largest id of a record; 0 in an empty library."""
        with engines.reading(self._engine) as connection:
            return connection.scalar(sa.select(sa.func.max(schema.records.c.id))) or 0

    def known_uids(self, uids: Iterable[str]) -> set[str]:
        """Return the stored ones among the uids."""
        with engines.reading(self._engine) as connection:
            return records.known_uids(connection, list(uids))

    def baseline(self, workload: str, within: ScopeFilter = ANY_SCOPE) -> Record | None:
        """Return the time of the workload without a schedule, chosen as in `best`."""
        return self.baselines([workload], within).get(workload)

    def baselines(self, workloads: Iterable[str], within: ScopeFilter = ANY_SCOPE) -> dict[str, Record]:
        """Return for each workload that has one the same as `baseline`, by one query."""
        selection = Selection(workloads=list(workloads), within=within, kinds=[RecordKind.BASELINE])
        with engines.reading(self._engine) as connection:
            return {record.workload: record for record in records.candidates(connection, selection)}

    def newest_of(
        self, workloads: Iterable[str], within: ScopeFilter = ANY_SCOPE, *, kind: RecordKind
    ) -> dict[str, Record]:
        """Return the newest record of a kind with a time for each workload that has one, by one query."""
        selection = Selection(workloads=list(workloads), within=within, kinds=[kind])
        with engines.reading(self._engine) as connection:
            return {record.workload: record for record in records.newest(connection, selection)}

    def mark_checked(self, record_id: int) -> None:
        """Mark a candidate's output as right. Raises NotFound."""
        with engines.writing(self._engine) as connection:
            records.mark(connection, record_id, is_right=True, message="")

    def mark_wrong(self, record_id: int, message: str = "") -> None:
        """Turn a candidate's records into WRONG_OUTPUT; `best` never returns it again. Raises NotFound."""
        with engines.writing(self._engine) as connection:
            records.mark(connection, record_id, is_right=False, message=message)

    def add_proof(self, workload: str, scope: RecordScope, trace_json: str, proof: Proof) -> None:
        """Store the result of a candidate's proof. If the time is refuted, its records become TIME_NOT_PROVEN.

        Raises:
            NotFound: the library has no such workload.
        """
        with engines.writing(self._engine) as connection:
            workload_id = jobs.workload_ids(connection, [workload])[workload]
            proofs.add(connection, workload_id, scope, trace_json, proof)

    def trial_counts(self, workloads: Iterable[str], within: ScopeFilter = ANY_SCOPE) -> dict[str, int]:
        """Return the number of distinct candidates with a verdict for each workload; static schedules are no trials."""
        wanted = list(workloads)
        with engines.reading(self._engine) as connection:
            found = records.trial_counts(connection, Selection(workloads=wanted, within=within, kinds=_TRIALS))
        return {shash: found.get(shash, 0) for shash in wanted}

    def _named(self, shashes: Sequence[str], pattern: str) -> list[StoredWorkload]:
        with engines.reading(self._engine) as connection:
            return [one for one in records.read_workloads(connection, shashes) if _is_named(one, pattern)]

    def _interrupt_abandoned(self) -> None:
        with engines.reading(self._engine) as connection:
            if not jobs.abandoned(connection):
                return
        with contextlib.suppress(LibraryReadOnly), engines.writing(self._engine) as connection:
            jobs.interrupt_abandoned(connection)


def _is_named(workload: WorkloadOutline, pattern: str) -> bool:
    return any(fnmatchcase(name, pattern) for name in workload.names)


def _by_workload(found: Iterable[Record]) -> dict[str, list[Record]]:
    grouped: dict[str, list[Record]] = {}
    for record in found:
        grouped.setdefault(record.workload, []).append(record)
    return grouped


def _summaries(
    connection: sa.Connection,
    job: Job,
    scope: RecordScope | None,
    by_shash: Mapping[str, StoredWorkload],
    weight_by_shash: Mapping[str, float],
) -> list[WorkloadSummary]:
    """Return a job's results for each of its workloads on one device model, or None without measurements.

    Its trials are its own. The best and the unscheduled time are those that its user ends with: records from before its
    start count, too.
    """
    selection = known = Selection(job_name=job.name)
    if scope is not None:
        selection = replace(selection, within=ScopeFilter(device_model=scope.device_model))
        known = replace(selection, within=scope, known_by=job.started_at)
    trials = records.trial_counts(connection, replace(selection, kinds=_TRIALS))
    errors = records.error_counts(connection, selection)
    wanted = replace(known, workloads=list(weight_by_shash))
    fastest = _fastest(connection, wanted)
    earlier = _fastest(connection, replace(wanted, job_name=None)) if scope is not None else {}
    baselines = records.candidates(connection, replace(wanted, kinds=[RecordKind.BASELINE]))
    untuned = {record.workload: record.median_sec for record in baselines}
    return [
        WorkloadSummary(
            workload=by_shash[shash],
            device_model="" if scope is None else scope.device_model,
            weight=weight,
            trials=trials.get(shash, 0),
            errors=errors.get(shash, {}),
            untuned_sec=untuned.get(shash),
            best_sec=fastest.get(shash),
            known_sec=earlier.get(shash),
        )
        for shash, weight in weight_by_shash.items()
    ]


def _fastest(connection: sa.Connection, selection: Selection) -> dict[str, float]:
    """Return the time [s] of each workload's fastest checked candidate, else of the fastest one: some boards return no
    outputs to check.
    """
    unchecked = records.best(connection, selection, k=1, checked_only=False)
    checked = records.best(connection, selection, k=1, checked_only=True)
    return {record.workload: record.median_sec for record in (*unchecked, *checked)}
