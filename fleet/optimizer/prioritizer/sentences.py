"""The prioritizer's reasons in words, for people. No decision reads them."""

from __future__ import annotations

import math

from fleet.base.quantities import time_text
from fleet.optimizer.prioritizer.values import Done, Finish, Motive, Reason


def sentence(reason: Reason) -> str:
    """Say why a batch is measured now."""
    price = f"{reason.device_sec:.2g} s on the device"
    if reason.motive is Motive.FIRST:
        return f"first batch, gain unknown; takes about {price}"
    if not math.isfinite(reason.gain_sec):
        return f"no candidate has run yet; takes about {price}"
    ahead = "this batch" if reason.horizon == 1 else f"{reason.horizon} batches"
    gain, spread = (time_text(sec, digits=2) for sec in (reason.gain_sec, reason.spread_sec))
    times = f", called {reason.weight:g} times in the model" if reason.weight != 1 else ""
    priority = f", priority {reason.priority:g}" if reason.priority != 1 else ""
    turn = "fewest batches so far; " if reason.motive is Motive.EXPLORATION else ""
    return f"{turn}expected gain of {ahead}: {gain} +- {spread}{times}{priority}; each takes about {price}"


def finish_sentence(finish: Finish) -> str:
    """Say why a workload gets no more trials."""
    match finish.done:
        case Done.CLOSED:
            return finish.message
        case Done.NO_TRIALS:
            return "all of its trials are done"
        case Done.AT_ROOFLINE:
            return "within the device's limit: little is left to gain"
        case Done.TARGET:
            return f"the job's target of {finish.target_sec * 1e3:g} ms is reached"
        case Done.DEADLINE:
            return "the job's deadline is reached"
        case Done.NOTHING_TO_GAIN:
            return f"the next {finish.trials} trials are expected to gain {finish.expected_share:.2%} of its time"
