"""Stores records and workloads in the database, and selects the time that counts for a candidate."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

import sqlalchemy as sa

from fleet.base.batches import batched
from fleet.domain.keys import canonical_target
from fleet.domain.measuring import NO_VERDICT, ErrorKind, disturbances_in
from fleet.domain.scope import ANY_SCOPE, RecordScope, ScopeFilter
from fleet.errors import NotFound
from fleet.library import counting, environments, makings, programs, proofs, rows, scope_times
from fleet.library.jobs import job_id, touch, workload_ids
from fleet.library.schema import disturbed_records, insert_into, jobs, record_scopes, records, workloads
from fleet.library.values import SCHEDULED, Record, RecordKind, StoredWorkload, TimedTrace, WorkloadOutline

_WORKLOADS_LOCK = 0x776F726B6C6F6164
"""Advisory lock held while workloads are added: "workload" in ASCII."""

_WORKLOADS_BATCH = 100
"""Workloads per statement: their programs may have 100 kB each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Records that a query covers; None leaves a column open."""

    workloads: Sequence[str] | None = None
    within: ScopeFilter = ANY_SCOPE
    job_name: str | None = None
    known_by: datetime | None = None
    """Only records stored before this time, of all jobs. With `job_name`, also all records of that job."""

    kinds: Sequence[RecordKind] = SCHEDULED
    with_reverted: bool = False
    """Also records of reverted jobs."""

    def clauses(self, connection: sa.Connection) -> list[sa.ColumnElement[bool]]:
        """Conditions on `records` joined with `workloads` and `jobs`."""
        within, found = self.within, self.scope_clauses(connection, records)
        sources = [] if self.job_name is None else [jobs.c.name == self.job_name]
        sources += [] if self.known_by is None else [records.c.created_at < self.known_by]
        found += [sa.or_(*sources)] if sources else []
        found += [] if within.measured_since is None else [records.c.created_at >= within.measured_since]
        found += [environments.are_of_facts(connection, within.facts)] if within.facts else []
        return found if self.workloads is None else [*found, workloads.c.shash.in_(sorted(set(self.workloads)))]

    def scope_clauses(self, connection: sa.Connection, table: sa.Table) -> list[sa.ColumnElement[bool]]:
        """Conditions on the kinds, scopes and jobs of `records`, or of the table of scopes."""
        within = self.within
        given: list[tuple[str, object]] = [
            ("target_key", None if within.target_json is None else canonical_target(within.target_json)),
            ("device_model", within.device_model),
            ("tvm_version", within.tvm_version),
        ]
        found = [table.c[name] == value for name, value in given if value is not None]
        found.append(table.c.kind.in_([kind.value for kind in self.kinds]))
        return found if self.with_reverted else [*found, counting.is_used(connection, table.c.job_id)]

    @property
    def is_of_whole_scopes(self) -> bool:
        """True if it covers each record of a scope, kind and job, or none of them."""
        parts = (self.workloads, self.job_name, self.known_by, self.within.measured_since)
        return all(part is None for part in parts) and not self.within.facts


def add_workloads(connection: sa.Connection, new: Iterable[StoredWorkload]) -> None:
    """Add new workloads. Known ones keep their name; only blank columns are filled in."""
    if connection.dialect.name == "postgresql":  # two inserts of the same rows in different order would deadlock
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_WORKLOADS_LOCK)))
    insert = insert_into(connection, workloads).on_conflict_do_nothing(index_elements=["shash"])
    for batch in batched(map(rows.workload_row, new), _WORKLOADS_BATCH):
        inserted = set(connection.scalars(insert.returning(workloads.c.shash), batch))
        for row in batch:
            if row["shash"] in inserted:
                inserted.remove(row["shash"])  # a second row of the same workload fills in
            else:
                _fill_in(connection, row)


def _fill_in(connection: sa.Connection, row: rows.Row) -> None:
    this = workloads.c.shash == row["shash"]
    connection.execute(workloads.update().where(this, workloads.c.flop == 0).values(flop=row["flop"]))
    if row["args"]:
        no_args = sa.type_coerce(workloads.c.args, sa.Text) == "[]"
        connection.execute(workloads.update().where(this, no_args).values(args=row["args"]))


def read_workloads(connection: sa.Connection, shashes: Sequence[str] | None = None) -> list[StoredWorkload]:
    query = sa.select(workloads).order_by(workloads.c.id)
    if shashes is not None:
        query = query.where(workloads.c.shash.in_(sorted(set(shashes))))
    return [rows.workload_of(dict(row)) for row in connection.execute(query).mappings()]


def outlines(connection: sa.Connection) -> list[WorkloadOutline]:
    """Return all workloads without their programs, oldest first."""
    query = sa.select(workloads.c.shash, workloads.c.name, workloads.c.args).order_by(workloads.c.id)
    return [
        WorkloadOutline(shash=row.shash, name=row.name, args=rows.args_of(row.args))
        for row in connection.execute(query)
    ]


def add_records(connection: sa.Connection, new: Sequence[Record]) -> list[Record]:
    """Add records and return them as stored, in order. One with a known uid is not stored again.

    Raises:
        NotFound: a workload or job is not in the library.
        InvalidRequest: a record has neither times nor an error.
    """
    uids = insert(connection, new)
    found = {record.uid: record for record in fetch(connection, joined().where(records.c.uid.in_(uids)))}
    _note_disturbed(connection, found.values())
    _add_origins(connection, [(found[uid].id, record) for uid, record in zip(uids, new, strict=True)])
    return [found[uid] for uid in uids]


def add_unread(connection: sa.Connection, new: Sequence[Record]) -> None:
    """Add undisturbed records, without returning them as stored. Raises as `add_records`."""
    uids = insert(connection, new)
    query = sa.select(records.c.uid, records.c.id).where(records.c.uid.in_(uids))
    ids = {row.uid: row.id for row in connection.execute(query)}
    _add_origins(connection, [(ids[uid], record) for uid, record in zip(uids, new, strict=True)])


def _add_origins(connection: sa.Connection, stored: Sequence[tuple[int, Record]]) -> None:
    """Store the programs, environments and makings of records, given with their ids."""
    programs.add(connection, {number: record.program for number, record in stored if record.program})
    environments.add(
        connection, {number: (record, record.environment) for number, record in stored if record.environment}
    )
    makings.add(connection, {number: record.making for number, record in stored if record.making})


def insert(connection: sa.Connection, new: Sequence[Record]) -> list[str]:
    """Insert the rows of records alone, and return their uids. Raises as `add_records`."""
    ids = workload_ids(connection, [record.workload for record in new])
    owners = {name: job_id(connection, name) for name in sorted({record.job_name for record in new} - {""})}
    values = [
        rows.record_row(record, workload_id=ids[record.workload], job_id=owners.get(record.job_name)) for record in new
    ]
    if values:
        new_only = insert_into(connection, records).on_conflict_do_nothing(index_elements=["uid"])
        scope_times.add(connection, connection.execute(new_only.returning(*scope_times.CHANGED), values).mappings())
    if owners:
        touch(connection, owners.values())
    return [str(row["uid"]) for row in values]


def read_records(
    connection: sa.Connection, selection: Selection, *, with_errors: bool, limit: int | None
) -> list[Record]:
    """Return records, oldest first; with a limit, the newest ones."""
    query = joined().where(*selection.clauses(connection))
    if not with_errors:
        query = query.where(records.c.error.is_(None))
    found = fetch(connection, query.order_by(records.c.id.desc()).limit(limit))
    return found[::-1]


def best(
    connection: sa.Connection, selection: Selection, *, k: int, checked_only: bool, proven_only: bool = False
) -> list[Record]:
    """Return the k fastest candidates of each workload, fastest first, each by the record that counts."""
    if proven_only and not proofs.are_kept(connection):
        return []
    placed = ranked(connection, selection, checked_only=checked_only, proven_only=proven_only)
    fastest = sa.select(placed.c.id).where(placed.c.place <= k)
    query = joined().where(records.c.id.in_(fastest)).order_by(records.c.median_sec, records.c.id)
    return fetch(connection, query)


def ranked(
    connection: sa.Connection, selection: Selection, *, checked_only: bool, proven_only: bool = False
) -> sa.Subquery:
    """Return the ids of the records that count and their place in their workload, 1 for the fastest."""
    counted = _counting(connection, selection, checked_only=checked_only, proven_only=proven_only)
    place = sa.func.row_number().over(partition_by=counted.c.workload_id, order_by=(counted.c.median_sec, counted.c.id))
    return sa.select(counted.c.id, place.label("place")).subquery()


def counting_ids(
    connection: sa.Connection, selection: Selection, *, k: int | None = None, checked_only: bool = False
) -> list[int]:
    """Return the ids of the records that count, oldest first; with k, those of each workload's fastest candidates."""
    if k is None:
        found = _counting(connection, selection, checked_only=checked_only)
        return list(connection.scalars(sa.select(found.c.id).order_by(found.c.id)))
    placed = ranked(connection, selection, checked_only=checked_only)
    return list(connection.scalars(sa.select(placed.c.id).where(placed.c.place <= k).order_by(placed.c.id)))


