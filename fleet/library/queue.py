"""Queue of submitted jobs, shared by many optimizers.

    queue = library.queue
    job = queue.submit(title="squeezenet", spec={...})   # anybody
    mine = queue.take(optimizer)                         # an optimizer: RUNNING, and claimed until CLAIM_SEC from now
    queue.renew(optimizer, [mine.name])                  # every second or two
    queue.end(mine.name, optimizer, JobState.FINISHED)

A job has one optimizer at a time. Its claim expires, and then another may take it; an optimizer that lost a claim
learns it from `renew` and `end`, which then change nothing.
"""

from __future__ import annotations

import enum
import uuid
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta

import sqlalchemy as sa

from fleet.errors import InvalidRequest
from fleet.library import claims
from fleet.library import engine as engines
from fleet.library import jobs as stored
from fleet.library.ownership import ANYBODY, Caller, check_owner, store_owner
from fleet.library.rows import clean
from fleet.library.schema import job_orders as orders
from fleet.library.schema import jobs, optimizers
from fleet.library.tags import store_tags
from fleet.library.values import Job, JobState, OptimizerRecord

CLAIM_SEC = 30.0
"""Time to live of a claim that is not renewed. The end of an optimizer on the same host is detected at once."""

_FORGOTTEN_AFTER = timedelta(days=1)
"""Silence after which an optimizer is forgotten: it is gone, and not only disconnected."""

_NOBODY: Mapping[str, object] = {"host": "", "pid": 0, "process_started_sec": 0.0}
_UNDER_WAY = (JobState.QUEUED, JobState.RUNNING)


class Standing(enum.Enum):
    """State of a job, returned when an optimizer renews its claim."""

    KEPT = "kept"
    STOP_ASKED = "stop asked"
    LOST = "lost"
    """Another optimizer may have it: stop, and write nothing."""


