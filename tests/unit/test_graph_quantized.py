"""Quantized models: computed in integers, kept in 8 bits, and the same as ONNX Runtime's to a step of the rounding."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import onnx
import pytest
from onnx import helper

from cross.targets.target import Target, host_target, make_target, parse_target
from fleet.graph.pipeline import lower
from fleet.graph.rebuilding import op_name
from fleet.models.model import import_model
from fleet.workloads.applying import apply_schedules
from tests.programs import run_module
from tests.unit.onnx_cases import Array, loaded, model_of, theirs

if TYPE_CHECKING:
    from pathlib import Path

    from tvm.ir import IRModule

pytestmark = pytest.mark.slow

HOST = host_target()
AVX2 = parse_target(json.dumps({"kind": "llvm", "mcpu": "x86-64-v3", "num-cores": 2}))
ARM = parse_target(json.dumps({"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "cortex-a76", "num-cores": 2}))

IMAGE = np.random.default_rng(3).standard_normal((1, 6, 9, 9)).astype("float32")


class Network:
    """Nodes and weights of a quantized network, as quantizers write them."""

    def __init__(self, dtype: str) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: dict[str, Array] = {}
        self._dtype = dtype
        self._rng = np.random.default_rng(1)

    def quantized(self, name: str, scale: float, zero: int) -> str:
        """Round a tensor, and return the numbers that its codes stand for."""
        shift = 0 if self._dtype == "uint8" else -128
        self.weights |= {f"{name}_s": np.array(scale, "float32"), f"{name}_z": np.array(zero + shift, self._dtype)}
        self.nodes.append(helper.make_node("QuantizeLinear", [name, f"{name}_s", f"{name}_z"], [f"{name}_q"]))
        self.nodes.append(helper.make_node("DequantizeLinear", [f"{name}_q", f"{name}_s", f"{name}_z"], [f"{name}_r"]))
        return f"{name}_r"

    def convolution(self, data: str, name: str, shape: tuple[int, ...], scale: float, **attributes: object) -> str:
        """Convolve with weights of a scale for each channel, and add a bias of the sums' step."""
        steps = self._rng.uniform(0.005, 0.02, shape[0]).astype("float32")
        self.weights |= {
            f"{name}_w": self._rng.integers(-127, 128, shape).astype("int8"),
            f"{name}_ws": steps,
            f"{name}_wz": np.zeros(shape[0], "int8"),
            f"{name}_b": self._rng.integers(-500, 500, shape[0]).astype("int32"),
            f"{name}_bs": (np.float32(scale) * steps).astype("float32"),
            f"{name}_bz": np.zeros(shape[0], "int32"),
        }
        for part in ("w", "b"):
            names = [f"{name}_{part}", f"{name}_{part}s", f"{name}_{part}z"]
            self.nodes.append(helper.make_node("DequantizeLinear", names, [f"{name}_{part}r"], axis=0))
        self.nodes.append(helper.make_node("Conv", [data, f"{name}_wr", f"{name}_br"], [name], **attributes))
        return name

    def apply(self, operator: str, inputs: list[str], name: str, **attributes: object) -> str:
        """Add any other node."""
        self.nodes.append(helper.make_node(operator, inputs, [name], **attributes))
        return name


def residual(dtype: str) -> onnx.ModelProto:
    """A convolution with nonzero padding, a pool, a residual, a mean and a classifier."""
    net = Network(dtype)
    image = net.quantized("x", 0.04, 120)
    first = net.apply("Relu", [net.convolution(image, "a", (16, 6, 3, 3), 0.04, pads=[1] * 4)], "a_relu")
    pooled = net.apply("MaxPool", [net.quantized(first, 0.08, 0)], "p", kernel_shape=[3, 3], strides=[2, 2])
    shared = net.quantized(pooled, 0.08, 0)
    second = net.quantized(net.convolution(shared, "b", (16, 16, 3, 3), 0.08, pads=[1] * 4), 0.3, 131)
    added = net.quantized(net.apply("Add", [second, shared], "sum"), 0.25, 100)
    flat = net.apply("Flatten", [net.quantized(net.apply("GlobalAveragePool", [added], "m"), 0.2, 90)], "f")
    net.weights |= {
        "fc": np.random.default_rng(4).integers(-127, 128, (20, 16)).astype("int8"),
        "fc_s": np.array(0.01, "float32"),
        "fc_z": np.array(0, "int8"),
    }
    matrix = net.apply("DequantizeLinear", ["fc", "fc_s", "fc_z"], "fc_r")
    net.quantized(net.apply("Gemm", [flat, matrix], "g", transB=1), 0.3, 128)
    return model_of(net.nodes, {"x": IMAGE}, net.weights, ["g_r", "sum_q"])


