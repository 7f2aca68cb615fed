"""Rules of measuring, with their cost and choices on recorded times. Pure.

A rule times candidates one after the other, in batches, beside the best of the batches before. The replay runs the
agent's own schedule of repeats; the clock is a sum of recorded runs, warm-up runs included.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from device_agents.runtimes.evaluating import run_schedule
from fleet.domain.measuring import Evaluator, Stop
from fleet.jobs.options import TRIAL_EVALUATOR

BATCH = 8
"""As a job has them."""

LOOKS, REPEATS = 8, 6
"""Recorded of each candidate: runs of a look, and repeats of each length."""

SHORT_MS, LONG_MS = 5, 10
"""Repeats are of one of these lengths."""

_BEFORE = Evaluator(number=1, repeat=3, min_repeat_ms=LONG_MS, max_repeat=6, spread_target=0.05)
"""The rule for candidates before looks existed."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """One candidate, timed in full."""

    looks: Sequence[float]
    """Seconds per run of short repeats, as a look makes them."""

    short: Sequence[float]
    """Seconds per run of repeats of 5 ms or more."""

    long: Sequence[float]
    """Seconds per run of repeats of 10 ms or more."""

    @property
    def sec(self) -> float:
        """Best estimate of its time [s]."""
        return statistics.median([*self.short, *self.long])


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """Rule for the length of timing. Ratios are to the best time known; 0 = never."""

    full: Evaluator = TRIAL_EVALUATOR
    """For candidates that may be the best."""

    give_up: float = 0.0
    """Stop after the first repeat."""

    hopeless: float = 0.0
    behind: float = 0.0
    look_runs: int = 0

    def evaluator(self, best_sec: float) -> Evaluator:
        """Return the evaluator for a candidate, given the best time [s]; infinite: no time is known yet."""
        if math.isinf(best_sec):
            return replace(self.full, look_runs=0)
        return replace(
            self.full,
            look_runs=self.look_runs,
            give_up_above_sec=self.give_up * best_sec,
            hopeless_above_sec=self.hopeless * best_sec,
            behind_above_sec=self.behind * best_sec,
        )


BEFORE = "repeat of 10 ms, 2.0"
OURS = "run, 3.0, 3 more, 1.1, repeat, 1.03"
RULES = {
    BEFORE: Rule(full=_BEFORE, give_up=2.0),
    "10 ms, everything in full": Rule(full=_BEFORE),
    "10 ms, run, 3.0, 3 more, 1.1": Rule(full=_BEFORE, look_runs=3, hopeless=3.0, behind=1.1),
    OURS: Rule(look_runs=3, hopeless=3.0, behind=1.1, give_up=1.03),
    "run, 3.0, 3 more, 1.1": Rule(look_runs=3, hopeless=3.0, behind=1.1),
    "run, 3.0, 3 more, 1.1, repeat, 1.01": Rule(look_runs=3, hopeless=3.0, behind=1.1, give_up=1.01),
    "run, 3.0, 1 more, 1.1, repeat, 1.03": Rule(look_runs=1, hopeless=3.0, behind=1.1, give_up=1.03),
    "run, 1.1, repeat, 1.03": Rule(look_runs=1, hopeless=1.1, behind=1.1, give_up=1.03),
    "repeat, 1.03": Rule(give_up=1.03),
}
"""The former rule, the optimizer's, and its neighbours; repeats are of 5 ms unless stated otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Result of a rule on the candidates of one workload."""

    device_sec: float
    """Per trial."""

    chosen: int
    """Index of the candidate with the best time."""

    stopped: int
    """Candidates that were not timed in full."""


def choose(count: int, rule: Rule, measure: Callable[[int, Evaluator], tuple[float, float, Stop | None]]) -> Outcome:
    """Measure candidates in batches, and take the fastest.

    Args:
        measure: given a candidate's index, returns its time [s], the device's seconds, and the reason of a stop.
    """
    best_sec, chosen, device_sec, stopped = math.inf, 0, 0.0, 0
    for first in [0, *range(1, count, BATCH)]:  # the static schedule alone, then batches
        evaluator = rule.evaluator(best_sec)
        for index in range(first, min(count, first + BATCH) if first else 1):
            sec, took_sec, why = measure(index, evaluator)
            device_sec += took_sec
            stopped += why is not None
            if sec < best_sec:
                best_sec, chosen = sec, index
    return Outcome(device_sec=device_sec / count, chosen=chosen, stopped=stopped)


def replay(candidates: Sequence[Recorded], rule: Rule) -> Outcome:
    """Return a rule's result on recorded candidates, in their order."""

    def measure(index: int, evaluator: Evaluator) -> tuple[float, float, Stop | None]:
        clock = _Clock(candidates[index])
        timing = run_schedule(evaluator, clock)
        return statistics.median(timing.secs), clock.sec, timing.stopped

    return choose(len(candidates), rule, measure)


def loss(candidates: Sequence[Recorded], chosen: int) -> float:
    """Return by which share the chosen candidate is slower than the fastest."""
    return candidates[chosen].sec / min(candidate.sec for candidate in candidates) - 1


def shuffled(candidates: Sequence[Recorded], seed: int) -> list[Recorded]:
    """Return candidates in another order, each with its times in another order."""
    chance = random.Random(seed)

    def mixed(secs: Sequence[float]) -> list[float]:
        return chance.sample(list(secs), len(secs))

    order = chance.sample(list(candidates), len(candidates))
    return [Recorded(mixed(one.looks), mixed(one.short), mixed(one.long)) for one in order]


class _Clock:
    """Gives recorded times in their order, and adds up their durations."""

    def __init__(self, candidate: Recorded) -> None:
        self._looks, self._short, self._long = (
            list(part) for part in (candidate.looks, candidate.short, candidate.long)
        )
        self.sec = 0.0

    def __call__(self, *, number: int, repeat: int, min_repeat_ms: int) -> list[float]:
        source = {0: self._looks, SHORT_MS: self._short, LONG_MS: self._long}[min_repeat_ms]
        secs, source[:] = source[:repeat], source[repeat:]
        for sec in secs:
            self.sec += sec * max(number, math.ceil(min_repeat_ms / 1000 / sec))
        self.sec += secs[0]  # the run that does not count
        return secs
