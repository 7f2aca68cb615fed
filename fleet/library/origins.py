"""Reads the environments of chosen records."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import sqlalchemy as sa

from fleet.library.environments import are_kept
from fleet.library.schema import environments, record_environments

_BATCH = 500
"""Ids per query, below SQLite's limit on parameters."""


def environments_of(
    connection: sa.Connection, record_ids: Iterable[int]
) -> dict[int, tuple[str, Mapping[str, object]]]:
    """Return digest and facts of each record's environment, if it is known."""
    if not are_kept(connection):
        return {}
    chosen = sorted(set(record_ids))
    return {
        row.record_id: (row.digest, row.facts)
        for start in range(0, len(chosen), _BATCH)
        for row in connection.execute(_query(chosen[start : start + _BATCH]))
    }


def _query(record_ids: list[int]) -> sa.Select[tuple[int, str, object]]:
    return (
        sa.select(record_environments.c.record_id, environments.c.digest, environments.c.facts)
        .join_from(record_environments, environments)
        .where(record_environments.c.record_id.in_(record_ids))
    )
