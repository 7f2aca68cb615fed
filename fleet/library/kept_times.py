"""Reads the times of the best schedules, and the facts that decide on their freshness."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import sqlalchemy as sa

from fleet.domain.charges import device_sec
from fleet.domain.freshness import BEST, KeptTime
from fleet.domain.scope import RecordScope, ScopeFilter
from fleet.library import counting
from fleet.library import environments as kept
from fleet.library.records import Selection, best, ranked
from fleet.library.rows import Row
from fleet.library.schema import environments, job_workloads, jobs, record_environments, records, workloads
from fleet.library.values import Record


def read(connection: sa.Connection, scopes: Sequence[RecordScope], within: ScopeFilter) -> list[KeptTime]:
    """Return the best times of each workload in each scope: checked ones, or any if none was checked."""
    weights = _calls(connection)
    return [
        _time_of(row, scope.device_model, weights.get(row["workload_id"], 0.0))
        for scope in scopes
        for row in _best(connection, within.of(scope))
    ]


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


def _best(connection: sa.Connection, within: ScopeFilter) -> list[Row]:
    checked = _rows(connection, within, checked_only=True)
    has_checked = {row["workload_id"] for row in checked}
    unchecked = [row for row in _rows(connection, within, checked_only=False) if row["workload_id"] not in has_checked]
    return [*checked, *unchecked]


def _rows(connection: sa.Connection, within: ScopeFilter, *, checked_only: bool) -> list[Row]:
    placed = ranked(connection, Selection(within=within), checked_only=checked_only)
    names = ("id", "workload_id", "median_sec", "provenance", "created_at")
    query = (
        sa.select(
            *(records.c[name] for name in names),
            counting.is_disturbed(connection).label("is_disturbed"),
            _environment(connection).label("environment"),
            placed.c.place,
        )
        .join_from(records, placed, placed.c.id == records.c.id)
        .where(placed.c.place <= BEST)
        .order_by(records.c.id)
    )
    return [dict(row) for row in connection.execute(query).mappings()]


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


def _time_of(row: Row, device_model: str, calls: float) -> KeptTime:
    return KeptTime(
        record_id=row["id"],
        measured_at=row["created_at"],
        is_disturbed=bool(row["is_disturbed"]),
        environment=row["environment"] or "",
        device_model=device_model,
        device_sec=device_sec(row["provenance"]),
        models_sec=calls * row["median_sec"] if row["place"] == 1 else 0.0,
    )
