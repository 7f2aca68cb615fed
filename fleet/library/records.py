"""Records and workloads in the database: storing, and choosing which of them speak."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from fleet.errors import NotFound
from fleet.keys import canonical_target
from fleet.library import rows
from fleet.library.jobs import job_id, touch, workload_ids
from fleet.library.schema import jobs, records, workloads
from fleet.library.values import NewRecord, Record, RecordKind, Workload
from fleet.measuring import ErrorKind

NO_VERDICT = frozenset({ErrorKind.LEASE_ENDED, ErrorKind.DEVICE_FAULTED, ErrorKind.ARTIFACT_MISSING})
"""Errors that say nothing about the candidate: it may be tried again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """Which records are meant; None leaves a column free."""

    workloads: Sequence[str] | None = None
    target_json: str | None = None
    device_model: str | None = None
    tvm_version: str | None = None
    job_name: str | None = None
    kind: RecordKind | None = RecordKind.CANDIDATE

    def clauses(self) -> list[sa.ColumnElement[bool]]:
        """Conditions on `records` joined with `workloads` and `jobs`."""
        given: list[tuple[sa.ColumnElement[Any], object]] = [
            (records.c.target_key, None if self.target_json is None else canonical_target(self.target_json)),
            (records.c.device_model, self.device_model),
            (records.c.tvm_version, self.tvm_version),
            (jobs.c.name, self.job_name),
            (records.c.kind, self.kind.value if self.kind else None),
        ]
        found = [column == value for column, value in given if value is not None]
        return found if self.workloads is None else [*found, workloads.c.shash.in_(sorted(set(self.workloads)))]


def add_workloads(connection: sa.Connection, new: Iterable[Workload]) -> None:
    """Add workloads that are not there yet; of known ones only blanks are filled, so that the first name stays."""
    for workload in new:
        row = rows.workload_row(workload)
        insert = _insert(connection, workloads).values(row)
        connection.execute(insert.on_conflict_do_nothing(index_elements=["shash"]))
        this = workloads.c.shash == workload.shash
        connection.execute(workloads.update().where(this, workloads.c.flop == 0).values(flop=row["flop"]))
        if workload.args:
            no_args = sa.type_coerce(workloads.c.args, sa.Text) == "[]"
            connection.execute(workloads.update().where(this, no_args).values(args=row["args"]))


def read_workloads(connection: sa.Connection, shashes: Sequence[str] | None = None) -> list[Workload]:
    query = sa.select(workloads).order_by(workloads.c.id)
    if shashes is not None:
        query = query.where(workloads.c.shash.in_(sorted(set(shashes))))
    return [rows.workload_of(dict(row)) for row in connection.execute(query).mappings()]


def add_records(connection: sa.Connection, new: Sequence[NewRecord]) -> list[Record]:
    """Add records; return them as stored, in order. One whose uid is there already is returned as it is.

    Raises:
        NotFound: a workload or job is not in the library.
        InvalidRequest: a record is no verdict.
    """
    ids = workload_ids(connection, [record.workload for record in new])
    owners = {name: job_id(connection, name) for name in sorted({record.job_name for record in new} - {""})}
    values = [
        rows.record_row(record, workload_id=ids[record.workload], job_id=owners.get(record.job_name)) for record in new
    ]
    insert = _insert(connection, records).on_conflict_do_nothing(index_elements=["uid"])
    if values:
        connection.execute(insert, values)
    if owners:
        touch(connection, owners.values())
    uids = [row["uid"] for row in values]
    found = {record.uid: record for record in _fetch(connection, _joined().where(records.c.uid.in_(uids)))}
    return [found[uid] for uid in uids]


def read_records(connection: sa.Connection, where: Where, *, with_errors: bool, limit: int | None) -> list[Record]:
    """Records, oldest first; with a limit the newest ones."""
    query = _joined().where(*where.clauses())
    if not with_errors:
        query = query.where(records.c.error.is_(None))
    found = _fetch(connection, query.order_by(records.c.id.desc()).limit(limit))
    return found[::-1]


def best(connection: sa.Connection, where: Where, *, k: int, checked_only: bool) -> list[Record]:
    """The k fastest candidates, fastest first, one record each.

    The newest time of a candidate speaks for it: measuring again is how a doubtful time is replaced. A candidate whose
    output was ever found wrong for this workload, target and TVM version is left out on every device.
    """
    newest = sa.func.row_number().over(
        partition_by=(records.c.workload_id, records.c.target_key, records.c.device_model, records.c.trace_digest),
        order_by=records.c.id.desc(),
    )
    times = (
        sa.select(records.c.id, records.c.median_sec, newest.label("age"))
        .select_from(records.join(workloads).outerjoin(jobs))
        .where(*where.clauses(), records.c.error.is_(None), ~_is_found_wrong())
    )
    if checked_only:
        times = times.where(_is_found_right())
    ranked = times.subquery()  # without the traces, which are most of a record and wanted of k only
    fastest = sa.select(ranked.c.id).where(ranked.c.age == 1).order_by(ranked.c.median_sec, ranked.c.id).limit(k)
    query = _joined().where(records.c.id.in_(fastest)).order_by(records.c.median_sec, records.c.id)
    return _fetch(connection, query)


