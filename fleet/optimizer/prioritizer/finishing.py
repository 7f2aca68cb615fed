"""Decides when a workload gets no more trials, and why."""

from __future__ import annotations

import math

from fleet.optimizer.prioritizer.values import Done, Finish, WorkloadState

_AT_ROOFLINE = 1.02
"""Within this factor of the roofline nothing that could be found would be told from noise."""

_NOTHING = 0.002
"""A share of a workload's time that is no reason to measure all that can be looked ahead."""

_ENOUGH_TRIED = 64
"""Number of records below which a tail of times says too little to give up."""


def finish_before(state: WorkloadState, now_sec: float, *, is_at_target: bool) -> Finish | None:
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


def finish_without_gain(state: WorkloadState, expected_share: float, trials: int) -> Finish | None:
    """Return that nothing is left to gain, if the next trials are expected to gain almost none of its time."""
    is_tried = len(state.run_secs) >= _ENOUGH_TRIED and math.isfinite(state.current_sec)
    if not is_tried or trials < _ENOUGH_TRIED or expected_share >= _NOTHING:
        return None
    return Finish(done=Done.NOTHING_TO_GAIN, expected_share=expected_share, trials=trials)
