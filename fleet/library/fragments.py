"""Fragments of workloads in the database. The content is opaque here; see `fleet.fragments.stored`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import sqlalchemy as sa

from fleet.base.batches import batched
from fleet.domain.keys import canonical_target
from fleet.library.schema import has_table, insert_into, workload_fragments, workloads

_AT_ONCE = 500
"""Workloads of one statement."""


def add(connection: sa.Connection, target_json: str, by_workload: Mapping[str, bytes]) -> None:
    """Store fragments by workload hash. The first one of a workload and target is kept, unknown hashes are left out."""
    key = canonical_target(target_json)
    insert = insert_into(connection, workload_fragments).on_conflict_do_nothing()
    for part in batched(sorted(by_workload), _AT_ONCE):
        query = sa.select(workloads.c.id, workloads.c.shash).where(workloads.c.shash.in_(part)).order_by(workloads.c.id)
        rows = [
            {"workload_id": row.id, "target_key": key, "content": by_workload[row.shash]}
            for row in connection.execute(query)
        ]
        if rows:
            connection.execute(insert, rows)


def read(connection: sa.Connection, target_json: str, shashes: Iterable[str]) -> dict[str, bytes]:
    """Return the fragments of workloads for a target, by workload hash."""
    if not has_table(connection, workload_fragments):
        return {}
    wanted = workload_fragments.c.target_key == canonical_target(target_json)
    query = sa.select(workloads.c.shash, workload_fragments.c.content).join_from(workload_fragments, workloads)
    return {
        row.shash: row.content
        for part in batched(dict.fromkeys(shashes), _AT_ONCE)
        for row in connection.execute(query.where(wanted, workloads.c.shash.in_(part)))
    }
