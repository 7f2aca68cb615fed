"""Chooses the batches to measure next, and the finished workloads: a pure decision on plain values.

Worth of a batch: `weight x max over horizons h of E[improvement after h batches] / h`, relative to the current latency
of its job, per device second plus the builders' price, of which each job that shares the workload pays an equal part.
Improvements after the job's deadline or beyond its target are worth nothing. Every relevant workload first gets one
batch, since its gain is unknown. At intervals the workload with the fewest batches gets the turn, so that a wrong
estimate cannot starve it. A job is finished once its rest should gain less than it asks for. The result does not depend
on the order of the arguments.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from fleet.domain.decisions import Motive, Reason
from fleet.optimizer.prioritizer.futures import USUAL_SPREAD, tail_spread
from fleet.optimizer.prioritizer.values import (
    SMALLEST_BATCH,
    UNKNOWN_GAIN,
    BatchOutcome,
    DeviceState,
    Done,
    Finish,
    LogSecs,
    Plan,
    Predictions,
    ProposedBatch,
    WorkloadState,
)
from fleet.optimizer.prioritizer.worth import Estimate, Prospect, estimate, price_of, rest_of, trust

MATTERS = 0.01
"""Share of its job's latency below which a workload of an unknown kind waits for its first batch until that is worth
one; for a kind with smaller gains, the share is larger in proportion."""

EXPLORATION_PERIOD = 4
"""One in this many batches goes to the workload that has had the fewest. On recorded times the same latency took 4 to
10 % less device time than with 16: a workload's first times do not predict its later gains."""

_SMALL_GAIN = 0.05
"""Expected share of a workload's time below which its first batch is a small one."""

_AT_ROOFLINE = 1.02
"""Within this factor of the roofline, gains cannot be told from noise."""

_NOTHING = 0.002
"""Gain, as a share of a workload's time, that does not justify measuring all candidates within the horizon."""