class JobQueue:
    """The queue of one library. Every call is one transaction; see `fleet.library.store`."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine

    def submit(
        self,
        *,
        title: str,
        spec: Mapping[str, object],
        priority: int = 0,
        holder: str = "",
        owner: str = "",
        tags: Iterable[str] = (),
    ) -> Job:
        """Submit a job, which any optimizer may claim.

        Args:
            owner: key id of the owning account; empty if every account may change the job.
        """
        fields = {
            "title": clean(title),
            "model_digest": "",
            "conditions": {},
            "tuner": "",
            "state": JobState.QUEUED.value,
            "holder": clean(holder),
            "trials_total": 0,
            **_NOBODY,
        }
        order = {"spec": dict(spec), "priority": priority, "is_queued": True}
        with engines.writing(self._engine) as connection:
            name = stored.insert_job(connection, fields)
            stored.insert_order(connection, name, order)
            store_owner(connection, stored.job_id(connection, name), owner)
            store_tags(connection, stored.job_id(connection, name), tags)
            return stored.read_jobs(connection, name=name)[0]

    def get(self, name: str) -> Job:
        """Return a job. Raises NotFound."""
        with engines.reading(self._engine) as connection:
            return _only(connection, name)

    def take(self, optimizer: str, *, tracker: str | None = None, fleet_id: str = "") -> Job | None:
        """Claim the next job: the highest priority, then the oldest. None if the queue is empty.

        Args:
            tracker: take only jobs for this address, and those that name none.
            fleet_id: the tracker's id of its fleet: jobs for it are taken under any of its addresses, and none for
            another fleet with the same address elsewhere.
        """
        with engines.reading(self._engine) as connection:  # usually the queue is empty, and reading writes nothing
            is_waiting = sa.select(jobs.c.id).where(jobs.c.state == JobState.QUEUED.value).limit(1)
            if connection.scalar(is_waiting) is None and not stored.abandoned(connection):
                return None
        with engines.writing(self._engine) as connection:
            stored.interrupt_abandoned(connection)
            query = (
                sa.select(jobs.c.id, jobs.c.name, orders.c.spec)
                .select_from(jobs.join(orders))
                .where(jobs.c.state == JobState.QUEUED.value)
                .order_by(orders.c.priority.desc(), jobs.c.id)
            )
            for row in connection.execute(query).all():
                if _is_for(row.spec or {}, tracker, fleet_id) and _claim(connection, row.id, optimizer):
                    return stored.read_jobs(connection, name=row.name)[0]
        return None

    def renew(self, optimizer: str, names: Sequence[str]) -> dict[str, Standing]:
        """Renew the claims on jobs, and return the state of each."""
        found = dict.fromkeys(names, Standing.LOST)
        with engines.writing(self._engine) as connection:
            query = sa.select(jobs.c.id, jobs.c.name, orders.c.is_stop_asked).select_from(jobs.join(orders))
            mine = connection.execute(query.where(_owned(optimizer), jobs.c.name.in_(names))).all()
            owners = [row.id for row in mine]
            # first: every transaction locks a job before its order, which prevents deadlocks
            stored.touch(connection, owners)
            is_mine = orders.c.job_id.in_(owners) & (orders.c.optimizer == optimizer)
            connection.execute(orders.update().where(is_mine).values(claimed_until=claim_end()))
        for row in mine:
            found[row.name] = Standing.STOP_ASKED if row.is_stop_asked else Standing.KEPT
        return found

    def begin(
        self,
        name: str,
        optimizer: str,
        *,
        model_digest: str,
        trials_total: int,
        tuner: str,
        conditions: Mapping[str, object],
    ) -> Job:
        """Store the facts from reading a job's model. Raises NotFound."""
        values = {
            "model_digest": model_digest,
            "trials_total": trials_total,
            "conditions": dict(conditions),
            "tuner": tuner,
        }
        with engines.writing(self._engine) as connection:
            connection.execute(jobs.update().where(jobs.c.id == _owner(connection, name, optimizer)).values(values))
            return _only(connection, name)

    def tell(self, name: str, optimizer: str, progress: Mapping[str, object]) -> None:
        """Store a job's progress."""
        with engines.writing(self._engine) as connection:
            is_it = orders.c.job_id == _owner(connection, name, optimizer)
            connection.execute(orders.update().where(is_it).values(progress=dict(progress)))

    def end(
        self,
        name: str,
        optimizer: str,
        state: JobState,
        *,
        message: str = "",
        report: Mapping[str, object] | None = None,
    ) -> bool:
        """End a job, or return it to the queue with QUEUED; a job that has to stop becomes CANCELLED. Return False,
        and change nothing, if the claim was lost.
        """
        now = datetime.now(UTC)
        freed: dict[str, object] = {"optimizer": "", "claimed_until": None, "is_stop_asked": False}
        freed |= {} if report is None else {"report": dict(report)}
        with engines.writing(self._engine) as connection:
            stored.lock(connection, [name])
            owner = _owner(connection, name, optimizer)
            if owner is None:
                return False
            if state is JobState.QUEUED and _is_stop_asked(connection, owner):
                state, message = JobState.CANCELLED, "cancelled"
            values: dict[str, object] = {"state": state.value, "message": clean(message), "touched_at": now}
            values |= {} if state is JobState.QUEUED else {"ended_at": now}
            connection.execute(jobs.update().where(jobs.c.id == owner).values(values))
            connection.execute(orders.update().where(orders.c.job_id == owner).values(freed))
            if state is JobState.FINISHED:
                claims.forget(connection, owner)
        return True

    def cancel(self, name: str, by: Caller = ANYBODY) -> Job:
        """Stop a job: at once if it waits, otherwise as soon as its optimizer notices.

        Raises:
            NotFound: no such job.
            NotAllowed: it belongs to another account, see `fleet.library.ownership`.
            InvalidRequest: it has ended, or runs in a process that does not listen.
        """
        with engines.writing(self._engine) as connection:
            job = _locked(connection, name)
            check_owner(connection, job, by)
            if job.state is JobState.RUNNING and not job.is_queued:
                raise InvalidRequest(f"{name} runs in `fleet tune` on {job.host}, process {job.pid}; stop that")
            if job.state is JobState.RUNNING:
                owner = stored.job_id(connection, name)
                connection.execute(orders.update().where(orders.c.job_id == owner).values(is_stop_asked=True))
            elif job.state in (JobState.QUEUED, JobState.INTERRUPTED):
                stored.finish(connection, name, JobState.CANCELLED, "cancelled before it ran on")
            elif job.state is not JobState.CANCELLED:
                raise InvalidRequest(f"{name} is {job.state.value.lower()}: there is nothing to cancel")
            return _only(connection, name)

    def resume(self, name: str, by: Caller = ANYBODY) -> Job:
        """Return a stopped job to the queue; it continues from its records.

        Raises:
            NotFound: no such job.
            NotAllowed: it belongs to another account.
            InvalidRequest: it is under way, done or reverted, or was never submitted to the queue.
        """
        with engines.writing(self._engine) as connection:
            stored.interrupt_abandoned(connection)
            job = _locked(connection, name)
            check_owner(connection, job, by)
            if job.state in _UNDER_WAY:
                raise InvalidRequest(f"{name} is {job.state.value.lower()} already")
            if job.state is JobState.FINISHED:
                raise InvalidRequest(f"{name} is done; submit its model again for more trials: they add to its records")
            if job.reverted_at is not None:
                raise InvalidRequest(f"{name} is reverted; use its records again: fleet jobs revert --undo {name}")
            if job.spec is None:
                raise InvalidRequest(f"{name} ran in `fleet tune`; the same command goes on from its records")
            values = {"state": JobState.QUEUED.value, "message": "", "ended_at": None}
            connection.execute(jobs.update().where(jobs.c.name == name).values(values))
            return _only(connection, name)

    def revert(self, name: str, by: Caller = ANYBODY, *, is_undone: bool = False) -> Job:
        """Exclude a job's records from all uses, or include them again. They stay in the library.

        Raises:
            NotFound: no such job.
            NotAllowed: it belongs to another account.
            InvalidRequest: it is under way.
        """
        with engines.writing(self._engine) as connection:
            job = _locked(connection, name)
            check_owner(connection, job, by)
            if job.state in _UNDER_WAY:
                raise InvalidRequest(f"{name} is {job.state.value.lower()}; cancel it first")
            owner, at = stored.job_id(connection, name), None if is_undone else job.reverted_at or datetime.now(UTC)
            if not connection.execute(orders.update().where(orders.c.job_id == owner).values(reverted_at=at)).rowcount:
                stored.insert_order(connection, name, {"reverted_at": at})
            return _only(connection, name)

    def register(self, *, tracker: str, holder: str) -> str:
        """Register this process as an optimizer; return its name. The entry expires without calls of `alive`."""
        now, name = datetime.now(UTC), f"optimizers/{uuid.uuid4().hex[:12]}"
        row = {
            "name": name,
            "tracker": tracker,
            "holder": clean(holder),
            "started_at": now,
            "alive_until": claim_end(),
        }
        with engines.writing(self._engine) as connection:
            connection.execute(optimizers.delete().where(optimizers.c.alive_until < now - _FORGOTTEN_AFTER))
            connection.execute(optimizers.insert(), {**row, **stored.this_process()})
        return name

    def alive(self, optimizer: str) -> None:
        """Record a heartbeat of an optimizer."""
        with engines.writing(self._engine) as connection:
            is_it = optimizers.c.name == optimizer
            connection.execute(optimizers.update().where(is_it).values(alive_until=claim_end()))

    def leave(self, optimizer: str) -> None:
        """Remove an optimizer from the list."""
        with engines.writing(self._engine) as connection:
            connection.execute(optimizers.delete().where(optimizers.c.name == optimizer))

    def optimizers(self) -> list[OptimizerRecord]:
        """Return the optimizers with live entries, oldest first."""
        query = sa.select(optimizers).where(optimizers.c.alive_until > datetime.now(UTC))
        with engines.reading(self._engine) as connection:
            rows = connection.execute(query.order_by(optimizers.c.started_at)).mappings().all()
        here = stored.this_process()["host"]
        names = ("name", "tracker", "holder", "host", "pid", "started_at")
        return [
            OptimizerRecord(**{name: row[name] for name in names})
            for row in rows
            if row["host"] != here or stored.is_process_alive(row["pid"], row["process_started_sec"])
        ]


