"""The training data of the cost model."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.cost_data.dataset import Dataset, Group, Program, load, refreshed, save
from benchmarks.cost_data.ranking import best_of_top
from benchmarks.cost_data.timer import Times
from benchmarks.cost_model import DATA, SPLIT, samples_of, usable
from cross.targets.target import parse_target
from fleet.cost_model.packaged_model import prior_samples
from fleet.cost_model.samples import grouped


def made_up(shash: str) -> Group:
    program = Program(
        model="m", name="n", operator="o", shash=shash, flop=2.0, target_json='{"kind": "llvm"}', mod_json="{}"
    )
    return Group(
        program=program,
        features=[np.full((2, 3), 0.5, np.float32), np.full((1, 3), 7.0, np.float32)],
        run_sec=np.array([1e-3, np.inf]),
        spread=np.array([0.125, 0.25], np.float32),
        sources=["own", "rules"],
        traces=["[]", "[[], []]"],
        is_disturbed=np.array([True, False]),
        collected={"ended_at": "2026-11-22"},
    )


def test_a_data_set_is_read_as_it_was_written(tmp_path: Path) -> None:
    """Candidates stay with their workload, and features with their candidate."""
    path = tmp_path / "some.npz"
    save(path, Dataset(provenance={"cpu": "some"}, groups=[made_up("1"), made_up("2")]))

    found = load(path)

    assert found.provenance == {"cpu": "some"}
    assert [group.program for group in found.groups] == [made_up("1").program, made_up("2").program]
    for group, wanted in zip(found.groups, (made_up("1"), made_up("2")), strict=True):
        assert_same(group, wanted)


def assert_same(group: Group, wanted: Group) -> None:
    assert (group.program, group.sources, group.traces) == (wanted.program, wanted.sources, wanted.traces)
    assert group.collected == wanted.collected
    np.testing.assert_array_equal(group.run_sec, wanted.run_sec)
    np.testing.assert_array_equal(group.is_disturbed, wanted.is_disturbed)
    assert all(np.array_equal(one, other) for one, other in zip(group.features, wanted.features, strict=True))


def test_a_workload_that_is_collected_anew_leaves_the_others_as_they_are(tmp_path: Path) -> None:
    """The new group takes the old one's place with its own date, and the rest of the file stays."""
    path = tmp_path / "some.npz"
    save(path, Dataset(provenance={"cpu": "some"}, groups=[made_up(name) for name in "123"]))
    old = load(path)
    again = replace(made_up("2"), run_sec=np.array([2e-3, 3e-3]), collected={"ended_at": "2026-11-23"})

    save(path, refreshed(old, [Dataset(provenance={}, groups=[again])]))

    for group, wanted in zip(load(path).groups, (old.groups[0], again, old.groups[2]), strict=True):
        assert_same(group, wanted)


def test_a_disturbed_time_counts_only_where_there_is_no_other() -> None:
    """A candidate that was measured again in calm is not disturbed any more, in either order."""
    calm, disturbed = Times(run_secs=(2.0,)), Times(run_secs=(1.0,), is_disturbed=True)

    assert [calm + disturbed, disturbed + calm] == [calm, calm]
    assert disturbed + disturbed == Times(run_secs=(1.0, 1.0), is_disturbed=True)
    assert disturbed + Times() == Times() + disturbed == disturbed


@pytest.mark.slow
def test_the_frozen_split_is_of_workloads_of_the_data_set() -> None:
    """Figures of two days are about the same workloads, each with many candidates in the data."""
    records = {group.program.shash: len(group) for group in load(DATA).groups}

    evaluated = json.loads(SPLIT.read_text())["evaluated"]

    assert len(set(evaluated)) >= 20
    assert min(records[shash] for shash in evaluated) > 60


@pytest.mark.slow
def test_a_space_that_begins_with_other_schedules_is_noticed() -> None:
    """A workload's data is stale once tuning would try other programs first."""
    from benchmarks.cost_data.candidates import CandidateTask, own_candidates
    from benchmarks.cost_data.own_spaces import has_other_space
    from fleet.workloads.programs import matmul

    target = parse_target('{"kind": "llvm", "mcpu": "x86-64-v3", "num-cores": 2}')
    workload = matmul(16)
    task = CandidateTask(mod_json=workload.mod_json, target=target, count=9)
    traces = [candidate.trace_json for candidate in own_candidates(task)]
    program = replace(made_up("1").program, mod_json=workload.mod_json, target_json=target.json)
    group = replace(made_up("1"), program=program, sources=["own"] * len(traces), traces=traces)

    assert not has_other_space(group)
    assert has_other_space(replace(group, sources=group.sources[1:], traces=group.traces[1:]))


def test_the_package_contains_its_models_training_data() -> None:
    """The package has the usable candidates of each workload, with their times and features."""
    packaged = {group.workload: group for group in grouped(prior_samples())}
    groups = {group.program.shash: usable(group) for group in load(DATA).groups}

    assert packaged.keys() == groups.keys()
    for shash, group in groups.items():
        kept = packaged[shash]
        assert (kept.flop, kept.device_model) == (group.program.flop, samples_of(group)[0].device_model)
        np.testing.assert_allclose(np.exp(kept.log_sec), group.run_sec, rtol=1e-5)
        np.testing.assert_array_equal(kept.weights < 1, group.is_disturbed)
        for one, other in zip(kept.features, group.features, strict=True):
            np.testing.assert_array_equal(one, other.astype(np.float16))


def test_the_best_of_the_first_candidates_counts() -> None:
    """A candidate ranked behind them does not, however fast it is."""
    assert best_of_top(np.array([2.0, 1.0, 0.0]), np.array([1.0, 4.0, 2.0]), 2) == 0.5
