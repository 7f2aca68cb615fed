"""Reads the best time of each workload by build: with which TVM, version of this package and environment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from fleet.library import counting
from fleet.library import environments as kept
from fleet.library.records import Selection, is_found_right, is_found_wrong
from fleet.library.schema import environments, has_table, jobs, record_environments, record_makings, records, workloads

_SCOPE = ("workload_id", "target_key", "device_model", "tvm_version")
_BUILD = ("version", "environment")


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildTime:
    """Best time of a workload in one scope, among records of one version of this package and one environment."""

    workload: str
    """Its structural hash."""

    target_key: str
    """Its target, as `canonical_target` spells it."""

    device_model: str
    tvm_version: str
    version: str = ""
    """Version of this package; empty: not known."""

    environment: str = ""
    """Digest; empty: not known."""

    best_sec: float
    """Of checked schedules, or of any if none was checked [s]."""

    is_checked: bool
    candidates: int
    """Schedules with a time."""

    first_id: int
    """Least id of a record that counts: builds in order of their first use."""

    last_id: int
    last_at: datetime
    """Newest measurement."""


def read(connection: sa.Connection) -> list[BuildTime]:
    """Return the times of all scopes, in the order of their first records. Reads no traces."""
    found = _best(connection)
    query = sa.select(workloads.c.shash, found).join_from(found, workloads, found.c.workload_id == workloads.c.id)
    return [_time_of(row) for row in connection.execute(query.order_by(found.c.first_id)).mappings()]


def jobs_of(connection: sa.Connection, record_ids: Sequence[int]) -> dict[int, tuple[str, Mapping[str, object]]]:
    """Return title and conditions of the jobs behind records, by record id. Records without a job are left out."""
    query = sa.select(records.c.id, jobs.c.title, jobs.c.conditions).join_from(records, jobs)
    found = connection.execute(query.where(records.c.id.in_(record_ids)))
    return {row.id: (row.title, row.conditions) for row in found}


def _best(connection: sa.Connection) -> sa.Subquery:
    """Return one row for each scope and build, from the record that counts for each candidate there."""
    times = _times(connection)
    candidate = (*_SCOPE, "trace_digest", *_BUILD)
    rank = sa.func.row_number().over(
        partition_by=[times.c[name] for name in candidate], order_by=(times.c.is_disturbed, times.c.id.desc())
    )
    ranked = sa.select(times, rank.label("rank")).subquery()
    build = [ranked.c[name] for name in (*_SCOPE, *_BUILD)]
    found: list[sa.ColumnElement[Any]] = [
        *build,
        sa.func.min(sa.case((ranked.c.is_checked == 1, ranked.c.median_sec))).label("checked_sec"),
        sa.func.min(ranked.c.median_sec).label("any_sec"),
        sa.func.count().label("candidates"),
        sa.func.min(ranked.c.id).label("first_id"),
        sa.func.max(ranked.c.id).label("last_id"),
        sa.func.max(ranked.c.created_at).label("last_at"),
    ]
    return sa.select(*found).where(ranked.c.rank == 1).group_by(*build).subquery()


def _times(connection: sa.Connection) -> sa.Subquery:
    """Return the times that count, each with its build."""
    source: sa.Join = records.join(workloads).outerjoin(jobs)
    version: sa.ColumnElement[str] = sa.literal("")
    environment: sa.ColumnElement[str] = sa.literal("")
    if has_table(connection, record_makings):
        source = source.outerjoin(record_makings, record_makings.c.record_id == records.c.id)
        version = sa.func.coalesce(record_makings.c.version, "")
    if kept.are_kept(connection):
        source = source.outerjoin(record_environments, record_environments.c.record_id == records.c.id)
        source = source.outerjoin(environments, environments.c.id == record_environments.c.environment_id)
        environment = sa.func.coalesce(environments.c.digest, "")
    return (
        sa.select(
            *counting.columns(connection),
            records.c.median_sec,
            records.c.created_at,
            version.label("version"),
            environment.label("environment"),
            sa.case((is_found_right(), 1), else_=0).label("is_checked"),
        )
        .select_from(source)
        .where(*Selection().clauses(connection), records.c.error.is_(None), ~is_found_wrong())
        .subquery()
    )


def _time_of(row: sa.RowMapping) -> BuildTime:
    checked_sec = row["checked_sec"]
    return BuildTime(
        workload=row["shash"],
        **{name: row[name] for name in ("target_key", "device_model", "tvm_version", "version", "environment")},
        best_sec=row["any_sec"] if checked_sec is None else checked_sec,
        is_checked=checked_sec is not None,
        **{name: row[name] for name in ("candidates", "first_id", "last_id", "last_at")},
    )
