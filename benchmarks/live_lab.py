"""Parts of a lab in which optimizers use recorded candidates: see `benchmarks.live_tasks`."""

from __future__ import annotations

from collections.abc import Container, Mapping
from pathlib import Path

from onnx import TensorProto, helper, save_model

from benchmarks.cost_data.dataset import load
from benchmarks.cost_model import DATA, samples_of, usable
from fleet.cost_model.feature_codec import FEATURE_VERSION, TARGET_KINDS
from fleet.cost_model.training import train_snapshot
from fleet.library import Library, NewSnapshot


def snapshot_without(left_out: Container[int]) -> bytes:
    """Train the shared model on the recorded workloads, except those at some places of the data set."""
    groups = [usable(group) for group in load(DATA).groups]
    return train_snapshot(
        sample for place, group in enumerate(groups) if place not in left_out for sample in samples_of(group)
    ).content


def write_model(path: Path, weights: Mapping[str, float]) -> None:
    """Write a model that calls a matrix product for each key, as often as its weight says."""
    inputs, outputs, nodes = [], [], []
    for key, weight in weights.items():
        rows, inner, columns = map(int, key.split("x"))
        for number in range(int(weight)):
            name = f"{key}_{number}"
            inputs += [
                helper.make_tensor_value_info(f"a{name}", TensorProto.FLOAT, [rows, inner]),
                helper.make_tensor_value_info(f"b{name}", TensorProto.FLOAT, [inner, columns]),
            ]
            outputs.append(helper.make_tensor_value_info(f"c{name}", TensorProto.FLOAT, [rows, columns]))
            nodes.append(helper.make_node("MatMul", [f"a{name}", f"b{name}"], [f"c{name}"]))
    proto = helper.make_model(
        helper.make_graph(nodes, "products", inputs, outputs), opset_imports=[helper.make_opsetid("", 17)]
    )
    proto.ir_version = 8
    save_model(proto, str(path))


def publish(library: Library, content: bytes) -> None:
    """Put a snapshot into use, and let no optimizer train another one."""
    term = library.memory.stand("benchmark", lease_sec=60)
    if term is None:
        raise RuntimeError("the library has another trainer")
    new = NewSnapshot(
        content=content,
        feature_version=FEATURE_VERSION,
        record_count=1_000_000,  # so that no optimizer trains meanwhile
        workloads={},
        last_record_id=0,
        metrics={TARGET_KINDS: ["llvm"]},
    )
    term.publish(new)
    term.close()
