"""Inputs of the prioritizer, and the job's forecasts with their outcomes."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from fleet.optimizer.prioritizer.prioritize import prioritize
from fleet.optimizer.prioritizer.values import (
    SMALLEST_BATCH,
    UNKNOWN_GAIN,
    BatchOutcome,
    DeviceState,
    JobTerms,
    Plan,
    WorkloadState,
    searched_gain,
)

if TYPE_CHECKING:
    from fleet.domain.roofline import Roofline
    from fleet.domain.workload import Workload
    from fleet.optimizer.conditions import Conditions
    from fleet.optimizer.core.progress import JobProgress, WorkloadProgress

_USUAL_TRIAL_SEC = 0.1
"""Assumed device time of a trial until one has been measured [s]."""

_ROUND_BUILDER_SEC = 1.0
_TRIAL_BUILDER_SEC = 0.5
"""Processor time of a search, and of each candidate that it finds and that is built [s]: a round of eight on a 3x3
convolution. They count as one search and one build beside those that were measured."""

_BELIEVED = 0.95
"""A roofline is considered wrong for all workloads once one runs in less than this share of its limit."""

_FAR_BELOW = 8.0
"""Margin below the roofline: Winograd's algorithm needs only a quarter of a convolution's multiplications, and a peak
may have been measured on a busy machine."""

_LOOK_SHARE = 0.1
"""Share of a job's budget in which its rest must gain enough."""

_LEAST_LOOK = 4
"""Batches that are looked ahead at least, so that a job with a small budget does not end after one unlucky batch."""

_MOST_URGENT = 10.0
"""Largest factor of a deadline: a job that cannot keep it any more does not keep the boards from all others."""

_IDLE_BUILDER_PRICE = 0.1
"""Device seconds that a second of builders is worth where they are on other machines than the device."""


def plan(progress: JobProgress, conditions: Conditions, trials_left: int, now_sec: float) -> Plan:
    """Run the prioritizer on the current state.

    Args:
        trials_left: trials of the job that are not planned yet.
        now_sec: on the clock of the job's deadline.
    """
    items = progress.workloads
    price = 1.0 if conditions.shares_cores else _IDLE_BUILDER_PRICE
    usual_sec = _usual_trial_sec(items, conditions.batch_size)
    trial_sec = _priced_trial_sec(progress, conditions, usual_sec, price)
    needed_sec = 0.0 if conditions.is_bound_by_time else trials_left * trial_sec
    terms = JobTerms(
        name=conditions.job_name,
        priority=conditions.priority * urgency(needed_sec, conditions.deadline_sec - now_sec),
        target_sec=conditions.target_sec or 0.0,
        deadline_sec=conditions.deadline_sec,
        until_gain=conditions.until_gain,
        look_sec=_look_sec(progress, conditions, trial_sec),
    )
    gains = _first_gains(items)
    states = [
        replace(
            _state_of(item, terms, conditions, trials_left, usual_sec, progress),
            first_gain=gains[item.quality.kind] if item.quality else UNKNOWN_GAIN,
        )
        for item in items
    ]
    if any(state.current_sec < _BELIEVED * state.least_sec for state in states):
        states = [replace(state, least_sec=0.0) for state in states]
    ahead = {item.workload.shash: item.backlog.predictions() for item in items if has_ahead(item, progress, conditions)}
    device = DeviceState(builder_price=price)
    predictions = {shash: log_secs for shash, log_secs in ahead.items() if log_secs is not None}
    return prioritize(states, predictions, [device], now_sec, seed=conditions.seed)


def urgency(needed_sec: float, left_sec: float) -> float:
    """Return the factor of a deadline on a job's gains: the inverse of the share of the time that it can wait.

    Args:
        needed_sec: time of its remaining trials on one device [s].
        left_sec: until its deadline.
    """
    slack = 1 - needed_sec / left_sec if left_sec > 0 else 0.0
    return 1 / max(slack, 1 / _MOST_URGENT)


def has_ahead(item: WorkloadProgress, progress: JobProgress, conditions: Conditions) -> bool:
    """Tell whether a workload has backlog candidates that may be built now.

    Where searches have the cores to themselves until the next batch is measured, only searches on the newest results
    may run. Where one goes on while a batch is built, it knows nothing of that; where device and builders share no
    cores, nothing of the batch that is measured either.
    """
    beside_device, beside_builds = not conditions.shares_cores, searches_beside_builds(progress, conditions)
    oldest = (beside_device + beside_builds) * conditions.batch_size
    return bool(item.backlog.candidates) and item.backlog.age(item.trials) <= oldest


def searches_beside_builds(progress: JobProgress, conditions: Conditions) -> bool:
    """Tell whether a search goes on while a batch is built.

    Where device and builders share cores, only if one would be idle otherwise: several workloads are searched side by
    side, but the search of one has one core, and the next batch waits for it.
    """
    return not conditions.shares_cores or (is_alone(progress) and conditions.search_threads > 1)


def is_alone(progress: JobProgress) -> bool:
    """Tell whether there is one workload left to tune."""
    return sum(item.closing is None for item in progress.workloads) == 1


def least_sec(workload: Workload, roofline: Roofline) -> float:
    """Return the time that a workload takes at least [s]; 0 where no limit is known.

    The peak of arithmetic was measured with float32: programs with shorter numbers may be faster.
    """
    is_float32 = all(spec.dtype == "float32" for spec in workload.args)
    size_bytes = sum(spec.size_bytes for spec in workload.args)
    return roofline.least_sec(workload.flop if is_float32 else 0.0, size_bytes) or 0.0


