"""Jobs in the database: inserts and ends them, and finds those of dead processes."""

from __future__ import annotations

import functools
import operator
import os
import platform
import uuid
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime

import psutil
import sqlalchemy as sa

from fleet.errors import InvalidRequest, NotFound
from fleet.library import rows
from fleet.library.ownership import owners
from fleet.library.rows import Row, clean
from fleet.library.schema import has_table, insert_into, job_orders, job_workloads, jobs, model_runs, records, workloads
from fleet.library.tags import has_tags, tags_of
from fleet.library.values import Job, JobState, ModelRun, RecordKind

_SAME_START_SEC = 2.0
"""Two readings of a process's start differ by less: the kernel counts ticks from a boot time that NTP moves."""


def insert_job(connection: sa.Connection, fields: Mapping[str, object]) -> str:
    """Insert a running job of this process, unless the fields override that or its name is known; return its name."""
    now = datetime.now(UTC)
    row = {
        "name": new_job_name(),
        "state": JobState.RUNNING.value,
        "message": "",
        **this_process(),
        "started_at": now,
        "touched_at": now,
        **fields,
    }
    connection.execute(insert_into(connection, jobs).on_conflict_do_nothing(index_elements=["name"]), row)
    return str(row["name"])


def new_job_name() -> str:
    """Return an unused job name."""
    return f"jobs/{datetime.now(UTC):%Y%m%d-%H%M%S}-{uuid.uuid4().hex[:6]}"


def insert_order(connection: sa.Connection, name: str, fields: Mapping[str, object]) -> None:
    """Insert a job's order and its holder."""
    row = {
        "job_id": job_id(connection, name),
        "spec": None,
        "priority": 0,
        "is_queued": False,
        "optimizer": "",
        "is_stop_asked": False,
        "progress": None,
        "report": None,
        **fields,
    }
    connection.execute(insert_into(connection, job_orders).on_conflict_do_nothing(index_elements=["job_id"]), row)


def this_process() -> dict[str, object]:
    """Return the columns that name this process."""
    return {
        "host": platform.node(),
        "pid": os.getpid(),
        "process_started_sec": psutil.Process().create_time(),
    }


def job_id(connection: sa.Connection, name: str) -> int:
    """Return the database id of a job. Raises NotFound."""
    found: int | None = connection.scalar(sa.select(jobs.c.id).where(jobs.c.name == name))
    if found is None:
        raise NotFound(f"the library has no job {name!r}; `fleet jobs list` lists them")
    return found


def read_jobs(
    connection: sa.Connection,
    *,
    name: str | None = None,
    model_digest: str | None = None,
    tags: Sequence[str] = (),
    limit: int | None = None,
) -> list[Job]:
    """Return jobs with their counts, newest first; with tags, those that have all of them."""
    candidates = records.c.kind == RecordKind.CANDIDATE.value
    # A candidate that was measured twice, as the best few are, is one trial; on another kind of board it is another.
    parts = (records.c.trace_digest, records.c.device_model, records.c.target_key)
    trial = sa.distinct(functools.reduce(operator.add, parts, sa.cast(records.c.workload_id, sa.String)))
    done = sa.select(sa.func.count(trial)).where(records.c.job_id == jobs.c.id, candidates).scalar_subquery()
    failed = (
        sa.select(sa.func.count(trial))
        .where(records.c.job_id == jobs.c.id, candidates, records.c.error.is_not(None))
        .scalar_subquery()
    )
    query = sa.select(jobs, done.label("trials_done"), failed.label("trials_failed")).order_by(jobs.c.id.desc())
    if name is not None:
        query = query.where(jobs.c.name == name)
    if model_digest is not None:
        query = query.where(jobs.c.model_digest == model_digest)
    if tags:
        query = query.where(has_tags(connection, tags))
    found = [dict(row) for row in connection.execute(query.limit(limit)).mappings()]
    ids = [row["id"] for row in found]
    orders = {order["job_id"]: order for order in _orders(connection, ids)}
    owner_by_id, tags_by_id = owners(connection, ids), tags_of(connection, ids)
    return [
        rows.job_of(row, orders.get(row["id"], {}), owner_by_id.get(row["id"], ""), tags_by_id.get(row["id"], ()))
        for row in found
    ]


