"""How often a candidate is timed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from device_agents.runtimes.evaluating import for_single_calls, run_schedule
from fleet.domain.measuring import Evaluator


class Timer:
    """Times without running: each repeat takes the next of `run_secs`."""

    def __init__(self, *run_secs: float) -> None:
        self._run_secs = list(run_secs)
        self.calls: list[tuple[int, int, int]] = []

    def __call__(self, *, number: int, repeat: int, min_repeat_ms: int) -> list[float]:
        self.calls.append((number, repeat, min_repeat_ms))
        taken, self._run_secs = self._run_secs[:repeat], self._run_secs[repeat:]
        return taken


def test_without_adaptive_knobs_it_is_one_call() -> None:
    """One call is made, as TVM would make it."""
    timer = Timer(1.0, 2.0, 3.0)

    assert run_schedule(Evaluator(number=4, repeat=3, min_repeat_ms=5), timer) == [1.0, 2.0, 3.0]
    assert timer.calls == [(4, 3, 5)]


def test_zero_means_once() -> None:
    """An empty evaluator runs once."""
    timer = Timer(1.0)

    assert run_schedule(Evaluator(), timer) == [1.0]
    assert timer.calls == [(1, 1, 0)]


def test_a_candidate_clearly_slower_stops_after_one_repeat() -> None:
    """Its device seconds are worth more elsewhere."""
    timer = Timer(1.1, 1.1, 1.1)

    assert run_schedule(Evaluator(repeat=3, give_up_above_sec=1.0), timer) == [1.1]


def test_one_that_may_win_gets_all_repeats() -> None:
    """Just below the bound is not given up."""
    timer = Timer(0.9, 1.1, 1.1)

    assert run_schedule(Evaluator(repeat=3, give_up_above_sec=1.0), timer) == [0.9, 1.1, 1.1]


def test_it_goes_on_until_the_spread_is_small() -> None:
    """It stops as soon as the spread is small."""
    timer = Timer(1.00, 1.10, 1.05, 1.04, 1.05)

    assert run_schedule(Evaluator(repeat=2, max_repeat=4, spread_target=0.001), timer) == [1.00, 1.10, 1.05, 1.04]
    timer = Timer(1.00, 1.01, 1.05)
    assert run_schedule(Evaluator(repeat=2, max_repeat=9), timer) == [1.00, 1.01]


def test_the_number_found_is_not_searched_for_again() -> None:
    """A kernel of 1 ms fills 50 ms with 53 runs in every later call."""
    timer = Timer(0.001, 0.001, 0.001)

    run_schedule(Evaluator(number=1, repeat=3, min_repeat_ms=50, max_repeat=4), timer)

    assert timer.calls == [(1, 1, 50), (53, 2, 50)]


def test_rests_between_calls_too() -> None:
    """The cooldown knobs hold for repeats that are calls of their own."""
    rests: list[float] = []

    evaluator = Evaluator(repeat=1, max_repeat=3, spread_target=1e-9, cooldown_interval_ms=20, repeats_to_cooldown=2)
    run_schedule(evaluator, Timer(1.0, 1.1, 1.2), sleep=rests.append)

    assert rests == [0.02]


@given(st.integers(1, 5), st.integers(0, 9), st.floats(0, 2), st.lists(st.floats(1e-6, 2), min_size=10, max_size=10))
def test_the_number_of_repeats_is_bounded(repeat: int, max_repeat: int, give_up: float, secs: list[float]) -> None:
    """Repeats are at least what was asked unless given up, and at most the larger of the two bounds."""
    evaluator = Evaluator(repeat=repeat, max_repeat=max_repeat, give_up_above_sec=give_up)

    done = run_schedule(evaluator, Timer(*secs))

    assert done == secs[: len(done)]
    if 0 < give_up < secs[0]:
        assert len(done) == 1
    else:
        assert repeat <= len(done) <= max(repeat, max_repeat)


def test_with_cold_caches_every_run_stands_alone() -> None:
    """TVM flushes once in a repeat; here a repeat is the mean of runs that are the first each."""
    timer = Timer(1.0, 3.0, 2.0, 4.0)

    assert run_schedule(Evaluator(number=2, repeat=2, flush_cpu_cache=True), timer) == [2.0, 3.0]
    assert timer.calls == [(1, 2, 0), (1, 2, 0)]


def test_cold_repeats_grow_to_their_shortest_time() -> None:
    """Ten milliseconds of runs of two: as many as it takes, and later repeats start with that many."""
    timer = Timer(*[0.002] * 20)

    assert run_schedule(Evaluator(repeat=2, min_repeat_ms=10, cache_flush_bytes=1), timer) == [0.002, 0.002]
    assert timer.calls == [(1, 1, 0), (1, 5, 0), (1, 6, 0)]


def test_cold_repeats_are_bounded() -> None:
    """Flushing before a run of a microsecond takes a thousand times as long."""
    timer = Timer(*[1e-6] * 1000)

    run_schedule(Evaluator(min_repeat_ms=100, f_preproc="anything"), timer)

    assert timer.calls == [(1, 1, 0), (1, 199, 0)]


def test_rests_lie_between_cold_repeats() -> None:
    """There are none between the single runs of a repeat, which would rest thousands of times."""
    rests: list[float] = []
    evaluator = Evaluator(number=3, repeat=5, cooldown_interval_ms=20, repeats_to_cooldown=2, cache_flush_bytes=4096)

    run_schedule(evaluator, Timer(*[1.0] * 15), sleep=rests.append)

    assert rests == [0.02, 0.02]
    assert for_single_calls(evaluator).cooldown_interval_ms == 0
    assert for_single_calls(Evaluator(cooldown_interval_ms=20)).cooldown_interval_ms == 20
