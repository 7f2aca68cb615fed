"""Fragments of models: the operators that a workload comes from."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from cross.targets.target import parse_target
from fleet.cli.main import app
from fleet.errors import InvalidRequest
from fleet.fragments.built import to_relax
from fleet.fragments.captured import CapturedModel
from fleet.fragments.faithful import origins_of_file, program_of
from fleet.fragments.fragment import Call, Fragment, Shape, Tensor
from fleet.fragments.regions import Graph, regions
from fleet.testing.models import write

_TARGET = parse_target('{"kind": "llvm", "mcpu": "x86-64-v3", "num-cores": 2}')


def chain(*reads: tuple[int, ...], anchors: tuple[int, ...], constants: tuple[int, ...] = ()) -> Graph:
    """Make a graph; its last call computes the result."""
    numbers = range(len(reads))
    return Graph(
        reads=dict(enumerate(reads)),
        readers={number: [other for other in numbers if number in reads[other]] for number in numbers},
        constants=set(constants),
        anchors=set(anchors),
        borders=set(),
        outputs={len(reads) - 1},
    )


def test_regions_grow_up_to_the_next_anchor_first() -> None:
    """The largest region without another anchor is the likeliest; the anchor alone and larger ones follow."""
    found = list(regions(chain((), (0,), (1,), (2,), anchors=(0, 3)), 0))

    assert found == [{0, 1, 2}, {0, 1}, {0}, {0, 1, 2, 3}]


def test_regions_take_whole_diamonds() -> None:
    """x * sigmoid(x) is one step: FuseOps joins both paths or none."""
    found = list(regions(chain((), (0,), (0, 1), (2,), anchors=(0,)), 0))

    assert found == [{0, 1, 2, 3}, {0, 1, 2}, {0}]


def test_regions_end_at_results_of_the_model_and_take_constants_along() -> None:
    """A call that the model returns is not fused into its readers; calls of constants belong to their readers."""
    graph = chain((), (0,), (1, 0), (2,), anchors=(1,), constants=(0,))

    assert list(regions(graph, 1)) == [{0, 1, 2, 3}, {0, 1, 2}, {0, 1}]
    assert list(regions(chain((), (0,), anchors=(1,)), 1)) == [{1}, {0, 1}]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write("keyword_spotting", tmp_path_factory.mktemp("model"))


@pytest.mark.slow
def test_fragments_have_the_programs_of_their_model(model: Path) -> None:
    """Each is lowered again to the very hash, and all together are nearly all operations of a small model."""
    origins = origins_of_file(model, _TARGET)

    kept = [one for one in origins if one.fragment is not None]
    assert kept
    for one in kept:
        program = program_of(one.fragment, _TARGET) if one.fragment else None
        assert program is not None
        assert program.shash == one.workload.shash
    total = sum(one.workload.flop * one.workload.weight for one in origins)
    assert sum(one.workload.flop * one.workload.weight for one in kept) > 0.9 * total
    assert not [one for one in kept for weight in one.fragment.weights if len(weight.values) > 64]


def dense(rows: int, columns: int) -> Fragment:
    """A product with a reshape before and a bias behind."""
    return Fragment(
        inputs=(Tensor(shape=(1, 4, 8), dtype="float32"),),
        weights=(Tensor(shape=(rows, columns), dtype="float32"), Tensor(shape=(1,), dtype="float32", values=(0.5,))),
        calls=(
            Call(operator="reshape", operands=("i0", Shape(shape=(4, 8)))),
            Call(operator="matmul", operands=("c0", "w0"), attributes={"out_dtype": None}),
            Call(operator="add", operands=("c1", "w1")),
        ),
    )


def test_a_fragment_survives_relax() -> None:
    """Captured again from its own module, a fragment is the same: nothing is lost on the way."""
    fragment = dense(8, 16)
    model = CapturedModel(to_relax(fragment))

    again = model.fragment(frozenset(range(len(model.calls))))

    assert again.inputs == fragment.inputs
    assert again.weights == fragment.weights
    assert [call.operator for call in again.calls] == ["reshape", "matmul", "add"]
    assert again.digest == CapturedModel(to_relax(again)).fragment(frozenset({0, 1, 2})).digest


def test_tvm_refuses_sizes_that_do_not_fit() -> None:
    """Its inference checks a fragment, and the message says so."""
    with pytest.raises(InvalidRequest, match="TVM refuses the fragment"):
        to_relax(dense(9, 16))


@pytest.mark.slow
def test_extract_writes_a_file_and_the_covered_share(model: Path, tmp_path: Path) -> None:
    """The file has each workload once, with its count in each model; the share is printed."""
    file = tmp_path / "w.yaml"

    result = CliRunner().invoke(app, ["workloads", "extract", str(model), "-o", str(file)])

    assert result.exit_code == 0, result.stderr
    assert "keyword_spotting" in result.stdout
    content = yaml.safe_load(file.read_text())
    hashes = [entry["hash"] for entry in content["workloads"]]
    assert len(hashes) == len(set(hashes)) > 2
    costly = content["workloads"][0]
    assert costly["models"]["keyword_spotting"] > 0
    assert "nn.conv2d" in [call["operator"] for call in costly["fragment"]["calls"]]


def test_extract_refuses_files_before_it_starts(tmp_path: Path) -> None:
    """It refuses a file of another type, and an output path that cannot be written."""
    (tmp_path / "m.onnx").touch()
    unknown = CliRunner().invoke(app, ["workloads", "extract", "a.txt", "-o", str(tmp_path / "w.yaml")])
    nowhere = CliRunner().invoke(app, ["workloads", "extract", str(tmp_path / "m.onnx"), "-o", "/nowhere/w.yaml"])

    assert (unknown.exit_code, nowhere.exit_code) == (2, 2)
    assert "is of no known type" in unknown.stderr
    assert "there is no folder /nowhere" in nowhere.stderr