def mark(connection: sa.Connection, record_id: int, *, is_right: bool, message: str) -> None:
    """Note the check of a candidate's output on all its records of this workload, target and TVM version.

    Raises:
        NotFound: no such record.
    """
    known = only_row(connection, record_id)
    same = [records.c[name] == known[name] for name in ("workload_id", "target_key", "tvm_version", "trace_digest")]
    values: dict[str, Any] = {"checked": is_right}
    if not is_right:
        values |= {"error": ErrorKind.WRONG_OUTPUT.value, "error_message": rows.clean(message), "median_sec": None}
        connection.execute(records.update().where(*same, records.c.error.is_(None)).values(values))
        return
    connection.execute(records.update().where(*same, records.c.checked.is_(None)).values(values))


def trial_counts(connection: sa.Connection, where: Where) -> dict[str, int]:
    """How many distinct candidates of each workload have a verdict."""
    verdict = records.c.error.is_(None) | records.c.error.not_in(sorted(NO_VERDICT))
    query = (
        sa.select(workloads.c.shash, sa.func.count(sa.distinct(records.c.trace_digest)).label("trials"))
        .select_from(records.join(workloads).outerjoin(jobs))
        .where(*where.clauses(), verdict)
        .group_by(workloads.c.shash)
    )
    return {row.shash: row.trials for row in connection.execute(query)}


def error_counts(connection: sa.Connection, where: Where) -> dict[str, dict[ErrorKind | None, int]]:
    """How many records of each workload ended how; None = with times."""
    query = (
        sa.select(workloads.c.shash, records.c.error, sa.func.count().label("records"))
        .select_from(records.join(workloads).outerjoin(jobs))
        .where(*where.clauses())
        .group_by(workloads.c.shash, records.c.error)
    )
    found: dict[str, dict[ErrorKind | None, int]] = {}
    for row in connection.execute(query):
        found.setdefault(row.shash, {})[ErrorKind(row.error) if row.error else None] = row.records
    return found


def places(connection: sa.Connection, where: Where) -> list[tuple[str, str]]:
    """Target and device model of every kind of hardware that has times, first measured first."""
    query = (
        sa.select(sa.func.min(records.c.target_json).label("target_json"), records.c.device_model)
        .select_from(records.join(workloads).outerjoin(jobs))
        .where(*where.clauses(), records.c.error.is_(None))
        .group_by(records.c.target_key, records.c.device_model)
        .order_by(sa.func.min(records.c.id))
    )
    return [(row.target_json, row.device_model) for row in connection.execute(query)]


def known_uids(connection: sa.Connection, uids: Sequence[str]) -> set[str]:
    """Those of the uids that are stored."""
    return set(connection.scalars(sa.select(records.c.uid).where(records.c.uid.in_(uids))))


def only_row(connection: sa.Connection, record_id: int) -> rows.Row:
    """Raises NotFound."""
    row = rows.only(connection.execute(sa.select(records).where(records.c.id == record_id)))
    if row is None:
        raise NotFound(f"the library has no record {record_id}")
    return row


def _joined() -> sa.Select[Any]:
    names = sa.select(records, workloads.c.shash.label("workload"), jobs.c.name.label("job_name"))
    return names.select_from(records.join(workloads).outerjoin(jobs))


def _fetch(connection: sa.Connection, query: sa.Select[Any]) -> list[Record]:
    return [rows.record_of(dict(row)) for row in connection.execute(query).mappings()]


def _same_candidate(other: sa.FromClause) -> sa.ColumnElement[bool]:
    names = ("workload_id", "target_key", "tvm_version", "trace_digest")
    return sa.and_(*(other.c[name] == records.c[name] for name in names))


def _is_found_wrong() -> sa.ColumnElement[bool]:
    other = records.alias("wrong")
    is_wrong = (other.c.error == ErrorKind.WRONG_OUTPUT.value) | other.c.checked.is_(False)
    return sa.exists().where(_same_candidate(other), is_wrong)


def _is_found_right() -> sa.ColumnElement[bool]:
    other = records.alias("right")
    return sa.exists().where(_same_candidate(other), other.c.checked.is_(True))


def _insert(connection: sa.Connection, table: sa.Table) -> Any:
    """The dialect's INSERT, for its ON CONFLICT; both spell it alike, but SQLAlchemy has no common one."""
    if connection.dialect.name == "postgresql":
        return postgresql.insert(table)
    return sqlite.insert(table)