def timed_traces(connection: sa.Connection, ids: Sequence[int]) -> list[TimedTrace]:
    """Return schedules and times of records, in the order of their ids."""
    query = sa.select(records.c.target_json, records.c.trace_json, records.c.run_secs).where(records.c.id.in_(ids))
    return [
        TimedTrace(target_json=row.target_json, trace_json=row.trace_json, run_secs=tuple(row.run_secs))
        for row in connection.execute(query.order_by(records.c.id))
    ]


def candidates(connection: sa.Connection, selection: Selection) -> list[Record]:
    """Return the record that counts for each candidate, oldest first."""
    counting = sa.select(_counting(connection, selection).c.id)
    return fetch(connection, joined().where(records.c.id.in_(counting)).order_by(records.c.id))


def newest(connection: sa.Connection, selection: Selection) -> list[Record]:
    """Return the newest record with a time of each workload."""
    latest = (
        sa.select(sa.func.max(records.c.id))
        .select_from(records.join(workloads).outerjoin(jobs))
        .where(*selection.clauses(connection), records.c.error.is_(None))
        .group_by(records.c.workload_id)
    )
    return fetch(connection, joined().where(records.c.id.in_(latest)))


def mark(connection: sa.Connection, record_id: int, *, is_right: bool, message: str) -> None:
    """Store the outcome of checking a candidate on all its records of this workload, target and TVM version.

    Raises:
        NotFound: no such record.
    """
    known = only_row(connection, record_id)
    same = [records.c[name] == known[name] for name in ("workload_id", "target_key", "tvm_version", "trace_digest")]
    values: dict[str, object] = {"checked": is_right}
    if not is_right:
        values |= {"error": ErrorKind.WRONG_OUTPUT.value, "error_message": rows.clean(message), "median_sec": None}
        failed = records.update().where(*same, records.c.error.is_(None)).values(values)
        scope_times.remove(connection, connection.execute(failed.returning(*scope_times.CHANGED)).mappings())
        return
    connection.execute(records.update().where(*same, records.c.checked.is_(None)).values(values))


