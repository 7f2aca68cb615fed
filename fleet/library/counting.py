"""Choice of the record that counts for each candidate in each scope.

The newest undisturbed record counts, or the newest one if all were disturbed: a doubtful time is replaced by measuring
again. Records of reverted jobs are used for nothing. An older library that may only be read lacks one table or both.
"""

from __future__ import annotations

import sqlalchemy as sa

from fleet.library import carrying
from fleet.library.schema import disturbed_records, has_table, job_orders, records

_CANDIDATE = ("workload_id", "target_key", "device_model", "tvm_version", "trace_digest")


def columns(connection: sa.Connection) -> list[sa.ColumnElement[object]]:
    """Return the columns of `records` that `choose` needs."""
    return [records.c.id, *(records.c[name] for name in _CANDIDATE), is_disturbed(connection).label("is_disturbed")]


def choose(times: sa.Subquery) -> sa.Subquery:
    """Return the rows that count, one for each candidate and scope."""
    rank = sa.func.row_number().over(
        partition_by=[times.c[name] for name in _CANDIDATE], order_by=(times.c.is_disturbed, times.c.id.desc())
    )
    ranked = sa.select(times, rank.label("rank")).subquery()
    return sa.select(ranked).where(ranked.c.rank == 1).subquery()


def is_used(connection: sa.Connection, job_id: sa.ColumnElement[int] = records.c.job_id) -> sa.ColumnElement[bool]:
    """Return an SQL condition for records, or other rows with a job, that belong to no reverted job."""
    if not has_table(connection, job_orders):
        return sa.true()
    is_reverted = sa.exists().where(job_orders.c.job_id == job_id, job_orders.c.reverted_at.is_not(None))
    if job_id is not records.c.job_id:
        return ~is_reverted
    return ~is_reverted & ~carrying.is_reverted(connection)


def is_disturbed(connection: sa.Connection) -> sa.ColumnElement[object]:
    """Return an SQL expression that is 1 for disturbed records, and 0 for others."""
    if not has_table(connection, disturbed_records):
        return sa.literal(0)
    return sa.case((sa.exists().where(disturbed_records.c.record_id == records.c.id), 1), else_=0)
