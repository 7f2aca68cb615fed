"""Keeps the number of times in each scope, so that all scopes are known without reading the records.

Every writer of records changes the table in its own transaction, so a crash leaves both as they were. A row is of the
records of one job, kind and scope: rows of a reverted job are left out, as its records are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import sqlalchemy as sa

from fleet.library.schema import has_table, insert_into, record_scopes, records

NO_JOB = 0
_KEY = ("job_id", "kind", "target_key", "device_model", "tvm_version")

CHANGED = [records.c[name] for name in ("id", *_KEY, "target_json", "error")]
"""Columns that a writer of records returns from its INSERT, UPDATE or DELETE, for `add` and `remove`."""


def are_kept(connection: sa.Connection) -> bool:
    """Tell whether the library has the table. A read-only library of an older version has none."""
    return has_table(connection, record_scopes)


def add(connection: sa.Connection, inserted: Iterable[sa.RowMapping]) -> None:
    """Count new records, given by the columns of `CHANGED`."""
    found = _by_key(row for row in inserted if row["error"] is None)
    if not found:
        return
    new = [
        {
            **dict(zip(_KEY, key, strict=True)),
            "times": len(rows),
            "first_id": min(row["id"] for row in rows),
            "target_json": rows[0]["target_json"],
        }
        for key, rows in sorted(found.items())  # sorted: two writers in different order would deadlock
    ]
    insert, kept = insert_into(connection, record_scopes), record_scopes.c
    first = sa.case((insert.excluded.first_id < kept.first_id, insert.excluded.first_id), else_=kept.first_id)
    more = {"times": kept.times + insert.excluded.times, "first_id": first}
    connection.execute(insert.on_conflict_do_update(index_elements=list(_KEY), set_=more), new)


def remove(connection: sa.Connection, removed: Iterable[sa.RowMapping]) -> None:
    """Discount records that had a time and were deleted or failed, given by the columns of `CHANGED`."""
    kept = record_scopes.c
    for key, rows in sorted(_by_key(removed).items()):
        is_it = sa.and_(*(kept[name] == value for name, value in zip(_KEY, key, strict=True)))
        connection.execute(record_scopes.update().where(is_it).values(times=kept.times - len(rows)))
        connection.execute(record_scopes.delete().where(is_it, kept.times <= 0))
        is_first = is_it & (kept.first_id >= min(row["id"] for row in rows))
        first = _first_id(key).scalar_subquery()
        connection.execute(record_scopes.update().where(is_first).values(first_id=first))


def _by_key(changed: Iterable[sa.RowMapping]) -> dict[tuple[object, ...], list[sa.RowMapping]]:
    found: dict[tuple[object, ...], list[sa.RowMapping]] = {}
    for row in changed:
        found.setdefault((row["job_id"] or NO_JOB, *(row[name] for name in _KEY[1:])), []).append(row)
    return found


def _first_id(key: Sequence[object]) -> sa.Select[tuple[int]]:
    job_id, *rest = key
    is_of_job = records.c.job_id.is_(None) if job_id == NO_JOB else records.c.job_id == job_id
    same = [records.c[name] == value for name, value in zip(_KEY[1:], rest, strict=True)]
    query = sa.select(records.c.id).where(is_of_job, *same, records.c.error.is_(None))
    return query.order_by(records.c.id).limit(1)