def trial_counts(connection: sa.Connection, selection: Selection) -> dict[str, int]:
    """Return how many distinct candidates of each workload have a verdict."""
    verdict = records.c.error.is_(None) | records.c.error.not_in(sorted(NO_VERDICT))
    query = (
        sa.select(workloads.c.shash, sa.func.count(sa.distinct(records.c.trace_digest)).label("trials"))
        .select_from(records.join(workloads).outerjoin(jobs))
        .where(*selection.clauses(connection), verdict)
        .group_by(workloads.c.shash)
    )
    return {row.shash: row.trials for row in connection.execute(query)}


def error_counts(connection: sa.Connection, selection: Selection) -> dict[str, dict[ErrorKind, int]]:
    """Count, for each workload, the distinct candidates that failed with each kind of error."""
    query = (
        sa.select(
            workloads.c.shash, records.c.error, sa.func.count(sa.distinct(records.c.trace_digest)).label("failed")
        )
        .select_from(records.join(workloads).outerjoin(jobs))
        .where(*selection.clauses(connection), records.c.error.is_not(None))
        .group_by(workloads.c.shash, records.c.error)
    )
    found: dict[str, dict[ErrorKind, int]] = {}
    for row in connection.execute(query):
        found.setdefault(row.shash, {})[ErrorKind(row.error)] = row.failed
    return found


def scopes(connection: sa.Connection, selection: Selection, *, with_errors: bool = False) -> list[RecordScope]:
    """Return the scopes with times, in order of their first measurement; with errors, all scopes with records."""
    if selection.is_of_whole_scopes and not with_errors and scope_times.are_kept(connection):
        return _kept_scopes(connection, selection)
    parts = (records.c.target_key, records.c.device_model, records.c.tvm_version)
    query = (
        sa.select(sa.func.min(records.c.target_json).label("target_json"), *parts[1:])
        .select_from(records.join(workloads).outerjoin(jobs))
        .where(*selection.clauses(connection), sa.true() if with_errors else records.c.error.is_(None))
        .group_by(*parts)
        .order_by(sa.func.min(records.c.id))
    )
    return [rows.scope_of(dict(row)) for row in connection.execute(query).mappings()]


