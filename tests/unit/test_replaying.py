"""Replays of recorded times: the view of policies, and the price of their choices."""

from __future__ import annotations

import math

import numpy as np
import pytest

from benchmarks.policies import (
    Prioritizer,
    follow_gradient,
    follow_gradient_ranked,
    know_everything,
    predicted,
    ranked,
    take_turns,
)
from benchmarks.replaying import AHEAD, BATCH, Lane, Policy, Race, Track, run, seconds_to


def track(name: str, *, job: str = "j", weight: float = 1.0, seed: int = 0) -> Track:
    """Return 24 artificial times."""
    rng = np.random.default_rng(seed)
    secs = np.exp(rng.standard_normal(24)) * 1e-3
    return Track(name, job, weight, secs, np.stack([np.log(secs)] * 3), 1.0, 0.1)


def policies() -> list[Policy]:
    in_order: list[Policy] = [take_turns, follow_gradient, know_everything, Prioritizer(0, predicts=False)]
    return [*in_order, follow_gradient_ranked, Prioritizer(0, predicts=True)]


def test_every_policy_measures_each_candidate_once_in_the_end() -> None:
    """They differ in the order only, so all end with the same latency; after the same device seconds, where the order
    within each workload is the same, too."""
    tracks = [track("a"), track("b", seed=1, weight=3), track("c", seed=2, job="k")]

    races = [run(tracks, policy) for policy in policies()]

    assert all(sorted(lane.measured) == list(range(24)) for race in races for lane in race.lanes)
    assert len({round(race.latency, 9) for race in races}) == 1
    assert len({round(race.device_sec, 9) for race in races[:4]}) == 1


def test_latency_counts_jobs_alike() -> None:
    """Each job begins at one, however slow it is and however often its workloads run."""
    race = Race([track("a"), track("b", weight=50.0, job="k"), track("c", weight=2.0, job="k")])

    assert race.latency == pytest.approx(2.0)


def test_the_oracle_measures_the_workload_with_the_gain() -> None:
    """The oracle measures only the workload with a last candidate that is a thousand times better."""
    alike = np.full(24, 1e-3)
    gaining = np.append(alike[1:], 1e-6)
    tracks = [Track("w", "j", 1.0, secs, np.zeros((3, 24)), 1.0, 0.1) for secs in (alike, alike, gaining)]

    race = run(tracks, know_everything, until=0.7)

    assert [len(lane.measured) for lane in race.lanes] == [BATCH, BATCH, 24]
    assert seconds_to(race, race.latency) == race.device_sec
    assert seconds_to(race, 0.0) == math.inf


def test_ours_believes_a_model_that_is_right() -> None:
    """If a model predicts a gain correctly, the prioritizer goes there first."""
    fast, slow = np.full(24, 1e-3), np.full(24, 1e-3)
    fast[BATCH:] = 1e-4
    tracks = [
        Track(name, "j", 1.0, secs, np.stack([np.log(secs)] * 3), 1.0, 0.1) for name, secs in (("a", slow), ("b", fast))
    ]
    race = Race(tracks)

    index, chosen = Prioritizer(0, predicts=True)(race)

    assert index == 1
    assert 4 <= len(chosen) <= BATCH
    assert predicted(race.lanes[1], chosen).shape == (12, len(chosen))


def test_only_candidates_ahead_are_chosen() -> None:
    """The best predicted comes first; candidates that the search has not found yet are unknown, however good
    they are.
    """
    secs = np.linspace(2.0, 1.0, 2 * AHEAD)
    lane = Lane(Track("a", "j", 1.0, secs, np.log(secs)[None], 1.0, 0.1))

    first = ranked(lane)
    lane.measure(lane.waiting[:AHEAD])

    assert first == list(range(3 * BATCH - 1, BATCH - 1, -1))
    assert ranked(lane) == list(range(2 * AHEAD - 1, AHEAD + BATCH - 1, -1))