def run(mod: IRModule, target: Target) -> list[Array]:
    import tvm
    from tvm import relax

    scheduled = apply_schedules(mod, target, {}).mod
    machine = relax.VirtualMachine(tvm.compile(scheduled, target=make_target(target)), tvm.cpu())
    return [found.numpy() for found in machine["main"](tvm.runtime.tensor(IMAGE))]


@pytest.mark.parametrize(("target", "dtype"), [(HOST, "int8"), (AVX2, "uint8")], ids=["host, int8", "avx2, uint8"])
def test_codes_match_those_of_onnx_runtime(target: Target, dtype: str, tmp_path: Path) -> None:
    """Codes differ by at most one step, and seldom: additions and means are made in float, in another order."""
    model = loaded(residual(dtype), tmp_path)
    expected_real, expected_codes = theirs(model, [IMAGE])

    real, codes = run(lower(import_model(model), target), target)

    steps = np.abs(codes.astype(int) - expected_codes.astype(int))
    assert expected_codes.dtype == codes.dtype
    assert steps.max() <= 1
    assert (steps == 0).mean() > 0.99
    assert len(np.unique(expected_codes)) > 50, "most of the range is used"
    np.testing.assert_allclose(real, expected_real, atol=0.31)


def test_a_process_without_builds_explains_them(tmp_path: Path) -> None:
    """A process that has made no schedule has not registered the processor's instructions yet."""
    (tmp_path / "model.onnx").write_bytes(residual("int8").SerializeToString())

    run_module("fleet", "explain", tmp_path / "model.onnx", "--target", AVX2.json)


@pytest.mark.parametrize("target", [AVX2, ARM], ids=["avx2", "arm"])
def test_only_bytes_go_through_memory(target: Target, tmp_path: Path) -> None:
    """Tensors are bytes until the mean, which is computed in float; on ARM, too, where codes are signed."""
    lowered = lower(import_model(loaded(residual("int8"), tmp_path)), target)

    calls = [b.value for block in lowered["main"].body.blocks for b in block.bindings if op_name(b.value)]
    dtypes = [str(call.ty_args[0].dtype) for call in calls]
    kept = "int8" if target == ARM else "uint8"
    assert dtypes.index("float32") >= 4
    assert {kept} == set(dtypes[: dtypes.index("float32")]) - {"int8"} | {kept}


def test_weights_that_do_not_fit_the_instruction_are_computed_in_float(tmp_path: Path) -> None:
    """Depthwise convolutions and columns that fill no vector are in float; columns that fill a narrow vector
    are not.
    """
    net = Network("uint8")
    image = net.quantized("x", 0.04, 120)
    net.quantized(net.convolution(image, "a", (6, 1, 3, 3), 0.04, group=6), 0.3, 128)
    net.quantized(net.convolution("a_r", "b", (7, 6, 1, 1), 0.3), 0.3, 128)
    net.quantized(net.convolution("a_r", "c", (4, 6, 3, 3), 0.3, pads=[1] * 4), 0.3, 128)
    net.quantized(net.convolution("c_r", "d", (4, 4, 1, 1), 0.3), 0.3, 128)
    model = loaded(model_of(net.nodes, {"x": IMAGE}, net.weights, ["b_q", "a_q", "d_q"]), tmp_path)
    expected = theirs(model, [IMAGE])

    found = run(lower(import_model(model), HOST), HOST)

    for codes, right in zip(found, expected, strict=True):
        assert np.abs(codes.astype(int) - right.astype(int)).max() <= 1
