"""The builders of one process take turns between accounts, and serve the most valuable job of each first."""

from __future__ import annotations

import random
from collections import Counter
from concurrent.futures import Future
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.errors import BuildError
from fleet.optimizer.builder_plan import BuilderPlan, PlannedPool, shared


class ManualPool:
    """A pool whose tasks end when a test says so; `running` has them in the order in which they began."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.hosts = frozenset({"here"})
        self.running: list[tuple[str, Future[Any]]] = []
        self.is_closed = False
        self.now_sec = 0.0

    def submit(self, fn: Any, /, *args: Any, **_: Any) -> Future[Any]:
        if self.is_closed:
            raise RuntimeError("closed")
        future: Future[Any] = Future()
        future.set_running_or_notify_cancel()
        self.running.append((args[0], future))
        assert len(self.running) <= self.size
        return future

    def submit_within(self, timeout_sec: float, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        return self.submit(fn, *args, **kwargs)

    def submit_near(self, key: str, timeout_sec: float, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        return self.submit(fn, *args, **kwargs)

    def end(self, index: int = 0, *, took_sec: float = 1.0) -> str:
        """End a task and return its name."""
        self.now_sec += took_sec
        name, future = self.running.pop(index)
        future.set_result(name)
        return name


def plan_of(pool: ManualPool, jobs: int = 2) -> BuilderPlan:
    return BuilderPlan(pool, lambda: jobs, lambda: pool.now_sec)


def drained(pool: ManualPool) -> list[str]:
    """Return the names of all tasks in the order in which they began."""
    found = []
    while pool.running:
        found.append(pool.end())
    return found


def put(seat: PlannedPool, name: str) -> Future[Any]:
    return seat.submit(print, name)


def test_the_job_with_the_most_valuable_batch_goes_first() -> None:
    """Its worth counts when a builder becomes free, not when the task came."""
    pool = ManualPool(1)
    plan = plan_of(pool)
    worths = {"a": 1.0, "b": 3.0, "c": 2.0}
    seats = {name: plan.seat("team", partial(worths.__getitem__, name)) for name in worths}
    put(seats["a"], "first")
    for name, seat in seats.items():
        put(seat, name)

    worths["a"] = 9.0

    assert drained(pool) == ["first", "a", "b", "c"]


def test_accounts_take_turns_however_many_tasks_they_have() -> None:
    """A hog with a hundred tasks of the highest worth gets half of the builders' time."""
    pool = ManualPool(2)
    plan = plan_of(pool)
    hog, other = plan.seat("hog", lambda: 1e9), plan.seat("other", lambda: 1e-9)
    for _ in range(100):
        put(hog, "hog")
    for _ in range(20):
        put(other, "other")

    began = Counter(drained(pool)[:40])

    assert abs(began["hog"] - began["other"]) <= 2, began


def test_jobs_that_share_a_workload_pay_equal_parts_of_its_tasks() -> None:
    """Two accounts that share a search pay half each, and their charges stay equal."""
    pool = ManualPool(1)
    plan = plan_of(pool)
    seat, other = plan.seat("a", lambda: 1.0, "jobs/a"), plan.seat("b", lambda: 1.0, "jobs/b")
    sharing = shared(seat, ["jobs/b"])
    for _ in range(60):
        sharing.submit(print, "shared")
        put(seat, "own")
        put(other, "other")

    began = Counter(drained(pool)[:60])

    assert isinstance(sharing, PlannedPool)
    by_a, by_b = began["own"] + began["shared"] / 2, began["other"] + began["shared"] / 2
    assert abs(by_a - by_b) <= 2, began


def test_an_account_that_comes_back_has_saved_no_turns() -> None:
    """Otherwise it would have all builders until it had caught up."""
    pool = ManualPool(1)
    plan = plan_of(pool)
    steady, rare = plan.seat("steady", lambda: 1.0), plan.seat("rare", lambda: 1.0)
    for _ in range(50):
        put(steady, "steady")
    for _ in range(30):
        pool.end()
    for _ in range(10):
        put(rare, "rare")

    began = Counter(drained(pool)[:10])

    assert began["steady"] >= 4, began


@pytest.mark.parametrize(("size", "jobs", "searches"), [(1, 2, 1), (2, 2, 1), (4, 2, 3), (4, 1, 4)])
def test_searches_leave_a_builder_for_the_builds_of_other_jobs(size: int, jobs: int, searches: int) -> None:
    """With a single builder a search has to have it; a job without others searches with all."""
    pool = ManualPool(size)
    seat = plan_of(pool, jobs).seat("team", lambda: 1.0)
    for _ in range(5):
        seat.submit_near("workload", 60.0, print, "search")

    assert len(pool.running) == searches
    put(seat, "build")
    assert [name for name, _ in pool.running].count("build") == (1 if searches < size else 0)