_ENOUGH_TRIED = 64
"""Number of records below which a tail of times says too little to give up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Judged:
    """Judgement of one workload: its next batch and its prospect, or why it is finished."""

    batch: ProposedBatch | None = None
    prospect: Prospect | None = None
    finish: Finish | None = None


def prioritize(
    workloads: Sequence[WorkloadState],
    predictions: Predictions,
    devices: Sequence[DeviceState],
    now_sec: float,
    *,
    seed: int = 0,
) -> Plan:
    """Order the next batches of all workloads, at most one for each, and say which workloads are finished.

    Args:
        workloads: those of all jobs that share the devices, also finished ones: a job's latency is that of all.
        devices: the available ones; a workload with a missing kind of device gets no batch, and is not finished.
        now_sec: on the clock of the jobs' deadlines.
    """
    latencies = _latencies(workloads)
    at_target = _at_target(workloads, latencies)
    usual_spread = _usual_spread(workloads)
    by_job = _by_job(workloads)
    outcomes_by_job = {name: [outcome for state in own for outcome in state.outcomes] for name, own in by_job.items()}
    cheapest = {
        model: min((device for device in devices if device.model == model), key=lambda device: device.builder_price)
        for model in {device.model for device in devices}
    }
    judged: dict[str, _Judged] = {}
    for state in workloads:
        finish = _finish_before(state, now_sec, is_at_target=state.job.name in at_target)
        device = cheapest.get(state.device_model)
        if finish is not None:
            judged[state.name] = _Judged(finish=finish)
        elif device is not None:
            judged[state.name] = _judge(
                state,
                device,
                predictions.get(state.name),
                latency_sec=latencies[state.job.name],
                outcomes=outcomes_by_job[state.job.name],
                left_sec=state.job.deadline_sec - now_sec,
                usual_spread=usual_spread,
                seed=seed,
            )
    rests = {
        name: rest_of(
            [found.prospect for state in own if (found := judged.get(state.name)) and found.prospect],
            within_sec=own[0].job.look_sec,
            latency_sec=latencies[name],
        )
        for name, own in by_job.items()
        if not any(_is_untried(state, judged.get(state.name), latencies[name]) for state in own)
    }
    ended = {name: rest for name, rest in rests.items() if rest.share < by_job[name][0].job.until_gain}
    finished = {name: found.finish for name, found in judged.items() if found.finish is not None}
    for state in workloads:
        if state.job.name in ended:
            finished.setdefault(state.name, Finish(done=Done.LITTLE_LEFT, rest=ended[state.job.name]))
    batches = [found.batch for name, found in judged.items() if found.batch is not None and name not in finished]
    return Plan(batches=tuple(_in_order(batches, workloads)), finished=finished, rests=rests)


def _judge(
    state: WorkloadState,
    device: DeviceState,
    predicted: LogSecs | None,
    *,
    latency_sec: float,
    outcomes: Sequence[BatchOutcome],
    left_sec: float,
    usual_spread: float,
    seed: int,
) -> _Judged:
    """Judge a workload that may have more trials.

    Args:
        outcomes: those of all workloads of its job.
        left_sec: until the job's deadline.
    """
    if _is_unknown(state) or _is_new(state, latency_sec):
        batch = _blind_batch(state, device, latency_sec, left_sec=left_sec)
        reason = batch.reason
        rate = reason.worth / (reason.priority * state.payers) * latency_sec
        prospect = Prospect(rate=rate, most_sec=state.weight * reason.gain_sec)
    else:
        found = estimate(
            state,
            device,
            predicted,
            left_sec=left_sec,
            enough_sec=_enough_sec(state, latency_sec),
            usual_spread=usual_spread,
            seed=seed,
        )
        share = trust(state.outcomes, outcomes)
        if not state.is_tried:
            share *= min(state.first_gain / UNKNOWN_GAIN, 1.0)
        finish = _finish_without_gain(state, share * found.far_share, found.far_count)
        if finish is not None:
            return _Judged(finish=finish)
        batch = _batch(state, found, share, latency_sec)
        value = share * state.weight * state.current_sec
        prospect = Prospect(rate=value * found.rate, most_sec=value * found.far_share)
    return _Judged(batch=None if state.is_busy else batch, prospect=prospect)


def _is_untried(state: WorkloadState, judged: _Judged | None, latency_sec: float) -> bool:
    """Tell whether a relevant workload may have trials and has no result yet, or has no device."""
    if judged is None:
        return True
    return judged.finish is None and not state.is_tried and _is_relevant(state, latency_sec)


def _by_job(workloads: Sequence[WorkloadState]) -> Mapping[str, list[WorkloadState]]:
    found: dict[str, list[WorkloadState]] = {}
    for state in sorted(workloads, key=lambda one: one.name):
        found.setdefault(state.job.name, []).append(state)
    return found


def _latencies(workloads: Sequence[WorkloadState]) -> Mapping[str, float]:
    """Return each job's weighted sum of the known times [weighted s]."""
    return {
        name: math.fsum(state.weight * state.current_sec for state in own if math.isfinite(state.current_sec))
        for name, own in _by_job(workloads).items()
    }


def _at_target(workloads: Sequence[WorkloadState], latencies: Mapping[str, float]) -> set[str]:
    """Return the jobs that have reached their target latency. Jobs with an open workload of unknown time have not."""
    return {
        name
        for name, own in _by_job(workloads).items()
        if 0 < latencies[name] <= own[0].job.target_sec
        and all(state.is_closed or math.isfinite(state.current_sec) for state in own)
    }


def _enough_sec(state: WorkloadState, latency_sec: float) -> float:
    """Return the time of a workload at which its job would reach its target latency; 0: without a target."""
    if not state.job.target_sec:
        return 0.0
    return max(0.0, state.current_sec - (latency_sec - state.job.target_sec) / state.weight)


def _usual_spread(workloads: Sequence[WorkloadState]) -> float:
    spreads = [spread for state in workloads if (spread := tail_spread(state.run_secs)) is not None]
    return median(spreads) if spreads else USUAL_SPREAD


def _is_unknown(state: WorkloadState) -> bool:
    return not math.isfinite(state.current_sec) or not any(math.isfinite(sec) for sec in state.run_secs)


def _is_new(state: WorkloadState, latency_sec: float) -> bool:
    """Tell whether a relevant workload has had no trial, regardless of its static schedule's time."""
    return not state.batches and not state.trials and _is_relevant(state, latency_sec)


def _is_relevant(state: WorkloadState, latency_sec: float) -> bool:
    """Tell whether a workload gets a first batch before others get a second: by its time, and its kind's usual gain."""
    return _share_of_job(state, latency_sec) * state.first_gain >= MATTERS * UNKNOWN_GAIN


def _share_of_job(state: WorkloadState, latency_sec: float) -> float:
    return state.weight * state.current_sec / latency_sec if math.isfinite(state.current_sec) else 1.0


