"""Number of times that a candidate is timed."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from device_agents.runtimes.evaluating import Timing, for_single_calls, run_schedule
from fleet.domain.measuring import Evaluator, Stop


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

    assert run_schedule(Evaluator(number=4, repeat=3, min_repeat_ms=5), timer).secs == [1.0, 2.0, 3.0]
    assert timer.calls == [(4, 3, 5)]


def test_zero_means_once() -> None:
    """An empty evaluator runs once."""
    timer = Timer(1.0)

    assert run_schedule(Evaluator(), timer).secs == [1.0]
    assert timer.calls == [(1, 1, 0)]


def test_a_candidate_clearly_slower_stops_after_one_repeat() -> None:
    """Its device time is worth more for other candidates."""
    timer = Timer(1.1, 1.1, 1.1)

    assert run_schedule(Evaluator(repeat=3, give_up_above_sec=1.0), timer).secs == [1.1]


def test_one_that_may_win_gets_all_repeats() -> None:
    """A first time just below the bound does not stop the candidate."""
    timer = Timer(0.9, 1.1, 1.1)

    assert run_schedule(Evaluator(repeat=3, give_up_above_sec=1.0), timer).secs == [0.9, 1.1, 1.1]


def test_it_goes_on_until_the_spread_is_small() -> None:
    """It stops as soon as the spread is small."""
    timer = Timer(1.00, 1.10, 1.05, 1.04, 1.05)

    assert run_schedule(Evaluator(repeat=2, max_repeat=4, spread_target=0.001), timer).secs == [1.00, 1.10, 1.05, 1.04]
    timer = Timer(1.00, 1.01, 1.05)
    assert run_schedule(Evaluator(repeat=2, max_repeat=9), timer).secs == [1.00, 1.01]


def test_the_number_found_is_not_searched_for_again() -> None:
    """A kernel of 1 ms fills 50 ms with 53 runs in every later call."""
    timer = Timer(0.001, 0.001, 0.001)

    run_schedule(Evaluator(number=1, repeat=3, min_repeat_ms=50, max_repeat=4), timer)

    assert timer.calls == [(1, 1, 50), (53, 2, 50)]


def test_rests_between_calls_too() -> None:
    """The cooldown options also apply between repeats that are separate calls."""
    rests: list[float] = []

    evaluator = Evaluator(repeat=1, max_repeat=3, spread_target=1e-9, cooldown_interval_ms=20, repeats_to_cooldown=2)
    run_schedule(evaluator, Timer(1.0, 1.1, 1.2), sleep=rests.append)

    assert rests == [0.02]


@given(st.integers(1, 5), st.integers(0, 9), st.floats(0, 2), st.lists(st.floats(1e-6, 2), min_size=10, max_size=10))
def test_the_number_of_repeats_is_bounded(repeat: int, max_repeat: int, give_up: float, secs: list[float]) -> None:
    """Repeats number at least the requested minimum unless given up, and at most the larger of the two bounds."""
    evaluator = Evaluator(repeat=repeat, max_repeat=max_repeat, give_up_above_sec=give_up)

    done = run_schedule(evaluator, Timer(*secs)).secs

    assert done == secs[: len(done)]
    if 0 < give_up < secs[0]:
        assert len(done) == 1
    else:
        assert repeat <= len(done) <= max(repeat, max_repeat)


LOOK = Evaluator(
    repeat=3, min_repeat_ms=10, max_repeat=6, look_runs=3, hopeless_above_sec=0.003, behind_above_sec=0.0011
)


def test_a_long_candidate_far_behind_stops_after_one_run() -> None:
    """One run is conclusive: preemption does not last for most of 20 ms."""
    timer = Timer(0.02, 0.001)

    assert run_schedule(LOOK, timer) == Timing([0.02], Stop.HOPELESS)
    assert timer.calls == [(1, 1, 0)]


def test_a_short_candidate_has_to_be_far_behind_twice() -> None:
    """A single run of a millisecond may have been interrupted for four."""
    assert run_schedule(LOOK, Timer(0.005, 0.004)) == Timing([0.005, 0.004], Stop.HOPELESS)

    interrupted = run_schedule(LOOK, Timer(0.005, 0.001, *[0.001] * 6))
    assert interrupted == Timing([0.001, 0.001, 0.001])


def test_a_candidate_that_never_comes_near_stops_after_the_look() -> None:
    """Its fastest run decides, since a disturbance only makes runs longer."""
    secs = [0.0020, 0.0012, 0.0013, 0.0018]

    assert run_schedule(LOOK, Timer(*secs)) == Timing(secs, Stop.BEHIND)


def test_one_that_comes_near_once_gets_all_repeats() -> None:
    """The runs of the look are shorter than repeats, and are not among them."""
    timer = Timer(0.0020, 0.0012, 0.0010, 0.0018, 0.001, 0.001, 0.001)

    assert run_schedule(LOOK, timer) == Timing([0.001, 0.001, 0.001])
    assert timer.calls == [(1, 1, 0), (1, 3, 0), (1, 1, 10), (11, 2, 10)]


def test_runs_as_long_as_repeats_are_repeats() -> None:
    """Runs of a long kernel in the look count as repeats; the spread decides how it goes on."""
    long = replace(LOOK, hopeless_above_sec=0.06, behind_above_sec=0.022)

    assert run_schedule(long, Timer(0.020, 0.020, 0.020, 0.020)) == Timing([0.020] * 4)
    assert run_schedule(long, Timer(0.020, 0.020, 0.020, 0.025, *[0.020] * 9)) == Timing(
        [0.020] * 3 + [0.025, 0.020, 0.020]
    )


def test_a_look_at_a_tiny_kernel_lasts_longer_than_a_clock_is_wrong() -> None:
    """A kernel of 10 us beside a best of 10 us runs 46 times in each run of the look."""
    timer = Timer(*[1e-5] * 9)

    run_schedule(replace(LOOK, hopeless_above_sec=3e-5, behind_above_sec=1.1e-5), timer)

    assert timer.calls[:2] == [(46, 1, 0), (46, 3, 0)]


@pytest.mark.parametrize("bound_sec", [1e-12, 5e-324])
def test_a_look_is_bounded_whatever_the_bound(bound_sec: float) -> None:
    """A client that takes a picosecond, or less, for the best time does not occupy the device."""
    timer = Timer(*[1e-6] * 9)

    run_schedule(replace(LOOK, hopeless_above_sec=0.0, behind_above_sec=bound_sec), timer)

    assert timer.calls == [(1000, 1, 0), (1000, 3, 0)]


@given(
    st.integers(1, 5),
    st.integers(0, 9),
    st.floats(0, 2),
    st.floats(0, 2),
    st.lists(st.floats(1e-6, 2), min_size=30, max_size=30),
)
def test_no_near_candidate_is_stopped_in_the_quick_look(
    look_runs: int, max_repeat: int, hopeless: float, behind: float, secs: list[float]
) -> None:
    """A stopped candidate was slower than its bound in every run; any other has all its repeats."""
    evaluator = Evaluator(
        repeat=3, max_repeat=max_repeat, look_runs=look_runs, hopeless_above_sec=hopeless, behind_above_sec=behind
    )

    timing = run_schedule(evaluator, Timer(*secs))

    if timing.stopped is Stop.HOPELESS:
        assert min(timing.secs) > hopeless > 0
    elif timing.stopped is Stop.BEHIND:
        assert min(timing.secs) > behind > 0
        assert 1 + look_runs <= len(timing.secs) <= 2 + look_runs
    else:
        assert timing.stopped is None
        assert len(timing.secs) >= 3


def test_with_cold_caches_every_run_stands_alone() -> None:
    """TVM flushes once in a repeat; here a repeat is the mean of runs that are the first each."""
    timer = Timer(1.0, 3.0, 2.0, 4.0)

    assert run_schedule(Evaluator(number=2, repeat=2, flush_cache=True), timer).secs == [2.0, 3.0]
    assert timer.calls == [(1, 2, 0), (1, 2, 0)]


def test_cold_repeats_grow_to_their_shortest_time() -> None:
    """Ten milliseconds of runs of two: as many as it takes, and later repeats start with that many."""
    timer = Timer(*[0.002] * 20)

    assert run_schedule(Evaluator(repeat=2, min_repeat_ms=10, flush_bytes=1), timer).secs == [0.002, 0.002]
    assert timer.calls == [(1, 1, 0), (1, 5, 0), (1, 6, 0)]


def test_cold_repeats_are_bounded() -> None:
    """Flushing takes a thousand times as long as a run of a microsecond."""
    timer = Timer(*[1e-6] * 1000)

    run_schedule(Evaluator(min_repeat_ms=100, f_preproc="anything"), timer)

    assert timer.calls == [(1, 1, 0), (1, 199, 0)]


def test_rests_lie_between_cold_repeats() -> None:
    """Single runs of a repeat have no rests in between: there would be thousands."""
    rests: list[float] = []
    evaluator = Evaluator(number=3, repeat=5, cooldown_interval_ms=20, repeats_to_cooldown=2, flush_bytes=4096)

    run_schedule(evaluator, Timer(*[1.0] * 15), sleep=rests.append)

    assert rests == [0.02, 0.02]
    assert for_single_calls(evaluator).cooldown_interval_ms == 0
    assert for_single_calls(Evaluator(cooldown_interval_ms=20)).cooldown_interval_ms == 20
