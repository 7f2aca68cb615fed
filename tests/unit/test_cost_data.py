"""The data set that the cost model learns from."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.cost_data.dataset import Dataset, Group, Program, load, save
from benchmarks.cost_model import DATA, SPLIT


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
    )


def test_a_data_set_is_read_as_it_was_written(tmp_path: Path) -> None:
    """Candidates stay with their workload, and features with their candidate."""
    path = tmp_path / "some.npz"
    save(path, Dataset(provenance={"cpu": "some"}, groups=[made_up("1"), made_up("2")]))

    found = load(path)

    assert found.provenance == {"cpu": "some"}
    assert [group.program for group in found.groups] == [made_up("1").program, made_up("2").program]
    for group, wanted in zip(found.groups, (made_up("1"), made_up("2")), strict=True):
        assert (group.sources, group.traces) == (wanted.sources, wanted.traces)
        np.testing.assert_array_equal(group.run_sec, wanted.run_sec)
        assert all(np.array_equal(one, other) for one, other in zip(group.features, wanted.features, strict=True))


@pytest.mark.slow
def test_the_frozen_split_is_of_workloads_of_the_data_set() -> None:
    """Figures of two days are about the same workloads, of which the data has many candidates."""
    records = {group.program.shash: len(group) for group in load(DATA).groups}

    evaluated = json.loads(SPLIT.read_text())["evaluated"]

    assert len(set(evaluated)) >= 20
    assert min(records[shash] for shash in evaluated) > 60
