"""Scores of a race of jobs: device seconds until a weighted latency, and fairness between accounts. Pure."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.live_scenarios import Program, Race
from fleet.jobs.options import TRIAL_EVALUATOR

GAIN = 0.95
"""Share of the peer's gain that counts as the same latency: its last few percent are often found by one lucky trial."""

LOAD_SEC = 0.2
"""Time that a simulated board takes to load a candidate. Jobs compete for boards only where these, and not the builders
of a busy machine, are the bottleneck."""

_REPEAT_SEC = TRIAL_EVALUATOR.min_repeat_ms / 1e3

Curve = Sequence[tuple[float, float]]
"""Device seconds of all jobs, and the weighted latency from then on; the first is the start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One measurement, with the candidate's recorded time."""

    job: str
    program: str
    run_sec: float
    device_sec: float
    is_early: bool = False
    """It was made before the urgent job arrived."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """One side of a race. Ratios are of device seconds to the peer's level, over the peer's; nan: the peer gained 0."""

    total: float
    """By the weighted latency of all jobs."""

    by_job: Mapping[str, float]
    """By each job's own latency; device seconds are those of all jobs, for the urgent job since its arrival."""

    is_reached: bool
    """The total's level was reached; else `total` has all of its device seconds, a lower bound."""

    jain: float
    """Fairness of the device seconds between accounts, while all had trials left."""

    trials: int
    """Measurements of all jobs."""

    is_in_time: bool
    """The urgent job reached its level within twice the device seconds of its own trials on the peer's side."""


def score(
    trials: Sequence[Trial], peer: Sequence[Trial], race: Race, accounts: Mapping[str, str], urgent: str = ""
) -> Score:
    """Judge one side of a race beside the peer's.

    Args:
        accounts: account by job.
        urgent: job with a deadline; empty: none.
    """
    total = curve(trials, race.values())
    late, late_peer = ([one for one in some if not one.is_early] for some in (trials, peer))
    soon = seconds_to(curve(late, [race[urgent]]), level(curve(late_peer, [race[urgent]]))) if urgent else 0.0
    by_job = {name: _ratio(trials, peer, [programs]) for name, programs in race.items()}
    if urgent:
        by_job[urgent] = _ratio(late, late_peer, [race[urgent]])
    return Score(
        total=_ratio(trials, peer, race.values()),
        by_job=by_job,
        is_reached=math.isfinite(seconds_to(total, level(curve(peer, race.values())))),
        jain=jain(shared_sec(trials, accounts).values()),
        trials=len(trials),
        is_in_time=soon <= 2 * device_sec(peer, job=urgent),
    )


def pretended_sec(run_sec: float, repeats: int) -> float:
    """Return the device time of a measurement [s]: loading, a warm-up run and the repeats, on an idle machine."""
    return LOAD_SEC + run_sec + repeats * max(run_sec, _REPEAT_SEC)


def curve(trials: Sequence[Trial], jobs: Collection[Sequence[Program]]) -> Curve:
    """Return the latency of some jobs, as the sum of each one's share of its latency at the start.

    Args:
        trials: those of all jobs, in the order of their measurement.
    """
    shares = {one.key: one.calls / _latency(programs) for programs in jobs for one in programs}
    best = {one.key: one.start_sec for programs in jobs for one in programs}
    found, device_sec = [(0.0, float(len(jobs)))], 0.0
    for trial in trials:
        device_sec += trial.device_sec
        if trial.run_sec < best.get(trial.program, 0.0):
            gained = shares[trial.program] * (best[trial.program] - trial.run_sec)
            best[trial.program] = trial.run_sec
            found.append((device_sec, found[-1][1] - gained))
    return found


def level(peer: Curve) -> float:
    """Return the latency at which most of the peer's gain is reached."""
    start, end = peer[0][1], peer[-1][1]
    return start - GAIN * (start - end)


def seconds_to(found: Curve, latency: float) -> float:
    """Return the device seconds after which a latency is reached; infinite if it never is."""
    return next((sec for sec, reached in found if reached <= latency), math.inf)


def device_sec(trials: Sequence[Trial], *, job: str = "") -> float:
    """Return the device seconds of a job, or of all."""
    return math.fsum(trial.device_sec for trial in trials if job in ("", trial.job))


def shared_sec(trials: Sequence[Trial], accounts: Mapping[str, str]) -> Mapping[str, float]:
    """Return the device seconds of each account while all had trials left.

    Args:
        accounts: account by job.
    """
    names = set(accounts.values())
    last = {accounts[trial.job]: place for place, trial in enumerate(trials)}
    some = trials[: min(last.values(), default=-1) + 1]
    return {name: math.fsum(one.device_sec for one in some if accounts[one.job] == name) for name in sorted(names)}


def jain(values: Collection[float]) -> float:
    """Return Jain's index of fairness: 1 if all are equal, 1/n if one has everything."""
    squares = math.fsum(value * value for value in values)
    return math.fsum(values) ** 2 / (len(values) * squares) if squares else 1.0


def _ratio(trials: Sequence[Trial], peer: Sequence[Trial], jobs: Collection[Sequence[Program]]) -> float:
    of_peer = curve(peer, jobs)
    peer_sec = seconds_to(of_peer, level(of_peer))
    own_sec = seconds_to(curve(trials, jobs), level(of_peer))
    return min(own_sec, device_sec(trials)) / peer_sec if peer_sec else math.nan


def _latency(programs: Sequence[Program]) -> float:
    return math.fsum(one.calls * one.start_sec for one in programs)
