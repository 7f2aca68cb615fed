"""Removes old records that no build would take.

A record stays for the first of these reasons that it has. Which time of a candidate counts is not changed: the record
that counts for one of the best schedules stays.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa

from fleet.base.batches import batched
from fleet.library import carrying, scope_times
from fleet.library.pruning import GOES_ON
from fleet.library.records import Selection, counting_ids, scopes
from fleet.library.schema import (
    carried_records,
    disturbed_records,
    jobs,
    record_artifacts,
    record_environments,
    record_makings,
    record_programs,
    records,
)
from fleet.library.values import SCHEDULED

_FACTS = (
    disturbed_records,
    record_environments,
    record_makings,
    record_artifacts,
    record_programs,
    carried_records,
)
"""Tables with rows of records."""

_BATCH = 500
"""Records per statement."""


class Kept(enum.StrEnum):
    """Reason for which a record stays."""

    BEST = "best"
    """One of the fastest of its workload in its scope, or of the checked ones."""

    YOUNG = "young"
    RUNNING = "running"
    """Of a job that waits or runs."""

    CARRIED = "carried"
    """Measurement behind a record of another TVM version."""

    NO_SEARCH = "no search"
    """Of an unscheduled program, or of a choice in the whole model."""

    NEWEST = "newest"
    """Last of the library: its number must not be given to another record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrunedRecords:
    """Number of removed or removable records, and of the others by reason."""

    removed: int = 0
    kept: Mapping[Kept, int]


def prune_records(
    connection: sa.Connection, *, best: int, made_before: datetime, is_trial: bool = False
) -> PrunedRecords:
    """Remove the records that have no reason to stay.

    Args:
        best: number of kept schedules of each workload and scope.
        made_before: no younger record goes.
        is_trial: only count.
    """
    reasons = _Reasons(connection, best, made_before)
    columns = (records.c.id, records.c.kind, records.c.job_id, records.c.created_at)
    kept: Counter[Kept] = Counter()
    gone: list[int] = []
    for row in connection.execute(sa.select(*columns).order_by(records.c.id)).mappings():
        reason = reasons.of(row)
        if reason is None:
            gone.append(row["id"])
        else:
            kept[reason] += 1
    if not is_trial:
        for ids in batched(gone, _BATCH):
            _remove(connection, ids)
    return PrunedRecords(removed=len(gone), kept=dict(kept))


class _Reasons:
    def __init__(self, connection: sa.Connection, best: int, made_before: datetime) -> None:
        self._made_before = made_before
        self._best = _best(connection, best)
        self._running = set(connection.scalars(sa.select(jobs.c.id).where(jobs.c.state.in_(GOES_ON))))
        self._origins = set(carrying.origins(connection).values())
        self._newest = connection.scalar(sa.select(sa.func.max(records.c.id)))

    def of(self, row: sa.RowMapping) -> Kept | None:
        """Return the reason for which a record stays; None: it goes."""
        found = {
            Kept.BEST: row["id"] in self._best,
            Kept.YOUNG: row["created_at"] >= self._made_before,
            Kept.RUNNING: row["job_id"] in self._running,
            Kept.CARRIED: row["id"] in self._origins,
            Kept.NO_SEARCH: row["kind"] not in SCHEDULED,
            Kept.NEWEST: row["id"] == self._newest,
        }
        return next((reason for reason, holds in found.items() if holds), None)


def _best(connection: sa.Connection, k: int) -> set[int]:
    return {
        found
        for scope in scopes(connection, Selection())
        for is_checked in (False, True)
        for found in counting_ids(connection, Selection(within=scope), k=k, checked_only=is_checked)
    }


def _remove(connection: sa.Connection, ids: Collection[int]) -> None:
    for table in _FACTS:
        connection.execute(table.delete().where(table.c.record_id.in_(ids)))
    delete = records.delete().where(records.c.id.in_(ids)).returning(*scope_times.CHANGED)
    removed = connection.execute(delete).mappings().all()
    scope_times.remove(connection, [row for row in removed if row["error"] is None])