def _orders(connection: sa.Connection, owners: Sequence[int] | None = None) -> list[Row]:
    """Return the orders of jobs, of all running ones for None; empty for an older, read-only library."""
    if not has_table(connection, job_orders):
        return []
    is_it = jobs.c.state == JobState.RUNNING.value if owners is None else jobs.c.id.in_(owners)
    query = sa.select(job_orders).select_from(job_orders.join(jobs)).where(is_it)
    return [dict(row) for row in connection.execute(query).mappings()]


def touch(connection: sa.Connection, owners: Iterable[int]) -> None:
    """Record a heartbeat of running jobs."""
    is_it = jobs.c.id.in_(list(owners)) & (jobs.c.state == JobState.RUNNING.value)
    connection.execute(jobs.update().where(is_it).values(touched_at=datetime.now(UTC)))


def finish(
    connection: sa.Connection,
    name: str,
    state: JobState,
    message: str,
    report: Mapping[str, object] | None = None,
) -> None:
    """End a job, and store its report. Ending an ended job changes its state, since its own process has the last word.

    Raises:
        NotFound: no such job.
        InvalidRequest: the state is RUNNING.
    """
    if state is JobState.RUNNING:
        raise InvalidRequest(f"{name} cannot end as RUNNING")
    now = datetime.now(UTC)
    values = {"state": state.value, "message": clean(message), "ended_at": now, "touched_at": now}
    owner = job_id(connection, name)
    connection.execute(jobs.update().where(jobs.c.id == owner).values(values))
    if report is not None:
        connection.execute(job_orders.update().where(job_orders.c.job_id == owner).values(report=dict(report)))


def add_job_workloads(connection: sa.Connection, name: str, weight_by_shash: Mapping[str, float]) -> None:
    """Store a job's workloads; known ones get the new weight.

    Raises:
        NotFound: no such job or workload.
    """
    owner = job_id(connection, name)
    ids = workload_ids(connection, list(weight_by_shash))
    known = set(connection.scalars(sa.select(job_workloads.c.workload_id).where(job_workloads.c.job_id == owner)).all())
    for shash, weight in weight_by_shash.items():
        if ids[shash] in known:
            is_it = (job_workloads.c.job_id == owner) & (job_workloads.c.workload_id == ids[shash])
            connection.execute(job_workloads.update().where(is_it).values(weight=weight))
        else:
            row = {"job_id": owner, "workload_id": ids[shash], "weight": weight}
            connection.execute(job_workloads.insert(), row)


def job_workload_rows(connection: sa.Connection, owner: int) -> list[Row]:
    """Return the workloads of a job with their weights, in the order of insertion."""
    query = (
        sa.select(workloads, job_workloads.c.weight)
        .join(job_workloads, job_workloads.c.workload_id == workloads.c.id)
        .where(job_workloads.c.job_id == owner)
        .order_by(job_workloads.c.id)
    )
    return [dict(row) for row in connection.execute(query).mappings()]


def workload_ids(connection: sa.Connection, shashes: Sequence[str]) -> dict[str, int]:
    """Return database ids by hash.

    Raises:
        NotFound: one is not in the library.
    """
    wanted = sorted(set(shashes))
    query = sa.select(workloads.c.shash, workloads.c.id).where(workloads.c.shash.in_(wanted))
    found: dict[str, int] = {row.shash: row.id for row in connection.execute(query)}
    missing = [shash for shash in wanted if shash not in found]
    if missing:
        raise NotFound(f"the library has no workload {', '.join(missing)}; add workloads before their records")
    return found


