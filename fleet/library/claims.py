"""Claims of jobs on candidates, so that two jobs of one library do not measure the same one, but share the costs.

A claim is as good as its job's: once the job runs no more, or its optimizer lets the job's claim expire, another job
may have the candidate. It keeps the trace, so that a resumed job can first measure the unfinished ones.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping
from datetime import UTC, datetime

import sqlalchemy as sa

from fleet.domain.charges import charged_sec
from fleet.domain.keys import canonical_target
from fleet.domain.measuring import POISON, ErrorKind
from fleet.domain.scope import RecordScope, ScopeFilter
from fleet.library import counting
from fleet.library import engine as engines
from fleet.library.jobs import job_id, workload_ids
from fleet.library.records import Selection
from fleet.library.schema import candidate_claims as claims
from fleet.library.schema import insert_into, job_orders, job_workloads, jobs, records, workloads
from fleet.library.values import SCHEDULED, Charges, JobState, RecordKind

_NOT_RUN = (ErrorKind.LEASE_ENDED, ErrorKind.ARTIFACT_MISSING)
"""Records of these do not keep anybody from measuring the candidate."""


class CandidateClaims:
    """The claims in one library. Every call is one transaction."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine

    def take(
        self,
        job_name: str,
        workload: str,
        scope: RecordScope,
        traces: Mapping[str, str],
        *,
        since: datetime | None = None,
    ) -> frozenset[str]:
        """Claim candidates for this job to measure, and return their digests.

        A candidate is left out if another running job has it, if it has a record in this scope, or if a device broke
        down under it.

        Args:
            traces: by digest.
            since: older records do not count. Aware.

        Raises:
            NotFound: no such job or workload.
        """
        with engines.writing(self._engine) as connection:
            owner, key = job_id(connection, job_name), _key(connection, workload, scope)
            free = set(traces) - _settled(connection, key, set(traces), since)
            same = [claims.c[name] == value for name, value in key.items()]
            same.append(claims.c.trace_digest.in_(sorted(free)))
            alive = sa.select(jobs.c.id).select_from(jobs.join(job_orders)).where(_is_alive())
            connection.execute(claims.delete().where(*same, claims.c.job_id.not_in(alive)))
            rows = [
                {**key, "job_id": owner, "trace_digest": digest, "trace_json": traces[digest]}
                for digest in sorted(free)
            ]
            if rows:  # of two concurrent claims, one waits, and then finds the other's
                connection.execute(insert_into(connection, claims).on_conflict_do_nothing(), rows)
            mine = sa.select(claims.c.trace_digest).where(*same, claims.c.job_id == owner)
            return frozenset(connection.scalars(mine))

    def sharers(self, job_name: str, workload: str, scope: RecordScope) -> frozenset[str]:
        """Return the names of the other running jobs that have claimed candidates of a workload, until they leave.

        Raises:
            NotFound: no such workload.
        """
        with engines.reading(self._engine) as connection:
            same = [claims.c[name] == value for name, value in _key(connection, workload, scope).items()]
            query = (
                sa.select(jobs.c.name)
                .select_from(claims.join(jobs).join(job_orders))
                .where(*same, jobs.c.name != job_name, _is_alive())
            )
            return frozenset(connection.scalars(query.distinct()))

    def leave(self, job_name: str, workloads_left: Collection[str], scope: RecordScope) -> None:
        """Give up a job's claims on workloads that it searches no more: it shares no more trials of them.

        Raises:
            NotFound: no such job or workload.
        """
        with engines.writing(self._engine) as connection:
            owner, ids = job_id(connection, job_name), workload_ids(connection, sorted(workloads_left)).values()
            is_it = (claims.c.job_id == owner) & claims.c.workload_id.in_(list(ids))
            connection.execute(claims.delete().where(is_it, *_within(scope)))

    def charges(self, job_name: str, within: ScopeFilter, *, after: int = 0) -> Charges:
        """Return the device time that a job is charged, by its own records and by those that name it.

        Args:
            after: only records with a larger id.

        Raises:
            NotFound: no such job.
        """
        with engines.reading(self._engine) as connection:
            chosen = Selection(within=within, kinds=list(RecordKind), with_reverted=True)
            owner = job_id(connection, job_name)
            own_workloads = sa.select(job_workloads.c.workload_id).where(job_workloads.c.job_id == owner)
            names_it = sa.type_coerce(records.c.provenance, sa.Text).contains(json.dumps(job_name), autoescape=True)
            is_charged = (records.c.job_id == owner) | (records.c.workload_id.in_(own_workloads) & names_it)
            query = (
                sa.select(records.c.id, records.c.provenance, jobs.c.name)
                .select_from(records.join(workloads).outerjoin(jobs))
                .where(*chosen.clauses(connection), records.c.id > after, is_charged)
            )
            found = connection.execute(query).all()
        return Charges(
            device_sec=math.fsum(charged_sec(row.provenance, owner=row.name or "", job=job_name) for row in found),
            newest=max((row.id for row in found), default=after),
        )

    def poison(self, workload: str) -> frozenset[str]:
        """Return the digests of a workload's schedules, including static ones, that crashed any device."""
        query = (
            sa.select(records.c.trace_digest)
            .join(workloads)
            .where(
                workloads.c.shash == workload,
                records.c.kind.in_([kind.value for kind in SCHEDULED]),
                records.c.error.in_(sorted(POISON)),
            )
        )
        with engines.reading(self._engine) as connection:
            return frozenset(connection.scalars(query.where(counting.is_used(connection))))

    def in_flight(self, job_name: str, scope: RecordScope) -> dict[str, dict[str, str]]:
        """Return a job's claims in a scope without a record: for each workload, traces by digest."""
        with engines.reading(self._engine) as connection:
            owner = job_id(connection, job_name)
            found: dict[str, dict[str, str]] = {}
            mine = sa.select(claims).where(claims.c.job_id == owner, *_within(scope)).order_by(claims.c.id)
            for row in connection.execute(mine).mappings().all():
                key = {name: row[name] for name in ("workload_id", "target_key", "device_model", "tvm_version")}
                digest = row["trace_digest"]
                if not _settled(connection, key, {digest}):
                    found.setdefault(_shash(connection, row["workload_id"]), {})[digest] = row["trace_json"]
            return found


