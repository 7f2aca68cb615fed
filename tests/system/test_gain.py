"""Tuning makes programs faster, by more than any noise."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from tests.system.fleet_processes import run_fleet

pytestmark = [pytest.mark.slow, pytest.mark.measures, pytest.mark.timeout(200)]


def test_a_product_is_faster_scheduled_than_unscheduled(tmp_path: Path) -> None:
    """The static schedule is faster, about twice on an idle machine, and a few trials make nothing slower."""
    x, y, z = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [256, 256]) for name in "xyz")
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "y"], ["z"])], "product", [x, y], [z])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path = tmp_path / "product.onnx"
    onnx.save(proto, path)

    done = run_fleet("tune", str(path), "--trials", "8", "--library", str(tmp_path / "library.sqlite"), "--json")

    report = json.loads(done.stdout)
    (item,) = report["workloads"]
    assert 1.2 * item["static_sec"] < item["untuned_sec"]
    assert 1.2 * report["model"]["tuned_ms"] < report["model"]["untuned_ms"]
    assert not report["model"]["is_slower"]