def add_model_run(connection: sa.Connection, run: ModelRun) -> None:
    """Store a model's latency, unless the job has one of the same time. Raises NotFound."""
    row = {name: getattr(run, name) for name in ("untuned_ms", "tuned_ms", "onnxruntime_ms", "max_abs_error")}
    row |= {"job_id": job_id(connection, run.job_name), "created_at": run.created_at or datetime.now(UTC)}
    same = [model_runs.c[key] == row[key] for key in ("job_id", "created_at")]
    if connection.scalar(sa.select(model_runs.c.id).where(*same).limit(1)) is None:
        connection.execute(model_runs.insert(), row)


def read_model_runs(connection: sa.Connection, owner: int, name: str) -> list[ModelRun]:
    query = sa.select(model_runs).where(model_runs.c.job_id == owner).order_by(model_runs.c.id)
    return [rows.model_run_of(dict(row), name) for row in connection.execute(query).mappings()]


def abandoned(connection: sa.Connection) -> list[str]:
    """Return the running jobs of dead processes: detected at once on this host, by expired claims elsewhere."""
    columns = (jobs.c.id, jobs.c.name, jobs.c.host, jobs.c.pid, jobs.c.process_started_sec)
    running = sa.select(*columns).where(jobs.c.state == JobState.RUNNING.value)
    found = [dict(row) for row in connection.execute(running).mappings()]
    now = datetime.now(UTC)
    expired = {
        order["job_id"] for order in _orders(connection) if order["claimed_until"] and order["claimed_until"] < now
    }
    return [row["name"] for row in found if row["id"] in expired or _is_process_gone(row)]


def lock(connection: sa.Connection, names: Sequence[str]) -> None:
    """Lock all jobs until the transaction ends. SQLite has a single writer anyway."""
    wanted = sa.select(jobs.c.id).where(jobs.c.name.in_(names)).order_by(jobs.c.id)
    connection.execute(wanted.with_for_update(key_share=True)).all()


def interrupt_abandoned(connection: sa.Connection) -> None:
    """Mark jobs of dead processes: submitted ones return to the queue unless they were asked to stop; `ended_at` of
    the others is their last heartbeat.
    """
    seen = abandoned(connection)
    if not seen:
        return
    lock(connection, seen)
    names = [name for name in abandoned(connection) if name in seen]  # without those claimed or renewed meanwhile
    is_it = jobs.c.name.in_(names) & (jobs.c.state == JobState.RUNNING.value)
    owners = list(connection.scalars(sa.select(jobs.c.id).where(is_it)))
    queued = sa.select(job_orders.c.job_id).where(job_orders.c.is_queued)
    to_stop = queued.where(job_orders.c.is_stop_asked)
    stopped = {"state": JobState.CANCELLED.value, "message": "cancelled", "ended_at": jobs.c.touched_at}
    connection.execute(jobs.update().where(is_it, jobs.c.id.in_(to_stop)).values(stopped))
    waiting = {"state": JobState.QUEUED.value, "message": "its optimizer is gone; it waits for another"}
    connection.execute(jobs.update().where(is_it, jobs.c.id.in_(queued)).values(waiting))
    ended = {"state": JobState.INTERRUPTED.value, "message": "its process is gone", "ended_at": jobs.c.touched_at}
    connection.execute(jobs.update().where(is_it).values(ended))
    freed = {"optimizer": "", "claimed_until": None, "is_stop_asked": False}
    connection.execute(job_orders.update().where(job_orders.c.job_id.in_(owners)).values(freed))


def _is_process_gone(row: Row) -> bool:
    return row["host"] == platform.node() and not is_process_alive(row["pid"], row["process_started_sec"])


def is_process_alive(pid: int, started_sec: float) -> bool:
    """Tell whether a process of this host is alive and not another one with the same pid."""
    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return False
        return abs(process.create_time() - started_sec) < _SAME_START_SEC
    except psutil.NoSuchProcess:
        return False
    except psutil.AccessDenied:
        return True
