"""Schedules a candidate's repeats, independently of the code that times them.

Without adaptive knobs all repeats are one call of the evaluator, as TVM would do it. With them: a quick look first, if
one is asked for; then one repeat; a candidate clearly slower than the best stops there; then the other repeats; then
more, one by one, until the spread is small.

The look is a few single runs, where a repeat may be hundreds. After the first, a candidate that is far behind the best
stops; after all of them, one that did not come near it even once. Runs that fill a repeat each are repeats, and are not
made again.

Where caches are flushed or a function is called before each run, a repeat is made of single runs: TVM's evaluator
would flush before the first of them only, and the others would find the cache warm.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from fleet.domain.measuring import Evaluator, Stop, spread

MOST_COLD_RUNS = 200
"""Maximum runs in one cold repeat, because flushing takes far longer than a short kernel runs."""

_LOOK_SEC = 0.0005
"""Shorter kernels run several times in one run of a look: a clock and a sleeping thread have to be small beside it."""

_MOST_LOOK_RUNS = 1000
"""Maximum kernels in one run of a look. The bound from which their number is computed comes from a client."""

_INTERRUPTION_SEC = 0.01
"""Time for which a processor may be taken away: a shorter run has to be far behind twice."""


class TimeRepeats(Protocol):
    """Times a number of repeats, after one warm-up run that is not counted."""

    def __call__(self, *, number: int, repeat: int, min_repeat_ms: int) -> list[float]:
        """Return seconds per run, one entry per repeat."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Result of timing one candidate."""

    secs: list[float]
    """Seconds per run, one entry per repeat; of a candidate that was stopped in the look, one per run of it."""

    stopped: Stop | None = None
    """Why it was timed no longer; None: it was timed as long as asked for."""


def run_schedule(
    evaluator: Evaluator,
    time_repeats: TimeRepeats,
    *,
    sleep: Callable[[float], None] = time.sleep,
) -> Timing:
    """Time a candidate as specified by `evaluator`."""
    if is_cold(evaluator):
        time_repeats = _ColdRepeats(evaluator, time_repeats, sleep)
    is_adaptive = evaluator.max_repeat > evaluator.repeat or evaluator.give_up_above_sec > 0
    if not (is_adaptive or evaluator.look_runs):
        secs = time_repeats(number=evaluator.number, repeat=evaluator.repeat, min_repeat_ms=evaluator.min_repeat_ms)
        return Timing(secs)
    looked = _look(evaluator, time_repeats) if evaluator.look_runs else Timing([])
    if looked.stopped is not None:
        return looked
    return _repeat(evaluator, time_repeats, looked.secs, sleep)


def _look(evaluator: Evaluator, time_repeats: TimeRepeats) -> Timing:
    """Decide by single runs whether a candidate can be competitive; return the runs that count as repeats."""
    near_sec, far_sec = evaluator.behind_above_sec, evaluator.hopeless_above_sec
    number = evaluator.number
    if 0 < near_sec < _LOOK_SEC:
        number = max(number, math.ceil(min(_MOST_LOOK_RUNS, _LOOK_SEC / near_sec)))

    def runs(count: int) -> list[float]:
        return time_repeats(number=number, repeat=count, min_repeat_ms=0)

    secs = runs(1)
    if 0 < far_sec < secs[0]:
        if secs[0] * number < _INTERRUPTION_SEC:
            secs += runs(1)
        if far_sec < min(secs):
            return Timing(secs, Stop.HOPELESS)
    secs += runs(evaluator.look_runs)
    if 0 < near_sec < min(secs):
        return Timing(secs, Stop.BEHIND)
    are_repeats = number == evaluator.number and min(secs) * number * 1000 >= evaluator.min_repeat_ms
    return Timing(secs if are_repeats else [])


def _repeat(
    evaluator: Evaluator, time_repeats: TimeRepeats, secs: list[float], sleep: Callable[[float], None]
) -> Timing:
    """Repeat until the spread is small, including the existing repeats."""
    if not secs:
        secs = time_repeats(number=evaluator.number, repeat=1, min_repeat_ms=evaluator.min_repeat_ms)
        if 0 < evaluator.give_up_above_sec < secs[0]:
            return Timing(secs, Stop.SLOW)
    # The evaluator does not report the number that it grew to. Start from the number that suffices according to the
    # first repeat, so that later calls do not search for it again.
    found = _enough_runs(evaluator.number, secs[0], evaluator.min_repeat_ms)

    def more(count: int) -> None:
        if evaluator.cooldown_interval_ms and len(secs) % evaluator.repeats_to_cooldown == 0:
            sleep(evaluator.cooldown_interval_ms / 1000)
        secs.extend(time_repeats(number=found, repeat=count, min_repeat_ms=evaluator.min_repeat_ms))

    if len(secs) < evaluator.repeat:
        more(evaluator.repeat - len(secs))
    while len(secs) < evaluator.max_repeat and (len(secs) < 2 or spread(secs) > evaluator.spread_target):
        more(1)
    return Timing(secs)


def is_cold(evaluator: Evaluator) -> bool:
    """Tell whether caches are flushed or the cores idle before each single run."""
    return bool(evaluator.flush_cache or evaluator.flush_bytes or evaluator.f_preproc)


def for_single_calls(evaluator: Evaluator) -> Evaluator:
    """Return the evaluator of single runs, without its pauses between repeats: `_ColdRepeats` makes them."""
    return replace(evaluator, cooldown_interval_ms=0) if is_cold(evaluator) else evaluator


def push_out(evaluator: Evaluator, size_bytes: int) -> Evaluator:
    """Return settings that write through at least this much memory between runs instead of flushing the CPU's cache."""
    return replace(evaluator, flush_cache=False, flush_bytes=max(evaluator.flush_bytes, size_bytes))


class _ColdRepeats:
    """Times repeats with cold caches before every run."""

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
    # Slightly more than needed: after a short repeat, the evaluator multiplies the number by 1.5 again.
    return max(number, math.ceil(1.05 * min_repeat_ms / 1000 / run_sec))