def _kept_scopes(connection: sa.Connection, selection: Selection) -> list[RecordScope]:
    """Return the scopes with times, from the table of scopes."""
    kept = record_scopes.c
    query = (
        sa.select(sa.func.min(kept.target_json).label("target_json"), kept.device_model, kept.tvm_version)
        .where(*selection.scope_clauses(connection, record_scopes))
        .group_by(kept.target_key, kept.device_model, kept.tvm_version)
        .order_by(sa.func.min(kept.first_id))
    )
    return [rows.scope_of(dict(row)) for row in connection.execute(query).mappings()]


def count_older(connection: sa.Connection, selection: Selection) -> int:
    """Return the number of records with a time that only their age leaves out."""
    oldest = selection.within.measured_since
    if oldest is None:
        return 0
    of_any_age = replace(selection, within=replace(selection.within, measured_since=None))
    query = (
        sa.select(sa.func.count())
        .select_from(records.join(workloads).outerjoin(jobs))
        .where(*of_any_age.clauses(connection), records.c.error.is_(None), records.c.created_at < oldest)
    )
    return connection.scalar(query) or 0


def known_uids(connection: sa.Connection, uids: Sequence[str]) -> set[str]:
    """Return the stored ones among the uids."""
    return set(connection.scalars(sa.select(records.c.uid).where(records.c.uid.in_(uids))))


def only_row(connection: sa.Connection, record_id: int) -> rows.Row:
    """Return the row of a record. Raises NotFound."""
    row = rows.only(connection.execute(sa.select(records).where(records.c.id == record_id)))
    if row is None:
        raise NotFound(f"the library has no record {record_id}")
    return row


def by_id(connection: sa.Connection, record_id: int) -> Record:
    """Return a stored record."""
    (found,) = fetch(connection, joined().where(records.c.id == record_id))
    return found


def _note_disturbed(connection: sa.Connection, stored: Iterable[Record]) -> None:
    ids = [{"record_id": record.id} for record in stored if disturbances_in(record.provenance)]
    if ids:
        connection.execute(insert_into(connection, disturbed_records).on_conflict_do_nothing(), ids)


def _counting(
    connection: sa.Connection, selection: Selection, *, checked_only: bool = False, proven_only: bool = False
) -> sa.Subquery:
    """Choose the record that counts for each candidate in each scope.

    A candidate with an output ever found wrong for this workload, target and TVM version is left out on every device.
    """
    is_proven = proofs.is_proven() if proven_only else sa.true()
    times = (
        sa.select(*counting.columns(connection), records.c.median_sec, is_proven.label("is_proven"))
        .select_from(records.join(workloads).outerjoin(jobs))
        .where(*selection.clauses(connection), records.c.error.is_(None), ~is_found_wrong())
    )
    if checked_only:
        times = times.where(is_found_right())
    found = counting.choose(times.subquery())  # without the traces: they are most of a record, and few are needed
    return sa.select(found.c.id, found.c.workload_id, found.c.median_sec).where(found.c.is_proven).subquery()


def joined() -> sa.Select[tuple[object, ...]]:
    names = sa.select(records, workloads.c.shash.label("workload"), jobs.c.name.label("job_name"))
    return names.select_from(records.join(workloads).outerjoin(jobs))


def fetch(connection: sa.Connection, query: sa.Select[tuple[object, ...]]) -> list[Record]:
    found = [dict(row) for row in connection.execute(query).mappings()]
    proven = proofs.find(connection, found)
    return [rows.record_of(row, is_proven=proven.get(row["id"])) for row in found]


def _same_candidate(other: sa.FromClause) -> sa.ColumnElement[bool]:
    names = ("workload_id", "target_key", "tvm_version", "trace_digest")
    return sa.and_(*(other.c[name] == records.c[name] for name in names))


def is_found_wrong() -> sa.ColumnElement[bool]:
    """Return an SQL condition for records of candidates with an output that was ever found wrong."""
    other = records.alias("wrong")
    is_wrong = (other.c.error == ErrorKind.WRONG_OUTPUT.value) | other.c.checked.is_(False)
    return sa.exists().where(_same_candidate(other), is_wrong)


def is_found_right() -> sa.ColumnElement[bool]:
    """Return an SQL condition for records of candidates with an output that was found right."""
    other = records.alias("right")
    return sa.exists().where(_same_candidate(other), other.c.checked.is_(True))
