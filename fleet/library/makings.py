"""Build and measuring behind each record, in the database."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import sqlalchemy as sa

from fleet.base.batches import batched
from fleet.domain.making import Making
from fleet.library.schema import has_table, insert_into, record_makings

_AT_ONCE = 10_000
"""Parameters of one query: SQLite takes 32,766."""


def add(connection: sa.Connection, by_record: Mapping[int, Making]) -> None:
    """Store the makings of stored records, by record id. The first one of a record is kept."""
    rows = [
        {
            "record_id": record_id,
            "object_digest": making.object_digest,
            "version": making.version,
            "evaluator": dict(making.evaluator),
        }
        for record_id, making in by_record.items()
    ]
    if rows:
        connection.execute(insert_into(connection, record_makings).on_conflict_do_nothing(), rows)


def read(connection: sa.Connection, record_ids: Iterable[int]) -> dict[int, Making]:
    """Return the known makings of records, by record id."""
    if not has_table(connection, record_makings):
        return {}
    queries = (
        sa.select(record_makings).where(record_makings.c.record_id.in_(some)) for some in batched(record_ids, _AT_ONCE)
    )
    return {
        row.record_id: Making(object_digest=row.object_digest, version=row.version, evaluator=row.evaluator)
        for query in queries
        for row in connection.execute(query)
    }
