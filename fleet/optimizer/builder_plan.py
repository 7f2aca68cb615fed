"""One plan for the builders of all jobs of a process: which search or build is next.

Accounts take turns by the builder time that they have had (start-time fair queueing: Goyal, Vin and Cheng, SIGCOMM
1996), as they do for devices at the tracker. Jobs that share a workload divide the time of its searches and builds.
Within an account, the job with the most valuable next batch goes first. Searches of several jobs leave one builder
free, so that a slow one never holds up another job's batch.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Collection, Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ParamSpec, Protocol, TypeVar
from weakref import WeakValueDictionary

from fleet.building.pool import Pool

P = ParamSpec("P")
T = TypeVar("T")

_NEWEST = 0.2
"""Weight of the newest task in the usual time of its kind."""


def shared(pool: Pool, jobs: Collection[str]) -> Pool:
    """Return a pool for tasks that other jobs share; the same one if it keeps no account of them."""
    return pool.shared_with(jobs) if jobs and isinstance(pool, PlannedPool) else pool


class SizedPool(Protocol):
    """A pool with a known number of workers."""

    @property
    def size(self) -> int:
        """Number of worker processes."""
        ...

    @property
    def hosts(self) -> AbstractSet[str]:
        """Fingerprints of the machines that it keeps busy."""
        ...

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]: ...

    def submit_within(
        self, timeout_sec: float, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs
    ) -> Future[T]: ...

    def submit_near(
        self, key: str, timeout_sec: float, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs
    ) -> Future[T]: ...


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Task:
    """A task that waits for a builder, or has one."""

    number: int
    account: str
    payers: tuple[str, ...]
    """Account of each job that pays an equal part of its time, this one's first; "": a job of another process."""

    worth: Callable[[], float]
    is_search: bool
    start: Callable[[], Future[Any]]
    outcome: Future[Any] = field(default_factory=Future)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Start:
    """Moment at which a task got its builder, and the time that its account was charged [s]."""

    at_sec: float
    charged_sec: float


class BuilderPlan:
    """Hands tasks of several jobs to a pool, at most one for each worker. Thread-safe."""

    def __init__(
        self, pool: SizedPool, job_count: Callable[[], int], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Args: job_count: returns the number of jobs that run."""
        self._pool = pool
        self._job_count = job_count
        self._clock = clock
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._waiting: list[_Task] = []
        self._running: dict[_Task, _Start] = {}
        self._seats: WeakValueDictionary[str, PlannedPool] = WeakValueDictionary()
        """By name of the job, while it runs."""

        self._used_sec: dict[str, float] = {}
        """Builder time of each account with a task, beginning with that of the least served one. A task counts with the
        usual time of its kind until it ends. Accounts are at most a task apart, so one that comes back owes nothing."""

        self._usual_sec = {False: 0.5, True: 1.0}
        """Moving average of the times of builds and of searches."""

    def seat(self, account: str, worth: Callable[[], float], job: str = "") -> PlannedPool:
        """Return the pool of one job.

        Args:
            worth: returns the worth of the job's next batch, in the prioritizer's currency.
            job: its name, by which other jobs share tasks with it.
        """
        found = PlannedPool(self, self._pool, account, worth)
        if job:
            self._seats[job] = found
        return found

    def account_of(self, job: str) -> str:
        """Return the account of a job of this process; "" for others."""
        seat = self._seats.get(job)
        return "" if seat is None else seat.account

    def put(
        self,
        account: str,
        worth: Callable[[], float],
        start: Callable[[], Future[T]],
        *,
        others: Sequence[str] = (),
        is_search: bool = False,
    ) -> Future[T]:
        """Start a task when it is its turn, and return its future.

        Args:
            others: accounts of other jobs that pay equal parts of its time.
        """
        task = _Task(
            number=next(self._numbers),
            account=account,
            payers=(account, *others),
            worth=worth,
            is_search=is_search,
            start=start,
        )
        with self._lock:
            active = {each.account for each in (*self._waiting, *self._running)}
            self._used_sec = {each: sec for each, sec in self._used_sec.items() if each in active}
            if account not in active:
                self._used_sec[account] = min(self._used_sec.values(), default=0.0)
            self._waiting.append(task)
        self._fill()
        return task.outcome

    def _fill(self) -> None:
        """Start tasks while builders are free."""
        while (task := self._take()) is not None:
            if not task.outcome.set_running_or_notify_cancel():
                self._free(task)
                continue
            try:
                task.start().add_done_callback(partial(self._end, task))
            except RuntimeError as error:  # the pool is closed
                self._free(task)
                task.outcome.set_exception(error)

    def _take(self) -> _Task | None:
        with self._lock:
            if len(self._running) >= self._pool.size:
                return None
            searches = sum(task.is_search for task in self._running)
            may_search = self._job_count() < 2 or searches < max(1, self._pool.size - 1)
            able = [task for task in self._waiting if may_search or not task.is_search]
            if not able:
                return None
            task = min(able, key=lambda each: (self._used_sec[each.account], each.account, -each.worth(), each.number))
            self._waiting.remove(task)
            self._running[task] = _Start(at_sec=self._clock(), charged_sec=self._usual_sec[task.is_search])
            self._charge(task, self._usual_sec[task.is_search])
            return task

    def _free(self, task: _Task) -> None:
        with self._lock:
            start = self._running.pop(task)
            took_sec = self._clock() - start.at_sec
            self._charge(task, took_sec - start.charged_sec)
            self._usual_sec[task.is_search] += _NEWEST * (took_sec - self._usual_sec[task.is_search])

    def _charge(self, task: _Task, sec: float) -> None:
        """Divide a time among the payers. Accounts without a task owe nothing, as when they come back."""
        for payer in task.payers:
            if payer in self._used_sec:
                self._used_sec[payer] += sec / len(task.payers)

    def _end(self, task: _Task, inner: Future[Any]) -> None:
        self._free(task)
        if inner.cancelled():  # the pool was closed
            task.outcome.set_exception(CancelledError())
        elif (error := inner.exception()) is not None:
            task.outcome.set_exception(error)
        else:
            task.outcome.set_result(inner.result())
        self._fill()


class PlannedPool:
    """The pool as one job sees it."""

    def __init__(
        self,
        plan: BuilderPlan,
        pool: SizedPool,
        account: str,
        worth: Callable[[], float],
        others: Sequence[str] = (),
    ) -> None:
        """Use `BuilderPlan.seat`."""
        self.account = account
        self._plan = plan
        self._pool = pool
        self._worth = worth
        self._put = partial(plan.put, account, worth, others=others)

    def shared_with(self, jobs: Collection[str]) -> PlannedPool:
        """Return a pool for tasks that other jobs pay for, too."""
        others = [self._plan.account_of(job) for job in sorted(jobs)]
        return PlannedPool(self._plan, self._pool, self.account, self._worth, others)

    @property
    def hosts(self) -> AbstractSet[str]:
        """Fingerprints of the machines that it keeps busy."""
        return self._pool.hosts

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Run a task within the pool's time limit."""
        return self._put(partial(self._pool.submit, fn, *args, **kwargs))

    def submit_within(self, timeout_sec: float, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Run a task within a time limit of its own."""
        return self._put(partial(self._pool.submit_within, timeout_sec, fn, *args, **kwargs))

    def submit_near(
        self, key: str, timeout_sec: float, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs
    ) -> Future[T]:
        """Run a search, preferably in the worker that ran earlier tasks of this key."""
        return self._put(partial(self._pool.submit_near, key, timeout_sec, fn, *args, **kwargs), is_search=True)
