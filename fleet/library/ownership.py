"""Ownership of jobs: only the submitting account or the library's owner may cancel, resume or revert a job.

A job stores the id of its owner's key. This protects jobs from other users of the commands. It cannot protect them from
accounts with write access to the database, which can change any row.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import sqlalchemy as sa

from fleet.errors import NotAllowed
from fleet.library.schema import has_table, insert_into, job_owners
from fleet.library.values import Job


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Account that requests a change of a job."""

    key_id: str = ""
    """Id of its key; empty if it has none."""

    is_forced: bool = False
    """Change jobs of other accounts, too. Only for the owner of the library."""


ANYBODY = Caller()


def check_owner(connection: sa.Connection, job: Job, caller: Caller) -> None:
    """Refuse changes to another account's job. Jobs without an owner may be changed by every account.

    Raises:
        NotAllowed: the job belongs to another account, or force is used by an account that does not own the library.
    """
    if job.owner in ("", caller.key_id):
        return
    if not caller.is_forced:
        raise NotAllowed(
            f"{job.name} belongs to another account, {job.holder or 'without a name'}, which alone may change "
            "it; the owner of the library may use --force"
        )
    if not _owns_library(connection):
        raise NotAllowed(f"{job.name} belongs to another account, and --force is for the owner of the library alone")


def store_owner(connection: sa.Connection, job_id: int, key_id: str) -> None:
    """Store the owner of a job unless it has one. Ignores an empty key id."""
    if key_id:
        row = {"job_id": job_id, "key_id": key_id}
        connection.execute(insert_into(connection, job_owners).on_conflict_do_nothing(index_elements=["job_id"]), row)


def owners(connection: sa.Connection, job_ids: Sequence[int]) -> dict[int, str]:
    """Return owners by job id; empty for a read-only library of an older version."""
    if not has_table(connection, job_owners):
        return {}
    query = sa.select(job_owners.c.job_id, job_owners.c.key_id).where(job_owners.c.job_id.in_(job_ids))
    return {row.job_id: row.key_id for row in connection.execute(query)}


def _owns_library(connection: sa.Connection) -> bool:
    """Tell whether this account owns the file, or its database role owns the tables."""
    if connection.dialect.name == "sqlite":
        owner = Path(str(connection.engine.url.database)).stat().st_uid
        return os.geteuid() in (0, owner)
    query = "SELECT pg_has_role(current_user, relowner, 'MEMBER') FROM pg_class WHERE oid = CAST('jobs' AS regclass)"
    return bool(connection.scalar(sa.text(query)))
