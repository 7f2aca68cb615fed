"""Proofs of times in the database: the newest one per candidate and device model.

A proof belongs to a candidate and not to a record, so that a repeated measurement stays proven. It proves no time below
its `least_sec`: a record that claims less needs a new proof.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime

import sqlalchemy as sa

from fleet.domain.keys import canonical_target, trace_digest
from fleet.domain.measuring import ErrorKind
from fleet.domain.proving import Proof
from fleet.domain.scope import RecordScope
from fleet.library import rows, scope_times
from fleet.library.schema import has_table, insert_into, proofs, records
from fleet.library.values import RecordKind

_SCOPE = ("workload_id", "target_key", "device_model", "tvm_version")
_CANDIDATE = (*_SCOPE, "trace_digest")

Key = tuple[object, ...]


def are_kept(connection: sa.Connection) -> bool:
    """Tell whether the library can store proofs. A read-only library of an older version cannot."""
    return has_table(connection, proofs)


def add(connection: sa.Connection, workload_id: int, scope: RecordScope, trace_json: str, proof: Proof) -> None:
    """Store a proof, replacing an older one. Records of a refuted candidate become failures."""
    key: dict[str, object] = {
        "workload_id": workload_id,
        "target_key": canonical_target(scope.target_json),
        "device_model": rows.clean(scope.device_model),
        "tvm_version": scope.tvm_version,
        "trace_digest": trace_digest(trace_json),
    }
    found: dict[str, object] = {
        "is_proven": proof.is_proven,
        "claimed_sec": proof.claimed_sec,
        "measured_sec": proof.measured_sec,
        "least_sec": proof.least_sec,
        "spread_sec": proof.spread_sec,
        "calls": proof.calls,
        "message": rows.clean(proof.message),
        "made_at": datetime.now(UTC),
    }
    insert = insert_into(connection, proofs).values({**key, **found})
    newer = {name: insert.excluded[name] for name in found}
    connection.execute(insert.on_conflict_do_update(index_elements=list(_CANDIDATE), set_=newer))
    if not proof.is_proven:
        same = [records.c[name] == value for name, value in key.items()]
        refused = {
            "error": ErrorKind.TIME_NOT_PROVEN.value,
            "error_message": rows.clean(proof.message),
            "median_sec": None,
        }
        failed = records.update().where(*same, records.c.error.is_(None)).values(refused)
        scope_times.remove(connection, connection.execute(failed.returning(*scope_times.CHANGED)).mappings())


def copy(connection: sa.Connection, row: rows.Row, tvm_version: str) -> None:
    """Let the proof of a record's candidate hold for another TVM version with the same code, unless it has one."""
    same = [proofs.c[name] == row[name] for name in _CANDIDATE]
    found = rows.only(connection.execute(sa.select(proofs).where(*same)))
    if found is not None:
        values = {name: value for name, value in found.items() if name != "id"} | {"tvm_version": tvm_version}
        connection.execute(insert_into(connection, proofs).values(values).on_conflict_do_nothing())


def find(connection: sa.Connection, found: Collection[rows.Row]) -> dict[int, bool]:
    """Return the verdicts by record id: True if the time is proven, False if it is refuted. Omits unproven records."""
    workload_ids = sorted({row["workload_id"] for row in found})
    if not workload_ids or not are_kept(connection):
        return {}
    columns = [proofs.c[name] for name in (*_CANDIDATE, "is_proven", "least_sec")]
    query = sa.select(*columns).where(proofs.c.workload_id.in_(workload_ids))
    known = {_key(row): row for row in map(dict, connection.execute(query).mappings())}
    verdicts = ((row["id"], _verdict(row, known.get(_key(row)))) for row in found)
    return {record_id: verdict for record_id, verdict in verdicts if verdict is not None}


def is_proven() -> sa.ColumnElement[bool]:
    """Return an SQL condition for records with a proven time.

    Static schedules need no proof. They count if any time of the workload is proven in this scope: elsewhere, as on
    boards that cannot prove times, a faster trial comes first.
    """
    in_scope = [proofs.c[name] == records.c[name] for name in _SCOPE]
    same = [*in_scope, proofs.c.trace_digest == records.c.trace_digest]
    proven = sa.exists().where(*same, proofs.c.is_proven, records.c.median_sec >= proofs.c.least_sec)
    is_static = records.c.kind == RecordKind.STATIC.value
    return sa.or_(proven, is_static & sa.exists().where(*in_scope, proofs.c.is_proven))


def _key(row: rows.Row) -> Key:
    return tuple(row[name] for name in _CANDIDATE)


def _verdict(record: rows.Row, proof: rows.Row | None) -> bool | None:
    if record["error"] == ErrorKind.TIME_NOT_PROVEN.value:
        return False
    if proof is None or not proof["is_proven"] or record["median_sec"] is None:
        return None
    return True if record["median_sec"] >= proof["least_sec"] else None
