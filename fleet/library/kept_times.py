"""Reads the times of the best schedules, and the facts that decide on their freshness."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import sqlalchemy as sa

from fleet.base.batches import batched
from fleet.domain.charges import device_sec
from fleet.domain.freshness import BEST, KeptTime
from fleet.domain.keys import canonical_target
from fleet.domain.scope import RecordScope, ScopeFilter
from fleet.library import counting
from fleet.library import environments as kept
from fleet.library.records import Selection, best, is_found_right, is_found_wrong
from fleet.library.rows import Row
from fleet.library.schema import environments, job_workloads, jobs, record_environments, records, workloads
from fleet.library.values import Record

_PROGRAM = ("workload_id", "target_key", "device_model", "tvm_version")
_SCOPES = 1000
"""Scopes of one query, with three parameters each: SQLite takes 32,766."""


def read(connection: sa.Connection, scopes: Sequence[RecordScope], within: ScopeFilter) -> list[KeptTime]:
    """Return the best times of each workload in each scope: checked ones, or any if none was checked.

    Args:
        within: facts and age of the records that count.
    """
    weights = _calls(connection)
    rows = [row for some in batched(scopes, _SCOPES) for row in _best(connection, some, within)]
    has_checked = {_program(row) for row in rows if row["is_checked"]}
    kept = [row for row in rows if row["is_checked"] or _program(row) not in has_checked]
    return [_time_of(row, weights.get(row["workload_id"], 0.0)) for row in kept]


def best_records(connection: sa.Connection, scope: RecordScope, shashes: Sequence[str] | None = None) -> list[Record]:
    """Return the records of the best schedules of each workload: checked ones, or any if none was checked."""
    selection = Selection(workloads=shashes, within=scope)
    checked = best(connection, selection, k=BEST, checked_only=True)
    has_checked = {record.workload for record in checked}
    any_of_them = best(connection, selection, k=BEST, checked_only=False)
    return [*checked, *(record for record in any_of_them if record.workload not in has_checked)]


def calls(connection: sa.Connection) -> dict[str, float]:
    """Return the number of calls of each workload in all models, by its hash."""
    by_id = _calls(connection)
    query = sa.select(workloads.c.id, workloads.c.shash).where(workloads.c.id.in_(sorted(by_id)))
    return {row.shash: by_id[row.id] for row in connection.execute(query)}


def _best(connection: sa.Connection, scopes: Sequence[RecordScope], within: ScopeFilter) -> list[Row]:
    """Return the best three times of each workload in each scope, checked ones before others, by one query."""
    placed = _placed(connection, scopes, within)
    names = ("id", *_PROGRAM, "median_sec", "provenance", "created_at")
    query = (
        sa.select(
            *(records.c[name] for name in names),
            counting.is_disturbed(connection).label("is_disturbed"),
            _environment(connection).label("environment"),
            placed.c.is_checked,
            placed.c.place,
        )
        .join_from(records, placed, placed.c.id == records.c.id)
        .where(placed.c.place <= BEST)
        .order_by(records.c.id)
    )
    return [dict(row) for row in connection.execute(query).mappings()]


def _placed(connection: sa.Connection, scopes: Sequence[RecordScope], within: ScopeFilter) -> sa.Subquery:
    """Return the ids of the records that count, with their place in their workload and scope."""
    wanted = Selection(within=ScopeFilter(measured_since=within.measured_since, facts=within.facts))
    parts = sa.tuple_(records.c.target_key, records.c.device_model, records.c.tvm_version)
    keys = [(canonical_target(one.target_json), one.device_model, one.tvm_version) for one in scopes]
    times = (
        sa.select(
            *counting.columns(connection),
            records.c.median_sec,
            sa.case((is_found_right(), 1), else_=0).label("is_checked"),
        )
        .select_from(records.join(workloads).outerjoin(jobs))
        .where(*wanted.clauses(connection), parts.in_(keys), records.c.error.is_(None), ~is_found_wrong())
    )
    found = counting.choose(times.subquery())
    place = sa.func.row_number().over(
        partition_by=[found.c[name] for name in _PROGRAM],
        order_by=(found.c.is_checked.desc(), found.c.median_sec, found.c.id),
    )
    return sa.select(found.c.id, found.c.is_checked, place.label("place")).subquery()


def _program(row: Row) -> tuple[object, ...]:
    return tuple(row[name] for name in _PROGRAM)


def _environment(connection: sa.Connection) -> sa.ColumnElement[str | None]:
    if not kept.are_kept(connection):
        return sa.literal("")
    return (
        sa.select(environments.c.digest)
        .join_from(environments, record_environments)
        .where(record_environments.c.record_id == records.c.id)
        .scalar_subquery()
    )


def _calls(connection: sa.Connection) -> Mapping[int, float]:
    """Return the number of calls of each workload in all models, by the newest job of each model that has it."""
    newest = (
        sa.select(sa.func.max(job_workloads.c.id))
        .join_from(job_workloads, jobs)
        .group_by(jobs.c.model_digest, job_workloads.c.workload_id)
    )
    query = (
        sa.select(job_workloads.c.workload_id, sa.func.sum(job_workloads.c.weight).label("calls"))
        .where(job_workloads.c.id.in_(newest))
        .group_by(job_workloads.c.workload_id)
    )
    return {row.workload_id: row.calls for row in connection.execute(query)}


def _time_of(row: Row, calls: float) -> KeptTime:
    return KeptTime(
        record_id=row["id"],
        workload_id=row["workload_id"],
        measured_at=row["created_at"],
        is_disturbed=bool(row["is_disturbed"]),
        environment=row["environment"] or "",
        device_model=row["device_model"],
        device_sec=device_sec(row["provenance"]),
        models_sec=calls * row["median_sec"] if row["place"] == 1 else 0.0,
    )
