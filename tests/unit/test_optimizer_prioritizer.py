"""The next batch goes where it is worth most."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.optimizer.core.prioritizer import GradientPrioritizer, Standing


def standing(*best: float, weight: float = 1.0, device_sec: float = 1.0, is_open: bool = True) -> Standing:
    return Standing(
        weight=weight,
        best_after_batch=best,
        batches_spent=len(best) - 1,
        batch_device_sec=device_sec,
        is_open=is_open,
    )


def test_an_unknown_workload_goes_first() -> None:
    """A workload without any time is worth more than every known one."""
    assert 1 == GradientPrioritizer().choose([standing(9.0), standing(math.inf)])


def test_the_costliest_goes_first() -> None:
    """With nothing tried yet, weight times time decides."""
    assert 1 == GradientPrioritizer().choose([standing(3.0), standing(2.0, weight=2.0), standing(1.0)])


def test_what_falls_is_followed() -> None:
    """Of two alike workloads, the one that got faster lately is worth more."""
    assert 1 == GradientPrioritizer().choose([standing(5.0, 4.0, 4.0), standing(9.0, 6.0, 4.0)])


def test_the_first_fall_does_not_count() -> None:
    """What a workload gained over its unscheduled program says nothing of the next batch: untried ones go first."""
    assert 1 == GradientPrioritizer().choose([standing(90.0, 1.0), standing(2.0), standing(50.0, 1.5)])


def test_each_workload_that_matters_gets_a_batch_before_any_gets_two() -> None:
    """Nobody knows what the first gains; what takes less than a hundredth of the model's time waits."""
    assert 1 == GradientPrioritizer().choose([standing(9.0, 8.0), standing(0.5)])
    assert 0 == GradientPrioritizer().choose([standing(9.0, 8.0), standing(0.05)])


def test_a_costly_workload_does_not_take_what_others_could_use() -> None:
    """Of two that never fall, one nine times as costly gets about three times the batches."""
    histories, counts = [[9.0, 9.0], [1.0, 1.0]], [0, 0]
    for _ in range(40):
        chosen = GradientPrioritizer().choose([standing(*history) for history in histories])
        assert chosen is not None
        counts[chosen] += 1
        histories[chosen].append(histories[chosen][-1])

    assert 2 < counts[0] / counts[1] < 4


def test_dear_device_time_counts() -> None:
    """Of two equal gains, the one that takes less device time is taken."""
    assert 1 == GradientPrioritizer().choose([standing(1.0, device_sec=4.0), standing(1.0, device_sec=1.0)])


def test_closed_workloads_get_nothing() -> None:
    """When all are closed there is no next batch."""
    assert GradientPrioritizer().choose([standing(1.0, is_open=False)]) is None


@pytest.mark.parametrize("order", tuple(itertools.permutations(range(3))))
def test_the_choice_does_not_depend_on_the_order(order: tuple[int, ...]) -> None:
    """The same workload is chosen whatever the order of the list."""
    standings = [standing(4.0, 3.0), standing(8.0, 2.0), standing(2.0, 1.0)]

    chosen = GradientPrioritizer().choose([standings[index] for index in order])

    assert chosen is not None
    assert 0 == order[chosen]


@given(
    times=st.lists(st.floats(1e-6, 1.0), min_size=1, max_size=6),
    weights=st.lists(st.integers(1, 20), min_size=6, max_size=6),
)
def test_no_open_workload_is_left_out_for_ever(times: list[float], weights: list[int]) -> None:
    """A workload whose time never falls is worth less with each batch, so every one gets its batches."""
    histories = [[time] for time in times]
    counts = [0] * len(times)
    for _ in range(600):
        chosen = GradientPrioritizer().choose(
            [standing(*history, weight=weight) for history, weight in zip(histories, weights, strict=False)]
        )
        assert chosen is not None
        counts[chosen] += 1
        histories[chosen].append(histories[chosen][-1])
        if all(counts):
            return
    share = [weight * time for time, weight in zip(times, weights, strict=False)]
    assert max(share) / min(share) > 50, counts
