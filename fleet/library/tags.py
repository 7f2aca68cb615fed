"""Tags of jobs: words of their users, to find jobs by."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import sqlalchemy as sa

from fleet.library.rows import clean
from fleet.library.schema import has_table, insert_into, job_tags, jobs


def store_tags(connection: sa.Connection, job_id: int, tags: Iterable[str]) -> None:
    """Add tags to a job."""
    rows = [{"job_id": job_id, "tag": clean(tag)} for tag in sorted(set(tags))]
    if rows:
        connection.execute(insert_into(connection, job_tags).on_conflict_do_nothing(), rows)


def tags_of(connection: sa.Connection, job_ids: Sequence[int]) -> dict[int, tuple[str, ...]]:
    """Return sorted tags by job id; empty for a read-only library of an older version."""
    if not has_table(connection, job_tags):
        return {}
    query = sa.select(job_tags).where(job_tags.c.job_id.in_(job_ids)).order_by(job_tags.c.tag)
    found: dict[int, tuple[str, ...]] = {}
    for row in connection.execute(query):
        found[row.job_id] = (*found.get(row.job_id, ()), row.tag)
    return found


def has_tags(connection: sa.Connection, tags: Sequence[str]) -> sa.ColumnElement[bool]:
    """Return an SQL condition for jobs with all these tags."""
    if not has_table(connection, job_tags):
        return sa.false()
    return sa.and_(*(sa.exists().where(job_tags.c.job_id == jobs.c.id, job_tags.c.tag == tag) for tag in tags))
