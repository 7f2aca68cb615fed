"""Indices that a model is checked with stay within its tables."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from cross.targets.target import host_target
from fleet.checking.index_inputs import largest_index, largest_index_of
from fleet.export.answers import find_answers
from fleet.models.model import Model
from fleet.workloads.extract import extract
from tests.unit.onnx_cases import loaded, model_of


def lookup(folder: Path, *rows: int) -> Model:
    """Return a model that adds the results of looking up each input in a table of so many rows."""
    tables = {f"t{index}": np.random.default_rng(index).random((size, 4), "f") for index, size in enumerate(rows)}
    nodes = [helper.make_node("Gather", [f"t{index}", f"x{index}"], [f"e{index}"]) for index in range(len(rows))]
    nodes.append(helper.make_node("Sum", [f"e{index}" for index in range(len(rows))], ["y"]))
    inputs = {f"x{index}": np.zeros((1, 6), "int64") for index in range(len(rows))}
    return loaded(model_of(nodes, inputs, tables), folder)


@pytest.mark.parametrize(("rows", "expected"), [((20, 9), 8), ((20, 2), 1), ((20, 1), 0)])
def test_the_shortest_table_counts(rows: tuple[int, ...], expected: int, tmp_path: Path) -> None:
    """BERT has a row for each word, and one for each of two kinds of tokens."""
    assert expected == largest_index(lookup(tmp_path, *rows))


@pytest.mark.slow
def test_programs_tell_how_long_their_tables_are(tmp_path: Path) -> None:
    """Beyond the end each program read something else, and right schedules were taken for wrong ones."""
    workloads = extract(lookup(tmp_path, 20, 2), host_target())
    lookups = [workload for workload in workloads if "take" in workload.name]

    assert [1, 19] == sorted(workload.largest_index or 0 for workload in lookups)
    assert [1, 8] == sorted(map(largest_index_of, lookups))
    assert {None} == {workload.largest_index for workload in workloads if workload not in lookups}


def test_a_model_with_a_short_table_has_answers(tmp_path: Path) -> None:
    """Before, such a model could not be exported: its index 2 was beyond the table."""
    answers = find_answers(lookup(tmp_path, 20, 2), 0)

    assert ("onnxruntime", None) == (answers.reference, answers.weakness)
    assert max(int(given.max()) for given in answers.inputs) == 1
