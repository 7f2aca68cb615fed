"""Formats news of a job and decisions of the prioritizer for people. No decision reads the texts."""

from __future__ import annotations

import math

from fleet.base.quantities import count_text, time_text
from fleet.domain.decisions import Motive, Reason
from fleet.domain.jobs import trials_text
from fleet.domain.proving import Proof
from fleet.optimizer.core.news import News, Topic
from fleet.optimizer.prioritizer.values import Done, Finish, Rest


def narrate(news: News | None) -> str:
    """Return news as text; empty for None."""
    if news is None:
        return ""
    match news.topic:
        case Topic.SEARCHING:
            return f"searching {news.operator}{_because(news.reason)}"
        case Topic.BUILDING:
            return f"building {count_text(news.count, 'candidate')} of {news.operator}{_because(news.reason)}"
        case Topic.TIMING_BASELINES:
            return f"timing {count_text(news.count, 'unscheduled program')}"
        case Topic.MEASURING:
            return f"measuring {news.operator}"
        case Topic.REPEATING:
            return f"repeating {count_text(news.count, 'measurement')}: {news.detail}"
        case Topic.PROVING:
            return "proving the times of the best candidates"
        case Topic.RUN_OFF:
            return "comparing the best candidates once more"
        case Topic.TEXT:
            return news.detail
        case Topic.SEARCH_ENDED:
            return f"{news.detail}: the search ends; the best schedules so far are compared and stored"
        case Topic.LITTLE_LEFT if news.rest is not None:
            return f"the search ends after {trials_text(news.count, round(news.limit))} trials: {rest_text(news.rest)}"
        case Topic.WORKLOAD_CLOSED:
            return f"{news.operator} gets no more trials: {narrate(news.closing)}"
        case Topic.NOT_LEARNT:
            return f"the cost model could not learn from the last batch: {news.detail}"
        case Topic.WRONG_OUTPUT:
            return f"{news.operator}: a candidate gives wrong results and is discarded: {news.detail}"
        case Topic.NOT_PROVEN:
            return (
                f"{news.operator}: a candidate is discarded because its time is not proven: {_refutation(news.proof)}"
            )
    return _of_device(news) or _closing(news)


def _of_device(news: News) -> str:
    device, share = news.device or "the device", f"{news.limit:.0%} of the measuring time"
    match news.topic:
        case Topic.DEVICE_SUSPECTED:
            return (
                f"{device}: several candidates in a row failed; releasing the device until its agent reports it healthy"
            )
        case Topic.DEVICE_DISTURBED:
            return f"{device} is disturbed ({news.detail}); disturbed measurements are repeated, for up to {share}"
        case Topic.REPEATS_SPENT:
            return (
                f"{device} is still disturbed ({news.detail}), and repeated measurements have reached their limit of "
                f"{share}; later disturbed times are kept, with a note"
            )
        case Topic.STAYS_DISTURBED:
            return (
                f"{device} stays disturbed ({news.detail}); its times are kept, with a note, and no longer repeated "
                "until a batch is undisturbed"
            )
    return ""


def _closing(news: News) -> str:
    """Return the reason why a workload is closed."""
    match news.topic:
        case Topic.ENOUGH:
            return f"the library has {news.count} trials of it; {news.limit:g} are enough (--enough)"
        case Topic.EXHAUSTED:
            return "no new candidates are left to try"
        case Topic.FINISHED if news.finish is not None:
            return finish_text(news.finish)
        case Topic.SEARCH_FAILED:
            return f"its search failed: {news.detail}"
        case Topic.BASELINE_FAILED:
            return f"its unscheduled program failed: {news.error} {news.detail}"
        case Topic.BASELINE_NOT_TIMED:
            return "its unscheduled program could not be timed"
        case Topic.NOT_CHECKED:
            return f"its numbers cannot be checked: {news.detail}"
    return news.detail


def _because(reason: Reason | None) -> str:
    return f": {reason_text(reason)}" if reason is not None else ""


def _refutation(proof: Proof | None) -> str:
    if proof is None:
        return "it is refuted"
    measured = f", and took {time_text(proof.measured_sec)} by the agent's clock" if proof.measured_sec else ""
    return f"it claimed {time_text(proof.claimed_sec)}{measured}; {proof.message}"


def reason_text(reason: Reason) -> str:
    """Return the reason for a batch."""
    price = f"{reason.device_sec:.2g} s on the device"
    if reason.motive is Motive.FIRST:
        return f"first batch, gain unknown; takes about {price}"
    if not math.isfinite(reason.gain_sec):
        return f"no candidate has run yet; takes about {price}"
    ahead = "this batch" if reason.horizon == 1 else f"{reason.horizon} batches"
    gain, spread = (time_text(sec, digits=2) for sec in (reason.gain_sec, reason.spread_sec))
    times = f", called {reason.weight:g} times in the model" if reason.weight != 1 else ""
    is_raised = round(reason.priority, 2) != 1  # more than by a distant deadline
    priority = f", priority {reason.priority:.4g}" if is_raised else ""
    turn = "fewest batches so far; " if reason.motive is Motive.EXPLORATION else ""
    return f"{turn}expected gain of {ahead}: {gain} +- {spread}{times}{priority}; each takes about {price}"


def rest_text(rest: Rest) -> str:
    """Return the expected gain of the rest of a search."""
    gain, latency = time_text(rest.gain_sec, digits=2), time_text(rest.latency_sec)
    return f"the rest should gain {gain} of {latency} ({rest.share:.1%}) in the next tenth of its budget"


def finish_text(finish: Finish) -> str:
    """Return the reason of the prioritizer for giving a workload no more trials."""
    match finish.done:
        case Done.CLOSED:
            return "it is closed"
        case Done.NO_TRIALS:
            return "all of its trials are done"
        case Done.AT_ROOFLINE:
            return "within the device's limit: little is left to gain"
        case Done.TARGET:
            return f"the job's target of {finish.target_sec * 1e3:g} ms is reached"
        case Done.DEADLINE:
            return "the job's deadline is reached"
        case Done.LITTLE_LEFT:
            return "the rest of the search should gain too little (--until-gain)"
        case Done.NOTHING_TO_GAIN:
            return f"the next {finish.trials} trials are expected to gain {finish.expected_share:.2%} of its time"
