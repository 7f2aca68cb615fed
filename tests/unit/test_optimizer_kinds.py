"""A job with several kinds of boards spends its trials where they gain most."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.domain.decisions import Motive, Reason
from fleet.optimizer.core.kinds import Seat, TrialsOfKinds
from fleet.optimizer.core.progress import JobProgress
from fleet.optimizer.prioritizer.values import ProposedBatch
from tests.unit.optimizer_core import known

BATCH = 4
Worth = Callable[[int], float]
"""Worth of a kind's next batch, by its number of trials."""


def batch(worth: float, motive: Motive = Motive.GAIN) -> ProposedBatch:
    reason = Reason(
        motive=motive,
        gain_sec=1.0,
        spread_sec=1.0,
        horizon=1,
        device_sec=1.0,
        builder_sec=1.0,
        weight=1.0,
        priority=1.0,
        trust=1.0,
        worth=worth,
    )
    return ProposedBatch(workload="w", job="jobs/1", device_model="", count=BATCH, expected_share=0.1, reason=reason)


class Fleet:
    """Kinds of boards that measure a batch whenever they may."""

    def __init__(self, shares: Sequence[int], worths: Sequence[Worth]) -> None:
        self.trials = TrialsOfKinds()
        self.worths = worths
        self.now_sec = 0.0
        self.total = sum(shares)
        self.seats = [self.trials.seat(JobProgress(trials_total=share, workloads=[known()])) for share in shares]
        for seat, worth in zip(self.seats, worths, strict=True):
            seat.progress.planned = [batch(worth(0))]

    def step(self, index: int) -> bool:
        """Let a kind measure a batch; False if it waits or has ended."""
        seat = self.seats[index]
        self.now_sec += 1.0
        if seat.is_over:
            return False
        seat.progress.planned = [batch(self.worths[index](seat.used))]
        seat.top_up(BATCH, self.now_sec)
        assert all(0 <= each.left for each in self.seats)
        assert sum(each.progress.trials_total for each in self.seats) == self.total
        if seat.left < 1:
            seat.is_over = True
            return False
        if seat.must_wait(seat.progress.planned[0], self.now_sec):
            return False
        seat.progress.workloads[0].trials += min(BATCH, seat.left)
        return True

    def run(self, rng: random.Random) -> list[int]:
        """Take turns in random order until all trials are used; return the trials of each kind."""
        idle = 0
        while any(not seat.is_over for seat in self.seats):
            order = rng.sample(range(len(self.seats)), len(self.seats))
            moved = [self.step(index) for index in order]
            idle = 0 if any(moved) else idle + 1
            assert idle <= len(self.seats), "all kinds wait"  # a worth is as old as its kind's last turn
        return [seat.used for seat in self.seats]


@st.composite
def kinds(draw: st.DrawFn) -> tuple[list[int], list[Worth]]:
    shares = draw(st.lists(st.integers(0, 60), min_size=1, max_size=4))
    firsts = [draw(st.floats(1e-6, 1e6)) for _ in shares]
    rates = [draw(st.floats(0.5, 1.0)) for _ in shares]
    return shares, [lambda used, a=a, r=r: a * r**used + 1e-9 for a, r in zip(firsts, rates, strict=True)]  # type: ignore[misc]


@settings(deadline=None)
@given(given_kinds=kinds(), seed=st.integers(0, 1000))
def test_all_trials_are_used_and_no_kind_starves(given_kinds: tuple[list[int], list[Worth]], seed: int) -> None:
    """However worths fall: some kind always measures, the total stays, and each gets a quarter of an equal share."""
    shares, worths = given_kinds

    used = Fleet(shares, worths).run(random.Random(seed))

    assert sum(used) == sum(shares)
    least = int(sum(shares) / len(shares) / 4)
    assert all(count >= min(least, share) for count, share in zip(used, shares, strict=True))


@given(seed=st.integers(0, 1000))
def test_trials_go_to_the_kind_where_they_gain_more(seed: int) -> None:
    """One that gains a tenth as much gets its least share, in any order of the kinds' turns."""
    used = Fleet([40, 40], [lambda _: 10.0, lambda _: 1.0]).run(random.Random(seed))

    assert used == [68, 12]


def test_kinds_of_similar_worth_measure_side_by_side() -> None:
    """A board does not stand still for a small difference of estimates."""
    fleet = Fleet([40, 40], [lambda _: 1.5, lambda _: 1.0])

    assert [fleet.step(index) for index in (0, 1) * 5] == [True] * 10


def test_a_search_that_ends_early_leaves_its_trials_to_the_others() -> None:
    """Even to a kind with little to gain."""
    fleet = Fleet([40, 40], [lambda _: 10.0, lambda _: 1.0])
    fleet.step(0)
    fleet.seats[0].is_over = True

    assert fleet.run(random.Random(0)) == [4, 76]


def test_no_kind_waits_for_a_stalled_one() -> None:
    """The better board may be leased by others for hours."""
    fleet = Fleet([40, 40], [lambda _: 10.0, lambda _: 1.0])
    for _ in range(3):
        fleet.step(0)
        fleet.step(1)
    assert not fleet.step(1)

    fleet.now_sec += 1000.0

    assert fleet.step(1)


@pytest.mark.parametrize("is_bound_by_time", [False, True])
def test_first_batches_and_jobs_limited_by_time_never_wait(is_bound_by_time: bool) -> None:
    """A first batch's gain is unknown. Without a limit of trials, a board that waits only loses time."""
    fleet = Fleet([40, 40], [lambda _: 10.0, lambda _: 1.0])
    for seat in fleet.seats:
        seat.progress.workloads[0].trials = 20
        seat.progress.is_bound_by_time = is_bound_by_time
    fleet.step(0)
    seat = fleet.seats[1]

    assert seat.must_wait(batch(1.0), fleet.now_sec) is not is_bound_by_time
    assert not seat.must_wait(batch(1.0, Motive.FIRST), fleet.now_sec)


def test_trials_spent_beyond_a_share_before_an_interruption_are_owed() -> None:
    """The continued job makes no more trials than its user wants, whichever kind begins first."""
    fleet = Fleet([0, 20], [lambda _: 10.0, lambda _: 1.0])
    fleet.trials.owe(6)
    assert [seat.left for seat in fleet.seats] == [0, 14]

    fleet.trials.owe(20)
    late = fleet.trials.seat(JobProgress(trials_total=30, workloads=[known()]))
    fleet.trials.owe(0)

    assert [seat.left for seat in (*fleet.seats, late)] == [0, 0, 24]


def test_a_kind_alone_is_its_own_master() -> None:
    """The code of `fleet tune` with one kind is the same."""
    seat = TrialsOfKinds().seat(JobProgress(trials_total=8, workloads=[known()]))
    seat.progress.planned = [batch(1e-9)]

    seat.top_up(16, 0.0)

    assert isinstance(seat, Seat)
    assert (seat.left, seat.must_wait(batch(1e-9), 0.0), math.isfinite(seat.worth)) == (8, False, True)
