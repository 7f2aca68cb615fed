"""Claims of jobs on candidates, so that two jobs of one library do not measure the same one.

A claim is as good as its job's: once the job runs no more, or its optimizer lets the job's claim expire, another job
may have the candidate. It keeps the trace, so that a resumed job can first measure the unfinished ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

import sqlalchemy as sa

from fleet.domain.keys import canonical_target
from fleet.domain.measuring import POISON, ErrorKind
from fleet.domain.scope import RecordScope
from fleet.library import counting
from fleet.library import engine as engines
from fleet.library.jobs import job_id, workload_ids
from fleet.library.schema import candidate_claims as claims
from fleet.library.schema import insert_into, job_orders, jobs, records, workloads
from fleet.library.values import SCHEDULED, JobState, RecordKind

_NOT_RUN = (ErrorKind.LEASE_ENDED, ErrorKind.ARTIFACT_MISSING)
"""Records of these do not keep anybody from measuring the candidate."""


class CandidateClaims:
    """The claims in one library. Every call is one transaction."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine

    def take(self, job_name: str, workload: str, scope: RecordScope, traces: Mapping[str, str]) -> frozenset[str]:
        """Claim candidates, and return the digests of those that this job may measure.

        Left out are those that another running job has, that have a record in this scope, and those under which any
        device broke down.

        Args:
            traces: by digest.

        Raises:
            NotFound: no such job or workload.
        """
        with engines.writing(self._engine) as connection:
            owner, key = job_id(connection, job_name), _key(connection, workload, scope)
            free = set(traces) - _settled(connection, key, set(traces))
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


def _settled(connection: sa.Connection, key: Mapping[str, object], digests: set[str]) -> set[str]:
    """Return the digests that nobody should measure."""
    is_measured = sa.and_(
        *(records.c[name] == value for name, value in key.items()),
        sa.or_(records.c.error.is_(None), records.c.error.not_in(sorted(_NOT_RUN))),
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