def _is_for(spec: Mapping[str, object], tracker: str | None, fleet_id: str) -> bool:
    if fleet_id and spec.get("fleet_id"):
        return spec["fleet_id"] == fleet_id
    return tracker is None or spec.get("tracker") in (None, "", tracker)


def _only(connection: sa.Connection, name: str) -> Job:
    stored.job_id(connection, name)
    return stored.read_jobs(connection, name=name)[0]


def _locked(connection: sa.Connection, name: str) -> Job:
    """Return a job, locked until the transaction ends."""
    stored.lock(connection, [name])
    return _only(connection, name)


def _owned(optimizer: str) -> sa.ColumnElement[bool]:
    return (orders.c.optimizer == optimizer) & (jobs.c.state == JobState.RUNNING.value)


def _owner(connection: sa.Connection, name: str, optimizer: str) -> int | None:
    """Return the database id of a job that an optimizer has claimed; None if the claim was lost."""
    query = sa.select(jobs.c.id).select_from(jobs.join(orders)).where(jobs.c.name == name, _owned(optimizer))
    found: int | None = connection.scalar(query)
    return found


def _is_stop_asked(connection: sa.Connection, owner: int) -> bool:
    return bool(connection.scalar(sa.select(orders.c.is_stop_asked).where(orders.c.job_id == owner)))


def _claim(connection: sa.Connection, owner: int, optimizer: str) -> bool:
    """Claim a waiting job; False if another optimizer was quicker."""
    values = {
        "state": JobState.RUNNING.value,
        "message": "",
        "touched_at": datetime.now(UTC),
        "ended_at": None,
        **stored.this_process(),
    }
    is_waiting = (jobs.c.id == owner) & (jobs.c.state == JobState.QUEUED.value)
    if not connection.execute(jobs.update().where(is_waiting).values(values)).rowcount:
        return False
    claim = {"optimizer": optimizer, "claimed_until": claim_end(), "is_stop_asked": False}
    connection.execute(orders.update().where(orders.c.job_id == owner).values(claim))
    return True


def claim_end() -> datetime:
    """Return the expiry of a claim made now."""
    return datetime.now(UTC) + timedelta(seconds=CLAIM_SEC)
