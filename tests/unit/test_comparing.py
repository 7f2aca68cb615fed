"""Comparing programs in turns: intervals of their ratios, the order of turns, and the end of rounds."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.optimizer.comparing.intervals import LOOKS, ratio_interval
from fleet.optimizer.comparing.rounds import NARROW, Rounds, rounds_budget_sec

_TIMES = st.floats(1e-6, 1e3)
_BLOCKS = st.lists(st.tuples(_TIMES, _TIMES), min_size=LOOKS[0], max_size=60)


@given(blocks=_BLOCKS, factor=st.floats(0.01, 100.0))
def test_an_interval_contains_its_ratio_and_scales_with_the_times(
    blocks: list[tuple[float, float]], factor: float
) -> None:
    """Units do not matter, and exchanging the programs inverts the interval."""
    ours, others = zip(*blocks, strict=True)
    found = ratio_interval(ours, others)
    scaled = ratio_interval([factor * sec for sec in ours], others)
    inverse = ratio_interval(others, ours)

    assert found is not None
    assert scaled is not None
    assert inverse is not None
    assert found.low <= found.ratio <= found.high
    assert scaled.low == pytest.approx(factor * found.low)
    assert inverse.high == pytest.approx(1 / found.low)
    assert inverse.low == pytest.approx(1 / found.high)


@given(blocks=_BLOCKS, spoilt=st.integers(0, LOOKS[-1] - 1))
def test_one_disturbed_block_moves_no_interval_of_many_rounds_beyond_the_others(
    blocks: list[tuple[float, float]], spoilt: int
) -> None:
    """A single outlier does not count."""
    rounds = [blocks[index % len(blocks)] for index in range(LOOKS[-1])]
    ours, others = map(list, zip(*rounds, strict=True))
    before = [one / other for one, other in zip(ours, others, strict=True)]
    ours[spoilt] *= 1e6

    found = ratio_interval(ours, others)

    assert found is not None
    assert min(before) <= found.low <= found.high <= max(before)


def test_too_few_rounds_give_no_interval() -> None:
    """Nine rounds cannot give this confidence, however clear they look."""
    assert ratio_interval([2.0] * (LOOKS[0] - 1), [1.0] * (LOOKS[0] - 1)) is None
    assert ratio_interval([2.0] * LOOKS[0], [1.0] * LOOKS[0]) is not None


def rounds_of(*names: str, budget_sec: float = math.inf, seed: int = 0) -> Rounds:
    """Return rounds that compare the first program with each other one."""
    pairs = tuple((names[0], other) for other in names[1:])
    return Rounds(names=names, pairs=pairs, budget_sec=budget_sec, rng=random.Random(seed))


@given(seed=st.integers(0, 1000))
def test_each_program_has_one_turn_a_round(seed: int) -> None:
    """The order within a round is random."""
    assert sorted(rounds_of("tuned", "static", "engine", seed=seed).order()) == ["engine", "static", "tuned"]


def test_rounds_end_when_the_ratio_is_known_or_the_budget_is_used() -> None:
    """Calm programs need the fewest rounds. Unsteady programs take the most rounds, or the number within the budget."""
    calm, wild, poor = rounds_of("a", "b"), rounds_of("a", "b"), rounds_of("a", "b", budget_sec=3.5)
    for number in range(1, LOOKS[-1] + 1):
        for rounds, spread in ((calm, 0.001), (wild, 1.0), (poor, 1.0)):
            if not rounds.is_over(number - 1.0):
                rounds.add({"a": 1.0 + spread * (number % 3), "b": 1.0})

    assert (calm.count, wild.count, poor.count) == (LOOKS[0], LOOKS[-1], LOOKS[0])
    found = calm.interval("a", "b")
    assert found is not None
    assert found.width < NARROW
    assert poor.interval("a", "b") is not None


def test_a_budget_is_exceeded_only_until_there_is_an_interval() -> None:
    """It is exceeded at most threefold: a model with runs of one second ends without an interval."""
    rounds = rounds_of("a", "b", budget_sec=1.0)
    rounds.add({"a": 1.0, "b": 1.0})

    assert not rounds.is_over(2.9)
    assert rounds.is_over(3.0)


def test_jobs_with_trials_compare_longer() -> None:
    """The comparison takes a tenth of a long search; without trials, even a slow import does not lengthen it."""
    assert rounds_budget_sec(job_sec=600.0, trials=64) == 60.0
    assert rounds_budget_sec(job_sec=5.0, trials=64) == rounds_budget_sec(job_sec=600.0, trials=0) == 2.0


def test_a_program_that_fails_takes_part_no_longer() -> None:
    """The others continue; a single remaining program needs only one round."""
    rounds = rounds_of("tuned", "static", "engine")
    rounds.add({"tuned": 1.0, "static": math.inf, "engine": 2.0})

    assert (rounds.names, rounds.pairs) == (("tuned", "engine"), (("tuned", "engine"),))
    assert rounds.best_sec("static") == math.inf
    rounds.add({"tuned": 1.0})
    assert rounds.is_over(0.0)


class Machine:
    """A machine with bursts of other work that multiply times by 1 to 3; runs vary by 0.5 %."""

    def __init__(self, rng: random.Random, *, is_busy: bool) -> None:
        self._rng, self._is_busy = rng, is_busy
        self._factor, self._left_sec = 1.0, 0.0

    def run(self, sec: float) -> float:
        """Return the time of one block."""
        if self._is_busy and self._left_sec <= 0:
            self._left_sec = self._rng.expovariate(1 / 5.0)
            self._factor = self._rng.choice([1.0, self._rng.uniform(1.0, 3.0)])
        took = sec * self._factor * self._rng.lognormvariate(0.0, 0.005)
        self._left_sec -= took
        return took


def compared(slowdown: float, seed: int, *, is_busy: bool) -> Rounds:
    """Compare a program with another that is slower by a factor."""
    machine, rounds = Machine(random.Random(seed), is_busy=is_busy), rounds_of("tuned", "static", seed=seed + 1)
    true_sec = {"tuned": slowdown, "static": 1.0}
    while not rounds.is_over(0.0):
        rounds.add({name: machine.run(true_sec[name]) for name in rounds.order()})
    return rounds


@pytest.mark.parametrize("is_busy", [True, False])
def test_equal_programs_compare_as_equal_on_a_busy_machine(is_busy: bool) -> None:
    """At least 99 % of comparisons call neither program slower."""
    found = [compared(1.0, seed, is_busy=is_busy).interval("tuned", "static") for seed in range(600)]

    assert sum(one is not None and one.low > 1.0 for one in found) <= 6


def test_a_difference_of_5_percent_is_found_on_a_calm_machine() -> None:
    """The fewest rounds are enough."""
    found = [compared(1.05, seed, is_busy=False).interval("tuned", "static") for seed in range(200)]

    assert all(one is not None and one.low > 1.0 for one in found)
