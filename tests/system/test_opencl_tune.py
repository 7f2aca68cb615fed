"""`fleet tune --on kind=opencl` from a model file to a report: real processes, real kernels on PoCL."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from fleet.library import JobState, Library
from tests.system.fleet_processes import run_fleet

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A convolution with a rectifier, and a matrix product."""
    rng = np.random.default_rng(0)
    weights = {
        "kernel": rng.standard_normal((8, 3, 3, 3)).astype("float32"),
        "matrix": rng.standard_normal((8 * 8 * 8, 10)).astype("float32"),
    }
    nodes = [
        helper.make_node("Conv", ["x", "kernel"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("Flatten", ["r"], ["f"]),
        helper.make_node("MatMul", ["f", "matrix"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "layers",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 8, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 10])],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    path = tmp_path / "layers.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def test_a_model_is_tuned_on_an_opencl_device(model: Path, tmp_path: Path) -> None:
    """One command: the device is found, its kernels are tuned there, and the model stays right."""
    library = tmp_path / "library.sqlite"

    done = run_fleet(
        *("tune", str(model), "--on", "kind=opencl", "--trials", "8", "--exhaust", "--batch", "4", "--seed", "1"),
        *("--library", str(library), "--json"),
        timeout_sec=250,
    )

    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["trials"] == 8
    assert report["device"].endswith("-opencl")
    assert report["model"]["is_right"], report["model"]["message"]
    assert report["model"]["reference"] == "onnxruntime"
    assert report["model"]["max_abs_error"] < 1e-3
    best = {item["name"]: item for item in report["workloads"]}["fused_conv2d_relu"]
    assert best["uses_schedule"] == (best["best_sec"] < best["untuned_sec"])
    with Library.open(library) as stored:
        assert [job.state for job in stored.jobs()] == [JobState.FINISHED]
        records = stored.records()
        assert any(record.checked for record in records)
        assert {json.loads(record.scope.target_json)["kind"] for record in records} == {"opencl"}
        assert [r.error_message for r in records if r.error is not None and "WRONG" in str(r.error)] == []
