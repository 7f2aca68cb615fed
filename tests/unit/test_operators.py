"""Readable names, from names, shapes and blocks as TVM gives them."""

from __future__ import annotations

import json

import pytest

from fleet.domain.measuring import TensorSpec
from fleet.domain.operators import describe_workload


def specs(*shapes: tuple[int, ...], dtype: str = "float32") -> tuple[TensorSpec, ...]:
    """Return arguments of which the last is the output."""
    return tuple(TensorSpec(shape, dtype, index == len(shapes)) for index, shape in enumerate(shapes, 1))


def named_after(*blocks: str) -> str:
    """A program in TVM's form of JSON, reduced to the names of its blocks."""
    nodes: list[dict[str, object]] = []
    for block in blocks:
        nodes += [{"type": "ffi.String", "data": block}]
        nodes += [{"type": "s_tir.SBlock", "data": {"name_hint": len(nodes) - 1}}]
    return json.dumps({"nodes": nodes})


@pytest.mark.parametrize(
    ("name", "shapes", "expected"),
    [
        (
            "fused_conv2d17_add9_relu9",
            [(1, 512, 13, 13), (1000, 512, 1, 1), (1, 1000, 1, 1), (1, 1000, 13, 13)],
            "conv2d 1x1 512->1000 13x13",
        ),
        ("conv2d12", [(1, 256, 28, 28), (256, 256, 3, 3), (1, 256, 14, 14)], "conv2d 3x3 s2 256->256 28x28"),
        ("conv2d", [(1, 3, 227, 227), (64, 3, 3, 3), (1, 64, 113, 113)], "conv2d 3x3 s2 3->64 227x227"),
        ("conv2d2", [(1, 96, 112, 112), (96, 1, 3, 3), (1, 96, 56, 56)], "dwconv2d 3x3 s2 96 112x112"),
        ("conv2d8", [(1, 272, 14, 14), (272, 68, 1, 1), (1, 272, 14, 14)], "conv2d 1x1 g4 272->272 14x14"),
        ("conv2d", [(1, 56, 56, 64), (3, 3, 64, 128), (1, 56, 56, 128)], "conv2d 3x3 64->128 56x56"),
        (
            "fused_cast3_multiply2_conv2d1_add2_tir_round2_tir_clip2_cast5",
            [(1, 56, 56, 64), (1, 1, 1, 1), (1, 56, 56, 64), (3, 3, 64, 64), (1, 1, 1, 64), (1, 56, 56, 64)],
            "conv2d 3x3 64->64 56x56",
        ),
        (
            "fused_winograd_conv2d3_add1_relu",
            [(1, 56, 56, 64), (6, 6, 64, 128), (1, 1, 1, 128), (1, 56, 56, 128)],
            "conv2d 3x3 winograd 64->128 56x56",
        ),
        ("lstm", [(100, 8, 1, 4, 64), (1, 2, 64, 4, 32), (100, 1, 8, 64)], "lstm 100x8x64"),
        ("gru1", [(100, 8, 2, 3, 64), (2, 2, 60, 3, 32), (100, 2, 8, 60)], "gru bidirectional 100x8x60"),
        ("conv1d3", [(1, 8, 100), (16, 8, 5), (1, 16, 96)], "conv1d 5 8->16 100"),
        ("conv2d_transpose1", [(1, 64, 7, 7), (64, 32, 4, 4), (1, 32, 14, 14)], "conv2d_transpose 4x4 s2 64->32 7x7"),
        ("fused_matmul_add1", [(64, 256), (256, 1000), (1000,), (64, 1000)], "matmul 64x256x1000"),
        ("fused_dense3_relu", [(1, 512), (10, 512), (1, 10)], "matmul 1x512x10"),
        ("matmul4", [(1, 12, 128, 64), (1, 12, 64, 128), (1, 12, 128, 128)], "batch_matmul 12 128x64x128"),
        ("matmul_32", [(32, 32), (32, 32), (32, 32)], "matmul 32x32x32"),
        ("max_pool2d1", [(1, 64, 111, 111), (1, 64, 55, 55)], "max_pool2d 64 111x111->55x55"),
        ("max_pool2d2", [(1, 111, 111, 64), (1, 55, 55, 64)], "max_pool2d 64 111x111->55x55"),
        ("max_pool2d3", [(1, 27, 27, 192), (1, 27, 27, 192)], "max_pool2d 192 27x27->27x27"),
        ("max_pool2d4", [(1, 192, 27, 27), (1, 192, 27, 27)], "max_pool2d 192 27x27->27x27"),
        ("softmax", [(1, 1000), (1, 1000)], "softmax 1x1000"),
        ("relu3", [(1, 272, 14, 14), (1, 272, 14, 14)], "relu 272x14x14"),
        (
            "fused_batch_norm5_relu3_reshape5_transpose2_reshape6",
            [(1, 272, 14, 14), (272,), (272,), (272,), (272,), (1, 272, 14, 14)],
            "batch_norm+4 272x14x14",
        ),
    ],
)
def test_a_name_consists_of_operator_and_shapes(name: str, shapes: list[tuple[int, ...]], expected: str) -> None:
    """Kernel, stride, groups, channels and sizes are read off the arguments."""
    assert describe_workload(name, specs(*shapes)) == expected


def test_another_type_than_float_is_reported() -> None:
    """Two operators that differ in their type only have two names."""
    shapes = [(64, 64), (64, 64), (64, 64)]
    assert describe_workload("matmul", specs(*shapes, dtype="int8")) == "matmul 64x64x64 int8"


@pytest.mark.parametrize("name", ["my_kernel", "fused_conv2d_secret", "main-17", "conv2dish", ""])
def test_unknown_operators_keep_their_names(name: str) -> None:
    """A guess would be worse than the name that TVM gave."""
    assert describe_workload(name, specs((1, 8, 8, 8), (8, 8, 3, 3), (1, 8, 8, 8))) == name


@pytest.mark.parametrize("shapes", [[], [(8,), (8,)], [(1, 3, 8, 8), (5, 7, 3, 3), (1, 4, 8, 8)]])
def test_shapes_that_fit_no_convolution_keep_the_name(shapes: list[tuple[int, ...]]) -> None:
    """Workloads from an import without arguments keep their names, too."""
    assert describe_workload("conv2d7", specs(*shapes)) == "conv2d7"


@pytest.mark.parametrize(
    ("blocks", "expected"),
    [
        (["root", "pad_temp", "conv2d_nchw", "T_relu"], "conv2d 3x3 8->16 8x8"),
        (["root", "C"], "main-17"),
    ],
)
def test_a_program_without_a_name_is_known_by_its_blocks(blocks: list[str], expected: str) -> None:
    """MetaSchedule calls every program "main"; its blocks still name the operators."""
    arguments = specs((1, 8, 8, 8), (16, 8, 3, 3), (1, 16, 8, 8))
    assert describe_workload("main-17", arguments, named_after(*blocks)) == expected


@pytest.mark.parametrize("text", ["", "{}", "no JSON", "[]", '{"nodes": [7, {"type": "SBlock"}]}'])
def test_an_unreadable_program_keeps_its_name(text: str) -> None:
    """A library may hold programs of any TVM, and of none."""
    assert describe_workload("main-17", specs((4,), (4,)), text) == "main-17"
