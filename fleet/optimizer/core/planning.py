"""What the prioritizer is told of a job, and what the job remembers of its forecasts."""

from __future__ import annotations

import math
from collections.abc import Sequence

from fleet.optimizer.conditions import Conditions
from fleet.optimizer.core.progress import WorkloadProgress
from fleet.optimizer.prioritizer.prioritize import prioritize
from fleet.optimizer.prioritizer.values import DeviceState, Outcome, Plan, WorkloadState

_USUAL_TRIAL_SEC = 0.1
"""Assumed device time of a trial until one has been measured [s]."""

_ROUND_BUILDER_SEC = 1.0
_TRIAL_BUILDER_SEC = 0.5
"""Processor time of a search, and of each candidate that it finds and that is built [s]: a round of eight on a 3x3
convolution."""

_IDLE_BUILDER_PRICE = 0.1
"""Device seconds that a second of builders is worth where they are on other machines than the device."""


def plan(items: Sequence[WorkloadProgress], conditions: Conditions, trials_left: int) -> Plan:
    """Ask the prioritizer. `trials_left` are those of the job that nothing is planned for yet."""
    usual_sec = _usual_trial_sec(items, conditions.batch_size)
    states = [_state_of(item, conditions, trials_left, usual_sec) for item in items]
    device = DeviceState(builder_price=1.0 if conditions.shares_cores else _IDLE_BUILDER_PRICE)
    return prioritize(states, {}, [device], 0.0, seed=conditions.seed)


def keep_outcome(item: WorkloadProgress) -> None:
    """Remember what a batch that is over has gained, beside what was expected of it."""
    expected = item.forecasts.popleft() if item.forecasts else 0.0
    before_sec, item.judged_sec = item.judged_sec, item.current_sec
    if expected and math.isfinite(before_sec):
        item.outcomes.append(Outcome(expected=expected, gained=max(0.0, 1 - item.current_sec / before_sec)))


def forget_forecast(item: WorkloadProgress) -> None:
    """Forget what was expected of the newest batch, which will never be measured."""
    if item.forecasts:
        item.forecasts.pop()


def _usual_trial_sec(items: Sequence[WorkloadProgress], batch_size: int) -> float:
    measured = [item for item in items if item.trials >= batch_size]
    trials = sum(item.trials for item in measured)
    return sum(item.device_sec for item in measured) / trials if trials else _USUAL_TRIAL_SEC


def _state_of(item: WorkloadProgress, conditions: Conditions, trials_left: int, usual_sec: float) -> WorkloadState:
    """Describe one workload. Until a whole batch was measured, a trial counts as long as the others' do."""
    had = item.trials_before + item.trials + len(item.under_way)
    trial_sec = item.device_sec / item.trials if item.trials >= conditions.batch_size else usual_sec
    return WorkloadState(
        name=item.workload.shash,
        weight=item.workload.weight,
        current_sec=item.current_sec,
        run_secs=tuple(record.run_sec for record in item.records),
        batches=item.batches,
        trials_left=min(trials_left, conditions.enough - had),
        max_batch=conditions.batch_size,
        trial_device_sec=max(trial_sec, 1e-9),
        trial_builder_sec=_TRIAL_BUILDER_SEC,
        round_builder_sec=_ROUND_BUILDER_SEC,
        outcomes=tuple(item.outcomes),
        is_busy=bool(item.asked),
        closed_because=item.closed_because,
    )