def floor_sec(workload: Workload, roofline: Roofline) -> float:
    """Return a lower bound of the time of any program [s], for all algorithms and caches; 0 if none is known.

    `least_sec` is the best realistic time. Times below this bound are impossible: they would exceed the device's peak
    arithmetic many times, or write the outputs faster than its fastest cache can be read.
    """
    is_float32 = all(spec.dtype == "float32" for spec in workload.args)
    written_bytes = sum(spec.size_bytes for spec in workload.args if spec.is_output)
    fastest = max((rate.bytes_per_sec for rate in roofline.memory), default=0.0)
    write_sec = written_bytes / fastest if fastest else 0.0
    return max(roofline.compute_sec(workload.flop) if is_float32 else 0.0, write_sec) / _FAR_BELOW


def keep_outcome(item: WorkloadProgress) -> None:
    """Store the actual gain of a finished batch, beside the expected one."""
    expected = item.forecasts.popleft() if item.forecasts else 0.0
    before_sec, item.judged_sec = item.judged_sec, item.current_sec
    if expected and math.isfinite(before_sec):
        item.outcomes.append(BatchOutcome(expected=expected, gained=max(0.0, 1 - item.current_sec / before_sec)))


def note_vain_batch(item: WorkloadProgress) -> None:
    """Record that the newest batch gained nothing, because none of it could be built."""
    expected = item.forecasts.pop() if item.forecasts else 0.0
    if expected:
        item.outcomes.append(BatchOutcome(expected=expected, gained=0.0))


def forget_forecast(item: WorkloadProgress) -> None:
    """Drop the expectation of the newest batch, which will never be measured."""
    if item.forecasts:
        item.forecasts.pop()


def _usual_trial_sec(items: Sequence[WorkloadProgress], batch_size: int) -> float:
    measured = [item for item in items if item.trials >= batch_size]
    trials = sum(item.trials for item in measured)
    return sum(item.device_sec for item in measured) / trials if trials else _USUAL_TRIAL_SEC


def _priced_trial_sec(progress: JobProgress, conditions: Conditions, usual_sec: float, price: float) -> float:
    """Return the time of a trial with its search and build [priced s].

    Args:
        usual_sec: device time of a trial [s].
        price: device seconds that a second of the builders is worth.
    """
    builders = progress.builders
    build_sec = _mean(builders.build_sec, builders.builds, _TRIAL_BUILDER_SEC)
    search_sec = _mean(builders.search_sec, builders.searches, _ROUND_BUILDER_SEC) / conditions.batch_size
    return usual_sec + price * (build_sec + search_sec)


def _look_sec(progress: JobProgress, conditions: Conditions, trial_sec: float) -> float:
    """Return a tenth of the job's budget, and at least the time of four batches [priced s]."""
    trials = math.inf if conditions.is_bound_by_time else progress.trials_total
    budget_sec = min(trials * trial_sec, conditions.deadline_sec - conditions.started_at)
    return max(_LOOK_SHARE * budget_sec, _LEAST_LOOK * conditions.batch_size * trial_sec)


def _first_gains(items: Sequence[WorkloadProgress]) -> Mapping[str, float]:
    """Return the share of its time that a first batch should gain, by kind: from earlier records and this job's."""
    gains: defaultdict[str, list[float]] = defaultdict(list)
    qualities = {}
    for item in items:
        if item.quality is not None:
            qualities[item.quality.kind] = item.quality
            gain = searched_gain(item.static_sec, item.best_sec, item.trials - item.errors.total())
            if gain is not None:
                gains[item.quality.kind].append(gain)
    return {kind: quality.with_gains(gains[kind]).expected_gain for kind, quality in qualities.items()}


def _state_of(
    item: WorkloadProgress,
    terms: JobTerms,
    conditions: Conditions,
    trials_left: int,
    usual_sec: float,
    progress: JobProgress,
) -> WorkloadState:
    """Describe one workload. Until a whole batch was measured, a trial is assumed to take as long as the others' do."""
    builders, rounds = progress.builders, progress.rounds
    had = item.trials_before + item.trials + len(item.under_way)
    trial_sec = item.device_sec / item.trials if item.trials >= conditions.batch_size else usual_sec
    return WorkloadState(
        name=item.workload.shash,
        job=terms,
        weight=item.workload.weight,
        current_sec=item.current_sec,
        least_sec=item.least_sec,
        run_secs=tuple(record.run_sec for record in item.records),
        batches=item.batches,
        trials=had,
        is_tried=item.trials_before + item.trials > 0,
        trials_left=min(trials_left, conditions.enough - had),
        least_batch=conditions.batch_size if is_alone(progress) else SMALLEST_BATCH,
        max_batch=conditions.batch_size,
        trial_device_sec=max(trial_sec, 1e-9),
        round_device_sec=rounds.idle_sec / rounds.count if rounds.count else 0.0,
        trial_builder_sec=_mean(builders.build_sec, builders.builds, _TRIAL_BUILDER_SEC),
        round_builder_sec=_mean(builders.search_sec, builders.searches, _ROUND_BUILDER_SEC),
        payers=1 + len(item.shared_with),
        outcomes=tuple(item.outcomes),
        is_busy=bool(item.asked) or (item.is_searched and not has_ahead(item, progress, conditions)),
        is_closed=item.closing is not None,
    )


def _mean(total: float, count: int, usual: float) -> float:
    """Return the mean of the measured values and the usual one, which counts as one more."""
    return (total + usual) / (count + 1)
