"""Draws and scores of the live benchmark of the prioritizer."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.cost_data.dataset import Group
from benchmarks.cost_data.dataset import Program as Recorded
from benchmarks.live_scenarios import SCENARIOS, Program, draw
from benchmarks.live_scores import LOAD_SEC, Trial, curve, jain, level, pretended_sec, score, seconds_to, shared_sec
from benchmarks.policies import gradient


def group(place: int, count: int = 20) -> Group:
    """Return a recorded workload, the last quarter of which has evolved."""
    program = Recorded(model="m", name="f", operator="op", shash=str(place), flop=1.0, target_json="", mod_json="")
    return Group(
        program=program,
        features=[np.zeros((1, 1), np.float32)] * count,
        run_sec=np.random.default_rng(place).permutation(np.linspace(1.0, 9.0, count)),
        spread=np.zeros(count, np.float32),
        sources=["own"] * (3 * count // 4) + ["evolved"] * (count // 4),
        traces=[f"[{number}]" for number in range(count)],
        is_disturbed=np.zeros(count, bool),
        collected={},
    )


def program(key: str, calls: int = 1, start_sec: float = 10.0) -> Program:
    return Program(key=key, group=0, order=(), calls=calls, start_sec=start_sec)


def trial(program: str, run_sec: float, device_sec: float = 1.0, job: str = "a") -> Trial:
    return Trial(job=job, program=program, run_sec=run_sec, device_sec=device_sec)


def test_races_share_no_programs_and_evolved_candidates_come_last() -> None:
    """Each job has its number of workloads, the first with a gain ahead; the start is the best of the first batch."""
    groups = {place: group(place) for place in range(20)}
    for place in range(5, 20):
        groups[place].run_sec[:] = 1.0

    races = [draw(scenario, groups, race=number) for number, scenario in enumerate(SCENARIOS.values())]

    programs = [one for race in races for some in race.values() for one in some]
    assert len({one.key for one in programs}) == len(programs)
    for scenario, race in zip(SCENARIOS.values(), races, strict=True):
        assert {name: len(some) for name, some in race.items()} == scenario.workloads
        assert all(some[0].group < 5 for some in race.values())
    for one in programs:
        assert sorted(one.order[15:]) == [15, 16, 17, 18, 19]
        assert one.start_sec == min(groups[one.group].run_sec[list(one.order[:8])])


def test_a_curve_weighs_calls_and_counts_the_device_seconds_of_all_jobs() -> None:
    """A workload that is called three times has three quarters of its job's latency."""
    job = [program("often", calls=3), program("once")]
    trials = [trial("often", 12.0), trial("other", 1.0, 5.0), trial("often", 5.0), trial("once", 5.0)]

    found = curve(trials, [job])

    assert found == [(0.0, 1.0), (7.0, pytest.approx(0.625)), (8.0, pytest.approx(0.5))]
    assert level(found) == pytest.approx(0.525)
    assert seconds_to(found, level(found)) == 8.0
    assert seconds_to(found, 0.4) == math.inf


def test_a_side_that_never_reaches_the_level_is_charged_all_of_its_seconds() -> None:
    """It is a lower bound, and marked as such."""
    race = {"a": [program("x")], "b": [program("y")]}
    accounts = {"a": "one", "b": "two"}
    peer = [trial("x", 10.0), trial("x", 5.0)]

    found = score([trial("x", 9.0), trial("y", 9.0, 3.0, job="b")], peer, race, accounts, "a")

    assert (found.total, found.is_reached) == (2.0, False)
    assert found.by_job["a"] == 2.0
    assert math.isnan(found.by_job["b"])
    assert not found.is_in_time
    assert score(peer, peer, race, accounts, "a").is_in_time


def test_an_urgent_job_is_judged_from_its_start() -> None:
    """Device seconds of others before it count for these alone."""
    race = {"a": [program("x")], "b": [program("y")]}
    accounts = {"a": "one", "b": "one"}
    peer = [replace(trial("y", 5.0, job="b"), is_early=True), trial("y", 4.0, job="b"), trial("x", 5.0)]
    ours = [replace(trial("y", 5.0, 3.0, job="b"), is_early=True), trial("x", 5.0), trial("y", 4.0, job="b")]

    found = score(ours, peer, race, accounts, "a")

    assert found.by_job == {"a": 0.5, "b": 2.5}
    assert found.total == pytest.approx(5 / 3)


def test_fairness_counts_until_the_first_account_has_no_trials_left() -> None:
    """Afterwards the others may have everything."""
    accounts = {"a": "one", "b": "two"}
    trials = [trial("x", 1.0), trial("y", 1.0, job="b"), trial("x", 1.0), trial("x", 1.0)]

    assert shared_sec(trials, accounts) == {"one": 1.0, "two": 1.0}
    assert jain([1.0, 1.0]) == 1.0
    assert jain([1.0, 0.0]) == 0.5


def test_device_seconds_follow_from_times_and_repeats() -> None:
    """A repeat takes five milliseconds at least."""
    assert pretended_sec(0.001, 3) == pytest.approx(LOAD_SEC + 0.001 + 0.015)
    assert pretended_sec(0.1, 1) == pytest.approx(LOAD_SEC + 0.2)


def test_the_gradient_is_metaschedules() -> None:
    """A fifth is the slope over three batches, the rest the mean time per batch."""
    assert gradient([8.0, 4.0]) == pytest.approx(0.8 * 2.0)
    assert gradient([8.0, 6.0, 5.0, 2.0]) == pytest.approx(0.2 * 2.0 + 0.8 * 0.5)
