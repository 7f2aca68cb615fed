"""Names of inputs that are no identifiers: they end up in sources that TVM writes."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from cross.targets.target import host_target, parse_target
from fleet.building.build_candidate import BuildTask, build_candidate
from fleet.models.model import load_model
from fleet.models.onnx_rewrites.plain_names import use_plain_names
from fleet.workloads.extract import extract


def product_of(left: str, right: str) -> onnx.ModelProto:
    """A matrix product with inputs of these names."""
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [16, 16]) for name in (left, right)]
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, [16, 16])
    graph = helper.make_graph([helper.make_node("MatMul", [left, right], ["y"])], "g", inputs, [output])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_names_become_identifiers_and_stay_apart() -> None:
    """No two inputs get one name, and the nodes read the same inputs as before."""
    proto = product_of("gpu_0/data:0", "gpu_0_data_0")

    use_plain_names(proto)

    assert ["gpu_0_data_0_1", "gpu_0_data_0"] == [value.name for value in proto.graph.input]
    assert ["gpu_0_data_0_1", "gpu_0_data_0"] == list(proto.graph.node[0].input)
    onnx.checker.check_model(proto)


def test_plain_names_stay() -> None:
    """A model without such names is not touched."""
    proto = product_of("a", "_b2")
    before = proto.SerializeToString()

    use_plain_names(proto)

    assert before == proto.SerializeToString()


def test_bodies_of_branches_are_renamed_too() -> None:
    """Branches read the inputs of the graph around them."""
    result = helper.make_tensor_value_info("r", TensorProto.FLOAT, [2])
    branches = {
        name: helper.make_graph([helper.make_node(op, ["1/x"], ["r"])], name, [], [result])
        for name, op in (("then_branch", "Relu"), ("else_branch", "Neg"))
    }
    inputs = [
        helper.make_tensor_value_info("c", TensorProto.BOOL, []),
        helper.make_tensor_value_info("1/x", TensorProto.FLOAT, [2]),
    ]
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])
    graph = helper.make_graph([helper.make_node("If", ["c"], ["y"], **branches)], "g", inputs, [output])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)

    use_plain_names(proto)

    assert [["input_1_x"]] * 2 == [list(a.g.node[0].input) for a in proto.graph.node[0].attribute]
    onnx.checker.check_model(proto)


@pytest.mark.slow
def test_sources_of_kernels_are_valid(tmp_path: Path) -> None:
    """An input called "gpu_0/x" once made OpenCL kernels divide by x. Hashes of workloads do not depend on names."""
    target = parse_target(json.dumps({"kind": "opencl", "host": dict(host_target().options)}))
    found = []
    for name in ("gpu_0/x", "a"):
        path = tmp_path / "model.onnx"
        onnx.save(product_of(name, "b"), path)
        found.append(extract(load_model(path), target)[0])

    built = build_candidate(
        BuildTask(mod_json=found[0].mod_json, target=target, trace_json=None, out_dir=str(tmp_path))
    )

    assert b"gpu_0_x_ptr" in built.artifact.path.read_bytes()
    assert found[0].shash == found[1].shash