@given(size=st.integers(1, 4), steps=st.lists(st.integers(0, 5), max_size=40), rng=st.randoms(use_true_random=False))
def test_every_task_ends_and_no_builder_is_idle(size: int, steps: list[int], rng: random.Random) -> None:
    """Tasks come, end and are cancelled in any order; in the end each future is done."""
    pool = ManualPool(size)
    plan = plan_of(pool)
    seats = [plan.seat(account, lambda: 1.0) for account in "abc"]
    futures = []
    for number, step in enumerate(steps):
        if step < 4:
            futures.append(put(seats[step % 3], str(number)))
        elif step == 4 and pool.running:
            pool.end(rng.randrange(len(pool.running)))
        elif futures:
            rng.choice(futures).cancel()
        waiting = sum(not future.done() and not future.running() for future in futures)
        assert not waiting or len(pool.running) == size
    drained(pool)

    assert all(future.done() for future in futures)


def test_errors_reach_the_caller_and_free_the_builder() -> None:
    """Those of a task, and of a pool that was closed meanwhile."""
    pool = ManualPool(1)
    seat = plan_of(pool).seat("team", lambda: 1.0)
    failing, late = put(seat, "a"), put(seat, "b")
    pool.is_closed = True
    pool.running.pop()[1].set_exception(BuildError("it crashed"))

    with pytest.raises(BuildError, match="it crashed"):
        failing.result(0)
    with pytest.raises(RuntimeError, match="closed"):
        late.result(0)


@st.composite
def lab(draw: st.DrawFn) -> list[tuple[str, float]]:
    """Jobs of several accounts: their account, and the worth of their next batches."""
    return [(draw(st.sampled_from("abc")), draw(st.floats(1e-9, 1e9))) for _ in range(draw(st.integers(2, 6)))]


def order_of(jobs: list[tuple[str, float]], names: list[str], *, tasks: int = 4, factor: float = 1.0) -> list[str]:
    """Return the order in which one builder serves the jobs; `factor` scales the worths of account a."""
    pool = ManualPool(1)
    plan = plan_of(pool, len(jobs))
    put(plan.seat("nobody", lambda: 0.0), "first")
    by_name = dict(zip(sorted(names), jobs, strict=True))
    seats = {}
    for name in names:
        account, worth = by_name[name]
        scaled = worth * factor if account == "a" else worth
        seats[name] = plan.seat(account, partial(float, scaled), name)
    for _ in range(tasks):
        for name in names:
            put(seats[name], name)
    return drained(pool)[1:]


@given(jobs=lab(), rng=st.randoms(use_true_random=False))
def test_the_order_of_arrival_decides_nothing_but_equal_worths(
    jobs: list[tuple[str, float]], rng: random.Random
) -> None:
    """Whichever job asks first at a busy builder, accounts and worths decide."""
    distinct = [(account, worth + index * 1e10) for index, (account, worth) in enumerate(jobs)]
    names = [f"jobs/{number}" for number in range(len(jobs))]

    assert order_of(distinct, names) == order_of(distinct, rng.sample(names, len(names)))


@given(jobs=lab(), factor=st.sampled_from([1e-6, 0.5, 3.0, 1e6]))
def test_the_scale_of_an_accounts_worths_moves_no_other_account(jobs: list[tuple[str, float]], factor: float) -> None:
    """A stranger's worths, however large, change neither its turns nor those of others."""
    names = [f"jobs/{number}" for number in range(len(jobs))]

    assert order_of(jobs, names) == order_of(jobs, names, factor=factor)


@given(jobs=lab())
def test_no_account_waits_longer_than_its_share_allows(jobs: list[tuple[str, float]]) -> None:
    """While it has tasks, it is served at least once in as many turns as there are accounts."""
    names = [f"jobs/{number}" for number in range(len(jobs))]
    accounts = dict(zip(names, (account for account, _ in jobs), strict=True))
    count = len(set(accounts.values()))

    served = [accounts[name] for name in order_of(jobs, names, tasks=6)]

    for start in range(6 - count):  # each account has tasks at least until then
        window = served[start * count : (start + 1) * count]
        assert len(set(window)) == len(window) == count, served


def test_a_finished_job_gets_nothing() -> None:
    """Its cancelled tasks take no turn, and its account owes nothing."""
    pool = ManualPool(1)
    plan = plan_of(pool)
    ended, goes_on = plan.seat("a", lambda: 9.0, "jobs/ended"), plan.seat("b", lambda: 1.0, "jobs/on")
    put(goes_on, "first")
    waiting = [put(ended, "ended") for _ in range(3)]
    put(goes_on, "second")

    assert all(future.cancel() for future in waiting)

    assert drained(pool) == ["first", "second"]
