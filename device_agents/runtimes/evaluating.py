"""How often a candidate is timed: the schedule of repeats, apart from what times them.

Without adaptive knobs all repeats are one call of the evaluator, as TVM would do it. With them: one repeat first; a
candidate clearly slower than the best stops there; then the other repeats; then more, one by one, until the spread is
small.

Where caches are flushed or a function is called before each run, a repeat is made of single runs: TVM's evaluator
would flush before the first of them only, and the others would find the cache warm.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from fleet.domain.measuring import Evaluator, spread

MOST_COLD_RUNS = 200
"""In one repeat, because flushing takes far longer than a short kernel runs."""


class TimeRepeats(Protocol):
    """Times some repeats, after one run that does not count."""

    def __call__(self, *, number: int, repeat: int, min_repeat_ms: int) -> list[float]:
        """Return seconds per run, one entry per repeat."""
        ...


def run_schedule(
    evaluator: Evaluator,
    time_repeats: TimeRepeats,
    *,
    sleep: Callable[[float], None] = time.sleep,
) -> list[float]:
    """Time as `evaluator` says; return seconds per run, one entry per repeat."""
    number, repeat = evaluator.number, evaluator.repeat
    if is_cold(evaluator):
        time_repeats = _ColdRepeats(evaluator, time_repeats, sleep)
    is_adaptive = evaluator.max_repeat > repeat or evaluator.give_up_above_sec > 0
    if not is_adaptive:
        return time_repeats(number=number, repeat=repeat, min_repeat_ms=evaluator.min_repeat_ms)
    secs = time_repeats(number=number, repeat=1, min_repeat_ms=evaluator.min_repeat_ms)
    if 0 < evaluator.give_up_above_sec < secs[0]:
        return secs
    # The evaluator does not tell the number that it grew to: start from what the first repeat shows to be enough, so
    # that later calls do not search for it from `number` again.
    found = _enough_runs(number, secs[0], evaluator.min_repeat_ms)

    def more(count: int) -> None:
        if evaluator.cooldown_interval_ms and len(secs) % evaluator.repeats_to_cooldown == 0:
            sleep(evaluator.cooldown_interval_ms / 1000)
        secs.extend(time_repeats(number=found, repeat=count, min_repeat_ms=evaluator.min_repeat_ms))

    if repeat > 1:
        more(repeat - 1)
    while len(secs) < evaluator.max_repeat and (len(secs) < 2 or spread(secs) > evaluator.spread_target):
        more(1)
    return secs


def is_cold(evaluator: Evaluator) -> bool:
    """Tell whether something happens before each single run."""
    return bool(evaluator.flush_cpu_cache or evaluator.cache_flush_bytes or evaluator.f_preproc)


def for_single_calls(evaluator: Evaluator) -> Evaluator:
    """Return what the times of single runs are taken with: the rests between repeats are made here, not there."""
    return replace(evaluator, cooldown_interval_ms=0) if is_cold(evaluator) else evaluator


def push_out(evaluator: Evaluator, size_bytes: int) -> Evaluator:
    """Return knobs that write through at least so much memory between runs instead of flushing the CPU's cache."""
    return replace(evaluator, flush_cpu_cache=False, cache_flush_bytes=max(evaluator.cache_flush_bytes, size_bytes))


class _ColdRepeats:
    """Times repeats in which every run finds the caches cold."""

    def __init__(self, evaluator: Evaluator, time_runs: TimeRepeats, sleep: Callable[[float], None]) -> None:
        self._rest_sec = evaluator.cooldown_interval_ms / 1000
        self._repeats_to_rest = evaluator.repeats_to_cooldown
        self._time_runs = time_runs
        self._sleep = sleep

    def __call__(self, *, number: int, repeat: int, min_repeat_ms: int) -> list[float]:
        secs: list[float] = []
        for index in range(repeat):
            if self._rest_sec and index and index % self._repeats_to_rest == 0:
                self._sleep(self._rest_sec)
            runs = self._time_runs(number=1, repeat=number, min_repeat_ms=0)
            number = max(number, min(MOST_COLD_RUNS, _enough_runs(number, statistics.fmean(runs), min_repeat_ms)))
            if number > len(runs):
                runs += self._time_runs(number=1, repeat=number - len(runs), min_repeat_ms=0)
            secs.append(statistics.fmean(runs))
        return secs


def _enough_runs(number: int, run_sec: float, min_repeat_ms: int) -> int:
    if run_sec <= 0:
        return number
    # A little more than needed: a repeat that ends short makes the evaluator grow the number by half once more.
    return max(number, math.ceil(1.05 * min_repeat_ms / 1000 / run_sec))
