"""Owners of jobs: only the account that submitted a job cancels, resumes or reverts it, or the library's own owner.

A job keeps the name of a key that its account proves by having it. This holds against users of our programs. It does
not hold against users who may write the database by themselves: they can change any row, and whatever keeps the owner
is such a row.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import sqlalchemy as sa

from fleet.errors import NotAllowed
from fleet.library.schema import insert_into, job_owners
from fleet.library.values import Job


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """An account that wants to change a job."""

    key_id: str = ""
    """Name of its key; empty: it has none."""

    is_forced: bool = False
    """Change a job of another account: for the owner of the library."""


ANYBODY = Caller()


def check_owner(connection: sa.Connection, job: Job, caller: Caller) -> None:
    """Refuse to change a job of another account. Jobs of libraries of older versions are everybody's.

    Raises:
        NotAllowed: it is another's, or force is used by an account that does not own the library.
    """
    if job.owner in ("", caller.key_id):
        return
    if not caller.is_forced:
        raise NotAllowed(
            f"{job.name} belongs to another account, {job.holder or 'of no name'}, and only that one changes it; "
            "the owner of the library may with --force"
        )
    if not _owns_library(connection):
        raise NotAllowed(f"{job.name} belongs to another account, and --force is for the owner of the library alone")


def store_owner(connection: sa.Connection, job_id: int, key_id: str) -> None:
    """Keep the first owner of a job; an empty one is none."""
    if key_id:
        row = {"job_id": job_id, "key_id": key_id}
        connection.execute(insert_into(connection, job_owners).on_conflict_do_nothing(index_elements=["job_id"]), row)


def owners(connection: sa.Connection, job_ids: Sequence[int]) -> dict[int, str]:
    """Return owners by job; none in a library of an older version that may only be read."""
    if not sa.inspect(connection).has_table(job_owners.name):
        return {}
    query = sa.select(job_owners.c.job_id, job_owners.c.key_id).where(job_owners.c.job_id.in_(job_ids))
    return {row.job_id: row.key_id for row in connection.execute(query)}


def _owns_library(connection: sa.Connection) -> bool:
    """Tell whether this account owns the file, or its role the tables."""
    if connection.dialect.name == "sqlite":
        owner = Path(str(connection.engine.url.database)).stat().st_uid
        return os.geteuid() in (0, owner)
    query = "SELECT pg_has_role(current_user, relowner, 'MEMBER') FROM pg_class WHERE oid = CAST('jobs' AS regclass)"
    return bool(connection.scalar(sa.text(query)))