def _blind_batch(state: WorkloadState, device: DeviceState, latency_sec: float, *, left_sec: float) -> ProposedBatch:
    """Return a batch of an unmeasured workload: as large as exploration allows, or none if it would end too late."""
    count = min(state.max_batch, state.trials_left)
    if state.first_gain < _SMALL_GAIN:
        count = min(SMALLEST_BATCH, count)
    if price_of(state, device, count).total_sec > left_sec:
        count = min(state.least_batch, count)
    price = price_of(state, device, count)
    share = state.first_gain / (1 + state.batches) ** 2  # falls with the square of the number of batches without a gain
    share_of_job = _share_of_job(state, latency_sec)
    reason = Reason(
        motive=Motive.FIRST if _is_new(state, latency_sec) else Motive.GAIN,
        gain_sec=share * state.current_sec,
        spread_sec=share * state.current_sec,
        horizon=1,
        device_sec=price.device_sec,
        builder_sec=price.builder_sec,
        weight=state.weight,
        priority=state.job.priority,
        trust=1.0,
        worth=state.job.priority * state.payers * share * share_of_job / price.total_sec,
    )
    return _proposed(state, count, 0.0, reason)


def _batch(state: WorkloadState, found: Estimate, share: float, latency_sec: float) -> ProposedBatch:
    reason = Reason(
        motive=Motive.GAIN,
        gain_sec=share * found.share * state.current_sec,
        spread_sec=share * found.spread * state.current_sec,
        horizon=found.horizon,
        device_sec=found.device_sec,
        builder_sec=found.builder_sec,
        weight=state.weight,
        priority=state.job.priority,
        trust=share,
        worth=state.job.priority * state.payers * share * found.rate * state.weight * state.current_sec / latency_sec,
    )
    return _proposed(state, found.count, found.first_share, reason)


def _proposed(state: WorkloadState, count: int, expected_share: float, reason: Reason) -> ProposedBatch:
    return ProposedBatch(
        workload=state.name,
        job=state.job.name,
        device_model=state.device_model,
        count=count,
        expected_share=expected_share,
        reason=reason,
    )


def _in_order(batches: Iterable[ProposedBatch], workloads: Sequence[WorkloadState]) -> list[ProposedBatch]:
    """Sort by motive and worth, and insert the exploration batch if it is due."""
    ordered = sorted(batches, key=lambda one: (one.reason.motive is not Motive.FIRST, -one.reason.worth, one.workload))
    taken = {state.name: state.batches for state in workloads}
    is_due = sum(taken.values()) % EXPLORATION_PERIOD == EXPLORATION_PERIOD - 1
    if not ordered or not is_due or ordered[0].reason.motive is Motive.FIRST:
        return ordered
    rank = {batch.workload: place for place, batch in enumerate(ordered)}
    least = min(ordered, key=lambda one: (taken[one.workload], rank[one.workload]))
    explored = replace(least, reason=replace(least.reason, motive=Motive.EXPLORATION))
    return [explored, *(batch for batch in ordered if batch is not least)]


def _finish_before(state: WorkloadState, now_sec: float, *, is_at_target: bool) -> Finish | None:
    """Return why a workload is finished regardless of the gains of its next batches.

    Args:
        is_at_target: its whole job has the latency that was asked for.
    """
    if state.is_closed:
        return Finish(done=Done.CLOSED)
    if state.trials_left < 1:
        return Finish(done=Done.NO_TRIALS)
    if state.job.deadline_sec <= now_sec:
        return Finish(done=Done.DEADLINE)
    if is_at_target:
        return Finish(done=Done.TARGET, target_sec=state.job.target_sec)
    if state.least_sec > 0 and state.current_sec <= _AT_ROOFLINE * state.least_sec:
        return Finish(done=Done.AT_ROOFLINE)
    return None


def _finish_without_gain(state: WorkloadState, expected_share: float, trials: int) -> Finish | None:
    """Return that nothing is left to gain, if the next trials are expected to gain almost none of its time."""
    is_tried = len(state.run_secs) >= _ENOUGH_TRIED and math.isfinite(state.current_sec)
    if not is_tried or trials < _ENOUGH_TRIED or expected_share >= _NOTHING:
        return None
    return Finish(done=Done.NOTHING_TO_GAIN, expected_share=expected_share, trials=trials)
