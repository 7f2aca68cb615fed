"""Builds the models of the OpenCL tests: `python -m tests.service.opencl_models FOLDER TARGET_JSON`.

Writes matmul.so (TVM's default schedule), tuned.so (one of MetaSchedule's), undefined.so (a kernel that calls a
function that does not exist), two_layers.onnx, and model.so, which is that model with a schedule for one layer.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

from cross.targets.target import Target, parse_target

SIZE = 48


def build_all(folder: Path, target: Target) -> None:
    """Write the files."""
    from fleet.building.build_candidate import BuildTask, build_candidate
    from fleet.optimizer.tasks.propose import ProposeTask, propose
    from fleet.workloads.programs import matmul
    from fleet.workloads.workload import workload_of

    def store(name: str, workload: Any, trace_json: str | None) -> None:
        task = BuildTask(
            mod_json=workload.mod_json,
            target=target,
            trace_json=trace_json,
            out_dir=str(folder),
        )
        build_candidate(task).artifact.path.rename(folder / name)

    product = matmul(SIZE)
    proposals = propose(ProposeTask(mod_json=product.mod_json, target=target, count=1, seed=2))
    store("matmul.so", product, None)
    store("tuned.so", product, proposals[0].trace_json)
    store("undefined.so", workload_of(_undefined(), name="undefined"), None)
    _build_model(folder, target)


def _undefined() -> Any:
    from tvm import te, tirx

    given = te.placeholder((SIZE,), "float32", "A")
    called = te.compute((SIZE,), lambda i: tirx.call_extern("float32", "fleet_no_such_function", given[i]), "B")
    return te.create_prim_func([given, called])


def _build_model(folder: Path, target: Target) -> None:
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    from fleet.models.model import load_model
    from fleet.optimizer.tasks.propose import ProposeTask, propose
    from fleet.workloads.extract import compile_model, extract

    rng = np.random.default_rng(5)
    weights = {
        "first": rng.standard_normal((4, 3, 3, 3)).astype("float32"),
        "second": rng.standard_normal((4 * 8 * 8, 6)).astype("float32"),
    }
    nodes = [
        helper.make_node("Conv", ["x", "first"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("Flatten", ["r"], ["f"]),
        helper.make_node("MatMul", ["f", "second"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "two_layers",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 8, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 6])],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    path = folder / "two_layers.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    model = load_model(path)
    costliest = extract(model, target)[0]
    proposal = propose(ProposeTask(mod_json=costliest.mod_json, target=target, count=1, seed=1))[0]
    artifact = compile_model(model, target, {costliest.shash: proposal.trace_json}, folder)
    artifact.path.rename(folder / "model.so")


if __name__ == "__main__":
    build_all(Path(sys.argv[1]), parse_target(sys.argv[2]))
