"""Resize and Upsample beside ONNX Runtime, where TVM's own way is another one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from fleet.models.onnx_rewrites.prepare import prepared
from tests.unit.onnx_cases import Array, assert_same, loaded, model_of, ours, theirs

pytestmark = pytest.mark.slow


def noise(*shape: int) -> Array:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype("float32")


def resize(scales: list[float] | None, sizes: list[int] | None, *shape: int, opset: int = 18, **how: object) -> tuple:
    """Return a model that resizes, and its input."""
    weights: dict[str, Array] = {}
    if scales is not None:
        weights["scales"] = np.array(scales, "float32")
    if sizes is not None:
        weights["sizes"] = np.array(sizes, "int64")
    names = ["x", "", "scales" if scales else "", *(["sizes"] if sizes else [])]
    inputs = {"x": noise(*shape)}
    return model_of([helper.make_node("Resize", names, ["y"], **how)], inputs, weights, opset=opset), inputs


@pytest.mark.parametrize("transformation", ["half_pixel", "pytorch_half_pixel", "asymmetric", "align_corners"])
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("scales", [[1, 1, 1.5, 1.5], [1, 1, 0.6, 0.7], [1, 1, 2, 1.3]])
def test_scales_that_make_no_whole_size(scales: list[float], mode: str, transformation: str, tmp_path: Path) -> None:
    """Five rows times 1.5 are 7 rows at distances of 1 / 1.5, not of 5 / 7: before, all numbers were wrong."""
    proto, inputs = resize(scales, None, 1, 2, 5, 6, mode=mode, coordinate_transformation_mode=transformation)

    assert_same(proto, inputs, tmp_path)


@pytest.mark.parametrize("rounding", ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"])
def test_the_nearest_of_all_roundings(rounding: str, tmp_path: Path) -> None:
    """All roundings work for scales above and below 1."""
    proto, inputs = resize([1, 1, 2.5, 0.7], None, 1, 2, 5, 6, mode="nearest", nearest_mode=rounding)

    assert_same(proto, inputs, tmp_path)


@pytest.mark.parametrize(("size", "result"), [(2, 7), (2, 3), (4, 6), (6, 4), (3, 9), (6, 2)])
def test_the_nearest_where_two_are_as_near(size: int, result: int, tmp_path: Path) -> None:
    """The earlier of two equally near elements is taken unless the model says otherwise."""
    proto, inputs = resize(None, [1, 1, result, size], 1, 1, size, size, mode="nearest")

    assert_same(proto, inputs, tmp_path)


@pytest.mark.parametrize(
    ("shape", "scales", "sizes", "how"),
    [
        ((1, 2, 1, 6), None, [1, 2, 1, 12], {"mode": "linear", "coordinate_transformation_mode": "align_corners"}),
        ((1, 2, 5, 6), None, [1, 2, 1, 1], {"mode": "linear", "coordinate_transformation_mode": "align_corners"}),
        ((1, 2, 5, 6), None, [8, 9], {"mode": "linear", "axes": [2, 3]}),
        ((1, 2, 5, 6), [2.0], None, {"mode": "linear", "axes": [-1]}),
        ((5, 6), None, [10, 12], {"mode": "linear"}),
        ((1, 5, 6, 2), None, [1, 10, 12, 2], {"mode": "linear"}),
        ((1, 2, 5, 6), None, [1, 4, 5, 6], {"mode": "nearest"}),
        ((1, 2, 5, 6), None, [1, 2, 3, 4], {"mode": "linear", "antialias": 1}),
        ((1, 2, 9, 8), None, [1, 2, 4, 3], {"mode": "cubic", "antialias": 1}),
        ((1, 2, 5, 6), [1, 1, 1.5, 1.5], None, {"mode": "cubic", "exclude_outside": 1, "cubic_coeff_a": -0.5}),
        ((1, 2, 5, 6), [1, 1, 1.5, 1.5], None, {"mode": "linear", "extrapolation_value": 0.0}),
        ((1, 2, 5, 6), [1, 1, 0.6, 0.7], None, {"mode": "linear", "keep_aspect_ratio_policy": "stretch"}),
        ((1, 2, 5, 6), None, [7, 12], {"mode": "linear", "axes": [2, 3], "keep_aspect_ratio_policy": "not_larger"}),
        ((1, 2, 5, 6), None, [7, 12], {"mode": "cubic", "axes": [2, 3], "keep_aspect_ratio_policy": "not_smaller"}),
    ],
)
def test_unsupported_resizes_become_matrices(
    shape: tuple[int, ...], scales: list[float], sizes: list[int], how: dict[str, object], tmp_path: Path
) -> None:
    """Cases with a single row, other axes than height and width, antialiasing, one scale for all, or explicit
    defaults.
    """
    proto, inputs = resize(scales, sizes, *shape, **how)

    assert_same(proto, inputs, tmp_path)


@pytest.mark.parametrize(
    ("op_type", "opset", "scale"),
    [("Upsample", 9, 2), ("Upsample", 9, 1.5), ("Resize", 10, 2), ("Resize", 10, 1.5), ("Resize", 10, 0.6)],
)
@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_older_versions(op_type: str, opset: int, mode: str, scale: float, tmp_path: Path) -> None:
    """YOLOv3's files use these versions. With a smaller scale, the next element is taken, not the one before."""
    inputs = {"x": noise(1, 2, 5, 6)}
    node = helper.make_node(op_type, ["x", "s"], ["y"], mode=mode)

    proto = model_of([node], inputs, {"s": np.array([1, 1, scale, scale], "float32")}, opset=opset)

    assert_same(proto, inputs, tmp_path)


@pytest.mark.parametrize("scales", [[1, 1, 1.5, 2], [1, 1, 0.6, 1.3]])
def test_whole_numbers(scales: list[float], tmp_path: Path) -> None:
    """TVM's own results were arbitrary; these differ from the reference only in rounding between two numbers."""
    pixels = np.random.default_rng(0).integers(0, 255, (1, 2, 5, 6)).astype("uint8")
    node = helper.make_node("Resize", ["x", "", "scales"], ["y"], mode="linear")
    model = loaded(model_of([node], {"x": pixels}, {"scales": np.array(scales, "float32")}), tmp_path)

    [expected], [actual] = theirs(model, [pixels]), ours(model, [pixels])

    assert (expected.shape, expected.dtype) == (actual.shape, actual.dtype)
    assert np.abs(expected.astype(int) - actual).max() <= 1


def test_resizes_supported_by_tvm_are_kept() -> None:
    """Its programs are faster than a matrix."""
    for scales, sizes in (([1, 1, 2, 2], None), (None, [1, 2, 9, 9])):
        proto, _ = resize(scales, sizes, 1, 2, 5, 6, mode="linear")

        assert ["Resize"] == operators(prepared(proto))


@pytest.mark.parametrize(
    ("how", "is_matrix"), [({"mode": "linear"}, False), ({"mode": "linear", "antialias": 1}, True)]
)
def test_results_that_take_few_elements_need_no_matrix(how: dict[str, object], *, is_matrix: bool) -> None:
    """It has a zero for each of the others: a third of 1080 rows took 28 times as long."""
    proto, _ = resize([1, 1, 0.3, 0.3], None, 1, 2, 33, 33, **how)

    assert is_matrix == ("MatMul" in operators(prepared(proto)))


def operators(proto: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in proto.graph.node]
