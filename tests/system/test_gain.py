"""Tuning makes programs faster, by more than any noise."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.system.fleet_processes import run_fleet

pytestmark = [pytest.mark.slow, pytest.mark.measures, pytest.mark.timeout(200)]


def test_a_convolution_is_faster_scheduled_than_unscheduled(tmp_path: Path) -> None:
    """The static schedule is several times faster, even if only it has half a core, and trials make nothing slower."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 128, 56, 56])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 16, 56, 56])
    weights = np.random.default_rng(0).standard_normal((16, 128, 1, 1)).astype("float32")
    node = helper.make_node("Conv", ["x", "w"], ["y"])
    graph = helper.make_graph([node], "convolution", [x], [y], [numpy_helper.from_array(weights, "w")])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path = tmp_path / "convolution.onnx"
    onnx.save(proto, path)

    done = run_fleet("tune", str(path), "--trials", "8", "--library", str(tmp_path / "library.sqlite"), "--json")

    report = json.loads(done.stdout)
    static_sec, untuned_sec = (
        sum(item[name] for item in report["workloads"]) for name in ("static_sec", "untuned_sec")
    )
    assert 1.2 * static_sec < untuned_sec
    assert 1.2 * report["model"]["tuned_ms"] < report["model"]["untuned_ms"]
    assert not report["model"]["is_slower"]
