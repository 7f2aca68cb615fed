"""Who gets the next batch: the project's prioritizer, MetaSchedule's gradient rule, turns, and one who knows."""

from __future__ import annotations

import math

import numpy as np

from benchmarks.replaying import BATCH, Floats, Race, Track
from fleet.optimizer.prioritizer.prioritize import prioritize
from fleet.optimizer.prioritizer.values import DeviceState, JobTerms, Outcome, WorkloadState

_ALPHA, _WINDOW = 0.2, 3
"""MetaSchedule's defaults (tvm/s_tir/meta_schedule/task_scheduler/gradient_based.py)."""

_MEMBERS = 12
_USUAL_WEIGHT = 6.0
"""What is usual of a model's slope counts like so large a sum of squared values of the workload's own."""


def take_turns(race: Race) -> tuple[int, int]:
    """Give a batch to whoever has had the fewest."""
    return min(race.open_ones, key=lambda i: (race.chosen[i], i)), BATCH


def follow_gradient(race: Race) -> tuple[int, int]:
    """Decide as MetaSchedule's gradient-based task scheduler does: it does not look at device seconds."""

    def gradient(index: int) -> float:
        best = race.history[index]
        slope = (best[-1 - _WINDOW] - best[-1]) / _WINDOW if len(best) > _WINDOW else 0.0
        return race.shares[index] * (_ALPHA * slope + (1 - _ALPHA) * best[-1] / len(best))

    return max(race.open_ones, key=lambda i: (gradient(i), -i)), BATCH


def know_everything(race: Race) -> tuple[int, int]:
    """Choose what gains most per device second over any number of candidates ahead: nobody can know that."""
    found = (-math.inf, 0, 0)
    for index in race.open_ones:
        track, begin = race.tracks[index], race.done[index]
        gains = race.shares[index] * (race.history[index][-1] - track.best_secs[begin:])
        rates = gains / np.cumsum(track.device_secs[begin:])
        ahead = int(np.argmax(rates))
        found = max(found, (float(rates[ahead]), -index, -(ahead + 1)))
    return -found[1], min(-found[2], BATCH)


def predicted(track: Track, done: int) -> Floats:
    """Return logarithms of the times that are expected of the next two batches, [n_members, n_candidates].

    As `fleet.cost_model.prediction` does it, but without trees of the workload's own: a line over what the model says.
    """
    values = track.values
    mean = values.mean(axis=0)
    seen, log_secs = mean[:done] - mean[:done].mean(), np.log(track.run_secs[:done])
    slope = (seen @ log_secs + _USUAL_WEIGHT * track.slope) / (seen @ seen + _USUAL_WEIGHT)
    near = slice(done, done + 2 * BATCH)
    expected = log_secs.mean() + slope * (values[:, near] - mean[:done].mean())
    errors = np.random.default_rng(done).standard_normal((_MEMBERS, expected.shape[1]))
    spread = track.noise / math.sqrt(done) * np.linspace(-1.5, 1.5, _MEMBERS)[:, None]
    futures: Floats = expected[np.arange(_MEMBERS) % len(values)] + track.noise * errors + spread
    return futures


class Prioritizer:
    """The project's own, told what a job would tell it."""

    def __init__(self, seed: int, *, predicts: bool) -> None:
        self._seed, self._predicts = seed, predicts
        self._outcomes: dict[int, list[Outcome]] = {}

    def __call__(self, race: Race) -> tuple[int, int]:
        """Choose the first batch of the plan, and remember what it was expected to gain."""
        plan = prioritize(
            [self._state(race, index) for index in range(len(race.tracks))],
            {f"{index:03d}": predicted(race.tracks[index], race.done[index]) for index in race.open_ones}
            if self._predicts
            else {},
            [DeviceState(builder_price=0.0)],
            0.0,
            seed=self._seed,
        )
        if not plan.batches:  # all of those that are left are said to have nothing to gain
            return race.open_ones[0], BATCH
        batch = plan.batches[0]
        index = int(batch.workload)
        track, begin = race.tracks[index], race.done[index]
        after = track.best_secs[min(begin + batch.count, len(track.run_secs)) - 1]
        gained = 1 - float(after) / race.history[index][-1]
        self._outcomes.setdefault(index, []).append(Outcome(expected=batch.expected_share, gained=gained))
        return index, batch.count

    def _state(self, race: Race, index: int) -> WorkloadState:
        track, done = race.tracks[index], race.done[index]
        return WorkloadState(
            name=f"{index:03d}",
            job=JobTerms(name=track.job),
            weight=track.weight,
            current_sec=race.history[index][-1],
            run_secs=tuple(map(float, track.run_secs[:done])),
            batches=race.chosen[index],
            trials_left=len(track.run_secs) - done,
            max_batch=BATCH,
            trial_device_sec=float(track.device_secs[:done].mean()),
            outcomes=tuple(self._outcomes.get(index, ())),
        )