def forget(connection: sa.Connection, owner: int) -> None:
    """Forget the claims of a job, by its database id, that will never be resumed."""
    connection.execute(claims.delete().where(claims.c.job_id == owner))


def _key(connection: sa.Connection, workload: str, scope: RecordScope) -> dict[str, object]:
    return {
        "workload_id": workload_ids(connection, [workload])[workload],
        "target_key": canonical_target(scope.target_json),
        "device_model": scope.device_model,
        "tvm_version": scope.tvm_version,
    }


def _within(scope: RecordScope) -> list[sa.ColumnElement[bool]]:
    return [
        claims.c.target_key == canonical_target(scope.target_json),
        claims.c.device_model == scope.device_model,
        claims.c.tvm_version == scope.tvm_version,
    ]


def _settled(
    connection: sa.Connection, key: Mapping[str, object], digests: set[str], since: datetime | None = None
) -> set[str]:
    """Return the digests that nobody should measure."""
    is_measured = sa.and_(
        *(records.c[name] == value for name, value in key.items()),
        sa.or_(records.c.error.is_(None), records.c.error.not_in(sorted(_NOT_RUN))),
        sa.true() if since is None else records.c.created_at >= since,
    )
    is_poison = (records.c.workload_id == key["workload_id"]) & records.c.error.in_(sorted(POISON))
    query = sa.select(records.c.trace_digest).where(
        records.c.kind == RecordKind.CANDIDATE.value,
        records.c.trace_digest.in_(sorted(digests)),
        sa.or_(is_measured, is_poison),
        counting.is_used(connection),
    )
    return set(connection.scalars(query))


def _is_alive() -> sa.ColumnElement[bool]:
    return (jobs.c.state == JobState.RUNNING.value) & (job_orders.c.claimed_until > datetime.now(UTC))


def _shash(connection: sa.Connection, workload_id: object) -> str:
    return str(connection.scalar(sa.select(workloads.c.shash).where(workloads.c.id == workload_id)))
