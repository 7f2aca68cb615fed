"""Workloads to collect: parts of real models as tuning meets them, apart from those held out.

Models that `benchmarks.warm_start` tunes (the held-out ones, inception_v1, resnet50) give none.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.cost_data.dataset import Program, program_of
from benchmarks.model_list import find_entries, write_entry
from cross.targets.target import Target
from fleet.models.model import load_model
from fleet.testing.models.graph import GraphBuilder
from fleet.workloads.extract import extract

_SINGLE = "one operator"
_SLOW = ("winograd", "attention")
"""Each candidate takes seconds to make, so these come last."""

PARTS: dict[str, tuple[str, ...]] = {
    "squeezenet": (
        "conv2d 1x1 128->16 55x55",
        "conv2d 3x3 winograd 64->256 13x13",
        "max_pool2d 64 111x111->55x55",
        "conv2d 3x3 s2 3->64 224x224",
        "conv2d 1x1 64->256 13x13",
        "mean 13x13x1000",
        "conv2d 3x3 winograd 16->64 55x55",
        "concatenate 55x55x128",
        "conv2d 1x1 512->64 13x13",
    ),
    "shufflenet": (
        "conv2d 1x1 g4 272->272 14x14",
        "dwconv2d 3x3 136 28x28",
        "fused_matmul_add11",
        "conv2d 1x1 g4 24->112 56x56",
        "avg_pool2d 24 56x56->28x28",
        "dwconv2d 3x3 s2 112 56x56",
        "concatenate+relu 28x28x136",
    ),
    "bert": (
        "matmul 64x256x1024",
        "attention",
        "layer_norm 64x256",
        "matmul 64x256x256",
        "matmul 64x1024x256",
    ),
    "mobilenet_v2": (
        "dwconv2d 3x3 144 56x56",
        "conv2d 1x1 96->576 14x14",
        "conv2d 1x1 144->24 56x56",
        "dwconv2d 3x3 s2 96 112x112",
        "conv2d 1x1 960->160 7x7",
        "dwconv2d 3x3 576 14x14",
        "conv2d 1x1 16->96 112x112",
    ),
    _SINGLE: ("values", "scores", "softmax", "mean", "erf"),
    "convnext": (
        "matmul 784x80x320",
        "dwconv2d 7x7 80 28x28",
        "layer_norm 56x56x40",
        "matmul 49x1280x320",
        "conv2d 2x2 s2 80->160 28x28",
        "conv2d 4x4 s4 3->40 224x224",
        "layer_norm 14x14x160",
    ),
    "llama": (
        "rms_norm 64x256",
        "matmul 64x256x688",
        "attention",
        "reshape+10 64x256",
        "matmul 64x256x128",
        "matmul",
    ),
    "unet": (
        "conv2d 3x3 3->16 128x128",
        "depth_to_space+2 128x128x32",
        "conv2d 3x3 winograd 32->32 64x64",
        "conv2d 1x1 64->128 32x32",
    ),
    "resnet18": (
        "conv2d 3x3 s2 128->256 28x28",
        "conv2d 1x1 s2 64->128 56x56",
        "conv2d 3x3 winograd 128->128 28x28",
        "max_pool2d 64 112x112->56x56",
    ),
    "vit": ("matmul 65x384x384", "attention"),
    "densenet121": (
        "conv2d 3x3 128->32 7x7",
        "multiply+2 56x56x128",
        "avg_pool2d 128 56x56->28x28",
        "conv2d 1x1 128->128 28x28",
    ),
}
"""Operators by model, as `fleet tune` prints them."""


def programs(target: Target) -> list[Program]:
    """Return the workloads, so that the first few are of all kinds. Runs where TVM may be loaded."""
    with tempfile.TemporaryDirectory(prefix="fleet-collect-") as folder:
        by_model = [list(_of_model(model, target, Path(folder))) for model in PARTS]
    turns = max(map(len, by_model))
    mixed = [found[turn] for turn in range(turns) for found in by_model if turn < len(found)]
    return sorted(mixed, key=lambda program: any(word in program.operator for word in _SLOW))


def find_program(model: str, operator: str, target: Target, folder: str) -> Program:
    """Return a workload of a model by its operator. Runs where TVM may be loaded."""
    found = extract(load_model(write_entry(find_entries(model)[0], Path(folder))), target)
    return next(program_of(model, workload, target.json) for workload in found if workload.operator == operator)


def _of_model(model: str, target: Target, folder: Path) -> Iterator[Program]:
    if model == _SINGLE:
        for part in PARTS[model]:
            found = extract(load_model(_write_part(part, folder)), target)
            yield program_of(model, max(found, key=lambda workload: workload.flop), target.json)
        return
    path = write_entry(find_entries(model)[0], folder)
    found = extract(load_model(path), target)
    for operator in PARTS[model]:
        yield from [program_of(model, workload, target.json) for workload in found if workload.operator == operator][:1]


def _write_part(name: str, folder: Path) -> Path:
    """Write a model of one operator; neighbours of another kind would be fused with it."""
    import onnx

    g = GraphBuilder(name)
    match name:
        case "values":
            y = g.node("MatMul", g.input("x", (12, 128, 64)), g.input("w", (12, 64, 128)))
        case "scores":
            y = g.node("MatMul", g.input("x", (8, 196, 196)), g.input("w", (8, 196, 32)))
        case "softmax":
            y = g.node("Softmax", g.input("x", (12, 128, 128)), axis=-1)
        case "mean":
            y = g.node("ReduceMean", g.input("x", (256, 1024)), axes=[1], keepdims=1)
        case _:
            x = g.input("x", (196, 768))
            y = g.node("Mul", x, g.node("Erf", x))
    path = folder / f"{name}.onnx"
    onnx.save_model(g.finish(y), str(path))
    return path
