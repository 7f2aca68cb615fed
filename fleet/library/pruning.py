"""Removes reproducible data that grows without bound from a library: snapshots, and jobs' models.

It keeps data in use, data that kept jobs need, the newest few, and data younger than some days. A job's model is kept
while the job may continue by itself, or by the same rule; its row and its records stay for ever.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa

from fleet.library.schema import job_orders, jobs, model_parts, snapshots
from fleet.library.values import JobState

GOES_ON = (JobState.QUEUED, JobState.RUNNING)
"""States of jobs that still need their snapshots, models and records."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruned:
    """Removed or removable data."""

    snapshots: tuple[str, ...] = ()
    """Digests, oldest first."""

    model_files: tuple[str, ...] = ()
    """Digests."""

    size_bytes: int = 0
    """Size of both. SQLite's file does not shrink: new rows reuse the space."""


def prune(connection: sa.Connection, *, newest: int, made_before: datetime, is_trial: bool = False) -> Pruned:
    """Remove the data that the rule does not keep.

    Args:
        newest: number of snapshots of each feature version, and of jobs, that are kept at any age.
        made_before: nothing that is younger goes.
        is_trial: only return the data that would go.
    """
    kept_jobs = list(_kept_jobs(connection, newest, made_before))
    used = {digest for _, progress in kept_jobs for digest in _snapshots_of(progress)}
    old_snapshots = _old_snapshots(connection, newest, made_before, used)
    files = {digest for spec, _ in kept_jobs for digest in _files_of(spec)}
    sizes = _sizes_of_files(connection)
    old_files = sorted(sizes.keys() - files)
    if not is_trial:
        connection.execute(snapshots.delete().where(snapshots.c.digest.in_(old_snapshots)))
        connection.execute(model_parts.delete().where(model_parts.c.digest.in_(old_files)))
    return Pruned(
        snapshots=tuple(old_snapshots),
        model_files=tuple(old_files),
        size_bytes=sum(old_snapshots.values()) + sum(sizes[digest] for digest in old_files),
    )


def _kept_jobs(connection: sa.Connection, newest: int, made_before: datetime) -> Iterator[tuple[object, object]]:
    """Yield the order and the state of each job."""
    columns = (jobs.c.state, jobs.c.touched_at, job_orders.c.spec, job_orders.c.progress)
    query = sa.select(*columns).select_from(jobs.join(job_orders)).order_by(jobs.c.id.desc())
    for place, job in enumerate(connection.execute(query)):
        if place < newest or job.touched_at >= made_before or job.state in GOES_ON:
            yield job.spec, job.progress


def _old_snapshots(connection: sa.Connection, newest: int, made_before: datetime, used: set[str]) -> dict[str, int]:
    """Return the sizes of the snapshots to remove, by digest, oldest first."""
    columns = (snapshots.c.digest, snapshots.c.feature_version, snapshots.c.made_at, snapshots.c.published_at)
    query = sa.select(*columns, sa.func.length(snapshots.c.content).label("size")).order_by(snapshots.c.id.desc())
    seen: dict[str, int] = {}
    in_use: set[str] = set()
    old = {}
    for row in connection.execute(query):
        place = seen[row.feature_version] = seen.get(row.feature_version, 0) + 1
        is_in_use = row.published_at is not None and row.feature_version not in in_use
        in_use |= {row.feature_version} if is_in_use else set()
        if not (is_in_use or place <= max(newest, 1) or row.made_at >= made_before or row.digest in used):
            old[row.digest] = row.size
    return dict(reversed(old.items()))


def _sizes_of_files(connection: sa.Connection) -> dict[str, int]:
    size = sa.func.sum(sa.func.length(model_parts.c.content)).label("size")
    query = sa.select(model_parts.c.digest, size).group_by(model_parts.c.digest)
    return {row.digest: int(row.size) for row in connection.execute(query)}


def _files_of(spec: object) -> Iterable[str]:
    files = spec.get("files") if isinstance(spec, Mapping) else None
    return map(str, files.values()) if isinstance(files, Mapping) else ()


def _snapshots_of(progress: object) -> Iterable[str]:
    kinds = progress.get("kinds") if isinstance(progress, Mapping) else None
    return [str(kind.get("snapshot", "")) for kind in kinds] if isinstance(kinds, list) else ()
