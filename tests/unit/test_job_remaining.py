"""The remaining time of a search follows from the pace of its results."""

from __future__ import annotations

import random

from fleet.domain.jobs import Remaining
from fleet.jobs.remaining import remaining


def test_a_steady_pace_leaves_no_spread() -> None:
    """Two trials a second: 40 trials take 20 s."""
    found = remaining([number / 2 for number in range(41)], 40)

    assert found == Remaining(from_sec=20.0, expected_sec=20.0, by_sec=20.0)
    assert str(found) == "about 20 s of search left (20 to 20)"


def test_four_times_in_five_the_end_lies_within_the_spread() -> None:
    """The blocks' times are drawn at random; coverage is counted over 400 searches."""
    rng, inside = random.Random(0), 0
    for _ in range(400):
        at_sec, times = 0.0, [0.0]
        for _ in range(40):
            step_sec = rng.expovariate(1.0)
            times += [at_sec + step_sec] * 8
            at_sec += step_sec
        found = remaining(times, 160)
        assert found is not None
        inside += found.from_sec <= sum(rng.expovariate(1.0) for _ in range(20)) <= found.by_sec

    assert 0.72 <= inside / 400 <= 0.88


def test_no_search_outlasts_its_limit_and_a_few_results_tell_nothing() -> None:
    """A deadline bounds all three times."""
    times = [float(number) for number in range(33)]

    assert remaining(times, 1_000, limit_sec=7.0) == Remaining(from_sec=7.0, expected_sec=7.0, by_sec=7.0)
    assert remaining(times[:24], 10) is None
    assert remaining([], 10, limit_sec=7.0) == Remaining(from_sec=7.0, expected_sec=7.0, by_sec=7.0)
    assert remaining(times, 0) == Remaining(from_sec=0.0, expected_sec=0.0, by_sec=0.0)
