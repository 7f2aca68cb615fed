"""Policies that choose the next batch: the project's prioritizer, MetaSchedule's gradient rule, turns, and an
oracle.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from benchmarks.replaying import BATCH, Floats, Lane, Race
from fleet.optimizer.prioritizer.prioritize import prioritize
from fleet.optimizer.prioritizer.values import BatchOutcome, DeviceState, JobTerms, WorkloadState

_ALPHA, _WINDOW = 0.2, 3
"""MetaSchedule's defaults (tvm/s_tir/meta_schedule/task_scheduler/gradient_based.py)."""

_MEMBERS = 12
_USUAL_WEIGHT = 6.0
"""Weight of the usual slope of a model, as a sum of squared values of the workload's own."""


def take_turns(race: Race) -> tuple[int, list[int]]:
    """Give a batch to the workload with the fewest."""
    index = min(race.open_ones, key=lambda i: (len(race.lanes[i].history), i))
    return index, race.lanes[index].waiting[:BATCH]


def follow_gradient(race: Race) -> tuple[int, list[int]]:
    """Decide as MetaSchedule's gradient-based task scheduler does, which ignores device seconds."""
    index = _steepest(race)
    return index, race.lanes[index].waiting[:BATCH]


def follow_gradient_ranked(race: Race) -> tuple[int, list[int]]:
    """Do the same, but take the best predicted of the candidates ahead, as ours does."""
    index = _steepest(race)
    return index, ranked(race.lanes[index])[:BATCH]


def _steepest(race: Race) -> int:
    return max(race.open_ones, key=lambda i: (race.shares[i] * gradient(race.lanes[i].history), -i))


def gradient(best_secs: Sequence[float]) -> float:
    """Return MetaSchedule's estimate of a workload's gain by its next batch [s].

    Args:
        best_secs: best time after each batch, at least one [s].
    """
    slope = (best_secs[-1 - _WINDOW] - best_secs[-1]) / _WINDOW if len(best_secs) > _WINDOW else 0.0
    return _ALPHA * slope + (1 - _ALPHA) * best_secs[-1] / len(best_secs)


def know_everything(race: Race) -> tuple[int, list[int]]:
    """Choose the largest gain per device second over any number of candidates in their order: an oracle, not a real
    policy.
    """
    found = (-math.inf, 0, 0)
    for index in race.open_ones:
        lane = race.lanes[index]
        best_secs, device_secs = lane.in_order
        rates = race.shares[index] * (lane.best_sec - best_secs) / device_secs
        ahead = int(np.argmax(rates))
        found = max(found, (float(rates[ahead]), -index, -(ahead + 1)))
    index = -found[1]
    return index, race.lanes[index].waiting[: min(-found[2], BATCH)]


def predicted(lane: Lane, candidates: Sequence[int]) -> Floats:
    """Return logarithms of the expected times of candidates, [n_members, n_candidates].

    As `fleet.cost_model.prediction` does it, but without trees of the workload's own: a line over the model's values.
    """
    track, done = lane.track, len(lane.measured)
    said = track.values.mean(axis=0)[lane.measured]
    seen, log_secs = said - said.mean(), np.log(lane.run_secs)
    slope = (seen @ log_secs + _USUAL_WEIGHT * track.slope) / (seen @ seen + _USUAL_WEIGHT)
    expected: Floats = log_secs.mean() + slope * (track.values[:, list(candidates)] - said.mean())
    errors = np.random.default_rng(done).standard_normal((_MEMBERS, expected.shape[1]))
    spread = track.noise / math.sqrt(done) * np.linspace(-1.5, 1.5, _MEMBERS)[:, None]
    futures: Floats = expected[np.arange(_MEMBERS) % len(expected)] + track.noise * errors + spread
    return futures


def ranked(lane: Lane) -> list[int]:
    """Return the candidates that lie ahead, the best predicted first."""
    ahead = lane.ahead
    said = lane.track.values.mean(axis=0)[ahead]
    return [ahead[place] for place in np.argsort(said, kind="stable")]


class Prioritizer:
    """The project's own, with the inputs that a job would give it."""

    def __init__(self, seed: int, *, predicts: bool) -> None:
        self._seed, self._predicts = seed, predicts
        self._outcomes: dict[int, list[BatchOutcome]] = {}
        self._forecast: tuple[int, float, float] | None = None

    def __call__(self, race: Race) -> tuple[int, list[int]]:
        """Choose the first batch of the plan, and remember its expected gain."""
        self._judge(race)
        ahead = {i: ranked(race.lanes[i]) if self._predicts else race.lanes[i].waiting for i in race.open_ones}
        plan = prioritize(
            [self._state(race, index) for index in range(len(race.lanes))],
            {f"{i:03d}": predicted(race.lanes[i], some) for i, some in ahead.items()} if self._predicts else {},
            [DeviceState(builder_price=0.0)],
            0.0,
            seed=self._seed,
        )
        if not plan.batches:  # none of the rest is expected to gain
            index = race.open_ones[0]
            return index, ahead[index][:BATCH]
        batch = plan.batches[0]
        index = int(batch.workload)
        self._forecast = index, batch.expected_share, race.lanes[index].best_sec
        return index, ahead[index][: batch.count]

    def _judge(self, race: Race) -> None:
        if self._forecast is not None:
            index, expected, before_sec = self._forecast
            gained = 1 - race.lanes[index].best_sec / before_sec
            self._outcomes.setdefault(index, []).append(BatchOutcome(expected=expected, gained=gained))
            self._forecast = None

    def _state(self, race: Race, index: int) -> WorkloadState:
        lane = race.lanes[index]
        return WorkloadState(
            name=f"{index:03d}",
            job=JobTerms(name=lane.track.job),
            weight=lane.track.weight,
            current_sec=lane.best_sec,
            run_secs=tuple(map(float, lane.run_secs)),
            batches=len(lane.history),
            trials_left=len(lane.waiting),
            max_batch=BATCH,
            trial_device_sec=lane.device_sec / len(lane.measured),
            outcomes=tuple(self._outcomes.get(index, ())),
        )
