"""The prioritizer's reasons in words, for people. No decision reads them."""

from __future__ import annotations

import math

from fleet.optimizer.prioritizer.values import Done, Finish, Motive, Reason

_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"))


def sentence(reason: Reason) -> str:
    """Say why a batch is measured now."""
    price = f"{reason.device_sec:.2g} s of the device"
    if reason.motive is Motive.FIRST:
        return f"its first batch: nobody knows what it gains; {price}"
    if not math.isfinite(reason.gain_sec):
        return f"nothing that runs is known yet; {price}"
    ahead = "this batch" if reason.horizon == 1 else f"{reason.horizon} batches"
    gain = f"{ahead} should gain {_time(reason.gain_sec)} +- {_time(reason.spread_sec)}"
    times = f", {reason.weight:g} times in the model" if reason.weight != 1 else ""
    priority = f", priority {reason.priority:g}" if reason.priority != 1 else ""
    turn = "its turn, it has had the fewest batches; " if reason.motive is Motive.EXPLORATION else ""
    return f"{turn}{gain}{times}{priority}; {price} each"


def finish_sentence(finish: Finish) -> str:
    """Say why a workload gets no more trials."""
    match finish.done:
        case Done.CLOSED:
            return finish.message
        case Done.NO_TRIALS:
            return "has had all of its trials"
        case Done.AT_ROOFLINE:
            return "is as fast as the device can be"
        case Done.TARGET:
            return f"the job's target of {finish.target_sec * 1e3:g} ms is reached"
        case Done.DEADLINE:
            return "the job's deadline has come"
        case Done.NOTHING_TO_GAIN:
            return f"another {finish.trials} trials should gain {finish.expected_share:.2%} of its time"


def _time(sec: float) -> str:
    unit, name = next((pair for pair in _UNITS if sec >= pair[0]), _UNITS[-1])
    return f"{sec / unit:.2g} {name}"
