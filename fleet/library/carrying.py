"""Carries records to another TVM version that builds the same object code for the candidate.

A carried record is a copy in the scope of that version, with the times, state and date of the measurement. Nothing old
is changed. It counts as long as the job of its original does.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import sqlalchemy as sa

from fleet.domain.making import Making
from fleet.library import makings, proofs, rows, scope_times
from fleet.library.schema import (
    carried_records,
    disturbed_records,
    has_table,
    insert_into,
    job_orders,
    record_artifacts,
    record_environments,
    record_programs,
    records,
)

_CANDIDATE = ("workload_id", "target_key", "device_model", "trace_digest")


def carry(connection: sa.Connection, row: rows.Row, tvm_version: str, making: Making) -> int | None:
    """Carry a record to a TVM version and return the id of its copy; None if the candidate is known there.

    Args:
        row: the record.
        making: build by that version; its evaluator is that of the record.
    """
    same = [records.c[name] == row[name] for name in _CANDIDATE]
    if connection.scalar(sa.select(sa.exists().where(*same, records.c.tvm_version == tvm_version))):
        return None
    uid = f"carried-{row['uid']}-{tvm_version}"  # of two processes that carry it at once, one does
    values = {name: value for name, value in row.items() if name not in ("id", "job_id")}
    insert = insert_into(connection, records).on_conflict_do_nothing(index_elements=["uid"])
    new_only = insert.values(values | {"uid": uid, "tvm_version": tvm_version}).returning(*scope_times.CHANGED)
    scope_times.add(connection, connection.execute(new_only).mappings())
    copy = int(connection.execute(sa.select(records.c.id).where(records.c.uid == uid)).scalar_one())
    known = makings.read(connection, [row["id"]]).get(row["id"], Making())
    makings.add(connection, {copy: replace(making, evaluator=known.evaluator)})
    for table in (disturbed_records, record_artifacts, record_environments, record_programs):
        _copy_row(connection, table, row["id"], copy)
    proofs.copy(connection, row, tvm_version)
    link = {"record_id": copy, "from_id": _origin(connection, row["id"]), "carried_at": datetime.now(UTC)}
    connection.execute(insert_into(connection, carried_records).on_conflict_do_nothing(), link)
    return copy


def origins(connection: sa.Connection) -> dict[int, int]:
    """Return the ids of the measured records behind the carried ones, by the id of the copy."""
    if not has_table(connection, carried_records):
        return {}
    query = sa.select(carried_records.c.record_id, carried_records.c.from_id)
    return {row.record_id: row.from_id for row in connection.execute(query)}


def is_reverted(connection: sa.Connection) -> sa.ColumnElement[bool]:
    """Return an SQL condition for copies of records of reverted jobs."""
    if not has_table(connection, carried_records):
        return sa.false()
    origin = records.alias("origin")
    source = carried_records.join(origin, carried_records.c.from_id == origin.c.id)
    source = source.join(job_orders, job_orders.c.job_id == origin.c.job_id)
    is_it = (carried_records.c.record_id == records.c.id) & job_orders.c.reverted_at.is_not(None)
    return sa.exists().select_from(source).where(is_it).correlate(records)


def _origin(connection: sa.Connection, record_id: int) -> int:
    query = sa.select(carried_records.c.from_id).where(carried_records.c.record_id == record_id)
    return connection.scalar(query) or record_id


def _copy_row(connection: sa.Connection, table: sa.Table, record_id: int, copy: int) -> None:
    row = rows.only(connection.execute(sa.select(table).where(table.c.record_id == record_id)))
    if row is not None:
        insert = insert_into(connection, table).on_conflict_do_nothing()
        connection.execute(insert.values({**row, "record_id": copy}))
