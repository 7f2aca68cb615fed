"""Pooling windows that are larger than their input."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from cross.targets.target import host_target
from fleet.graph.pipeline import lower
from fleet.models.model import import_model
from fleet.workloads.applying import apply_schedules
from tests.unit.graph_models import random_array, run
from tests.unit.onnx_cases import loaded, model_of, theirs

HOST = host_target()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "attributes"),
    [
        ("AveragePool", {"kernel_shape": [1280, 1280], "strides": [1280, 1280]}),
        ("AveragePool", {"kernel_shape": [1280, 1280], "strides": [1280, 1280], "count_include_pad": 1}),
        ("AveragePool", {"kernel_shape": [12, 12], "strides": [12, 9], "pads": [1, 2, 1, 0], "count_include_pad": 1}),
        ("AveragePool", {"kernel_shape": [12, 12], "strides": [12, 9], "pads": [1, 2, 1, 0], "count_include_pad": 0}),
        ("AveragePool", {"kernel_shape": [12, 3], "strides": [12, 2], "count_include_pad": 1}),
        ("AveragePool", {"kernel_shape": [7, 5], "strides": [1280, 1280]}),
        ("AveragePool", {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1], "count_include_pad": 1}),
        ("AveragePool", {"kernel_shape": [1280, 1280], "auto_pad": "SAME_UPPER"}),
        ("AveragePool", {"kernel_shape": [1280, 1280], "auto_pad": "SAME_LOWER", "strides": [3, 2]}),
        ("AveragePool", {"kernel_shape": [9, 20], "pads": [8, 19, 2, 1], "strides": [2, 3]}),
        ("MaxPool", {"kernel_shape": [1280, 1280], "auto_pad": "SAME_UPPER"}),
        ("MaxPool", {"kernel_shape": [1280, 1280], "strides": [1280, 1280]}),
        ("MaxPool", {"kernel_shape": [5, 2], "strides": [9, 2], "dilations": [2, 1], "pads": [0, 0, 0, 1]}),
    ],
)
def test_a_window_is_cut_to_its_input(kind: str, attributes: dict[str, object], tmp_path: Path) -> None:
    """The padding may count or not. Before, a window of 1280 x 1280 took 8.4 GB for 7 x 5 numbers per channel."""
    x = random_array(1, 3, 7, 5)
    node = helper.make_node(kind, ["x"], ["y"], ceil_mode=1, **attributes)
    model = loaded(model_of([node], {"x": x}, opset=19), tmp_path)

    lowered = lower(import_model(model), HOST)

    assert max(largest_buffers(lowered)) < 100 * x.size
    np.testing.assert_allclose(run(apply_schedules(lowered, HOST, {}).mod, x), theirs(model, [x])[0], rtol=1e-5)


def largest_buffers(mod: object) -> list[int]:
    """Return the number of elements of the largest array in each tensor program."""
    import tvm_ffi
    from tvm.s_tir import SBlock
    from tvm.tirx import PrimFunc

    found: list[int] = [0]

    def visit(block: SBlock) -> None:
        found.extend(math.prod(int(size) for size in buffer.shape) for buffer in block.alloc_buffers)

    for function in mod.functions.values():  # type: ignore[attr-defined]  # TVM has no types
        if isinstance(function, PrimFunc):
            tvm_ffi.structural_walk(function.body, [(SBlock, visit)])
    return found
