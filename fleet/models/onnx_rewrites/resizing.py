"""Resize and Upsample where TVM differs from ONNX, as an explicit matrix of interpolation weights per axis.

TVM takes the ratio of the sizes for the scale, which it is not where a scale of 1.5 makes 7 of 5; it divides by zero
where corners are aligned and one is left; it resizes behind batch and channels only, knows no antialiasing, and reads
neither Upsample nor Resize before version 11. The weights of an axis' elements describe it completely.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto, helper

from fleet.models.onnx_rewrites.graph import Replacement, Rule, attributes_of, present

_Numbers: TypeAlias = "NDArray[Any]"

_RESIZE_11 = 11
"""From this version on Resize says how coordinates are transformed; before, it was Upsample by another name."""

_SPATIAL = 2
"""The first axis behind batch and channels."""

_MOST_SPATIAL = 3

_POLICIES: dict[str, Callable[[Sequence[np.float32]], np.float32]] = {"not_larger": min, "not_smaller": max}
"""The axis with the scale for all axes."""

_FEW = 4
"""Elements that a result takes where nothing is averaged: two on a line, four on a curve. A matrix took up to 28 times
as long."""

_FLOAT = 1
"""TensorProto.FLOAT."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Axis:
    """Resizing of one axis."""

    size: int
    result: int
    scale: np.float32

    def positions(self, transformation: str) -> _Numbers | None:
        """Return the source coordinate of each result, in the precision of ONNX Runtime; None for unsupported modes."""
        at, one = np.arange(self.result, dtype=np.float32), np.float32(1)
        half = one / 2
        if transformation == "asymmetric":
            return at / self.scale
        if transformation == "align_corners":
            return at * np.float32(self.size - 1) / np.float32(max(1, self.result - 1))
        if transformation == "pytorch_half_pixel" and self.result == 1:
            return at * 0
        if transformation in ("half_pixel", "pytorch_half_pixel"):
            return (at + half) / self.scale - half
        return None


def resize(node: NodeProto, write: Replacement) -> bool:
    """Replace a Resize or Upsample that TVM does not compute as ONNX specifies."""
    named = attributes_of(node)
    axes = _axes(node, write, named)
    dtype = write.values.dtype(node.input[0])
    is_old = node.op_type == "Upsample" or write.values.opset < _RESIZE_11
    transformation = "asymmetric" if is_old else _text(named, "coordinate_transformation_mode", "half_pixel")
    rounding = "" if is_old else _text(named, "nearest_mode", "round_prefer_floor")
    mode = _text(named, "mode", "nearest")
    if axes is None or dtype is None or (mode != "nearest" and dtype.kind not in "fiu"):
        return False
    if not is_old and _is_known(axes, named, transformation, mode):
        return False
    found = [axis.positions(transformation) for axis in axes]
    if any(positions is None for positions in found):
        return False
    is_rounded = mode != "nearest" and dtype.kind != "f"
    number = np.dtype("float32") if is_rounded else dtype
    value = write.op("Cast", node.input[0], to=_FLOAT) if is_rounded else node.input[0]
    for place, (axis, positions) in enumerate(zip(axes, found, strict=True)):
        if positions is None or (axis.size == axis.result and axis.scale == 1):
            continue
        if mode == "nearest":
            by_scale = "ceil" if axis.scale < 1 else "floor"  # the behaviour before nearest_mode existed
            indices = np.clip(_rounded(positions, rounding or by_scale), 0, axis.size - 1).astype("int64")
            value = write.op("Gather", value, write.constant(indices), axis=place)
        else:
            value = _times(write, value, _weights(positions, axis, mode, named).astype(number), place, len(axes))
    if is_rounded:
        write.op("Cast", value, to=helper.np_dtype_to_tensor_dtype(dtype), output=node.output[0])
    else:
        write.op("Identity", value, output=node.output[0])
    return True


def _axes(node: NodeProto, write: Replacement, named: dict[str, object]) -> list[_Axis] | None:
    """Return the resizing of each axis; None if it is unknown when the model is read."""
    shape = write.values.shape(node.input[0])
    place_of_scales = 1 if node.op_type == "Upsample" or write.values.opset < _RESIZE_11 else 2
    sizes = write.values.constants.get(present(node.input, 3))
    scales = write.values.constants.get(present(node.input, place_of_scales))
    if scales is None and "scales" in named:
        scales = np.array(named["scales"], np.float32)
    if shape is None:
        return None
    given = named.get("axes")
    places = [int(axis) % len(shape) for axis in given] if isinstance(given, Sequence) else [*range(len(shape))]
    axes = [_Axis(size=size, result=size, scale=np.float32(1)) for size in shape]
    if sizes is not None and len(sizes) == len(places):
        ratios = [np.float32(result) / np.float32(shape[place]) for place, result in zip(places, sizes, strict=True)]
        policy = _POLICIES.get(_text(named, "keep_aspect_ratio_policy", "stretch"))
        for place, result, ratio in zip(places, sizes.tolist(), ratios, strict=True):
            scale = ratio if policy is None else policy(ratios)
            kept = result if policy is None else math.floor(scale * np.float32(shape[place]) + np.float32(0.5))
            axes[place] = _Axis(size=shape[place], result=kept, scale=scale)
        return axes
    if scales is None or len(scales) != len(places):
        return None
    for place, scale in zip(places, scales, strict=True):
        result = math.floor(np.float32(shape[place]) * np.float32(scale))
        axes[place] = _Axis(size=shape[place], result=result, scale=np.float32(scale))
    return axes


def _is_known(axes: Sequence[_Axis], named: dict[str, object], transformation: str, mode: str) -> bool:
    """Tell whether TVM computes it correctly.

    It multiplies by the scale's inverse, and so takes another neighbour where both are as near: only where neither size
    is a multiple of the other.
    """
    if mode == "nearest" and any(axis.size % axis.result and axis.result % axis.size for axis in axes):
        return False
    if not _SPATIAL < len(axes) <= _SPATIAL + _MOST_SPATIAL or "axes" in named or named.get("antialias"):
        return False
    if _text(named, "keep_aspect_ratio_policy", "stretch") in _POLICIES:
        return False
    if any(axis.size != axis.result for axis in axes[:_SPATIAL]):
        return False
    if transformation == "align_corners":
        return all(axis.result > 1 for axis in axes[_SPATIAL:])
    return all(axis.scale == np.float32(axis.result) / np.float32(axis.size) for axis in axes)


def _rounded(positions: _Numbers, rounding: str) -> _Numbers:
    half = np.float32(0.5)
    if rounding == "round_prefer_floor":
        return np.ceil(positions - half)
    if rounding == "round_prefer_ceil":
        return np.floor(positions + half)
    return np.ceil(positions) if rounding == "ceil" else np.floor(positions)


def _weights(positions: _Numbers, axis: _Axis, mode: str, named: dict[str, object]) -> _Numbers:
    """Return the interpolation weight of each element in each result, [size, result]."""
    is_cubic, is_wide = mode == "cubic", bool(named.get("antialias")) and axis.scale < 1
    stretch = float(axis.scale) if is_wide else 1.0
    reach = math.ceil((2 if is_cubic else 1) / stretch)
    places = positions.astype(np.float64)
    weights = np.zeros((axis.size, axis.result))
    taps = np.floor(places)[None, :] + np.arange(-reach, reach + 2)[:, None]
    a = named.get("cubic_coeff_a", -0.75)
    shares = _share((taps - places) * stretch, float(a) if is_cubic and isinstance(a, float | int) else None)
    is_inside = (taps >= 0) & (taps < axis.size)
    if named.get("exclude_outside") and (is_wide or is_cubic):
        shares = np.where(is_inside, shares, 0)
    shares /= shares.sum(axis=0)
    np.add.at(weights, (np.clip(taps, 0, axis.size - 1).astype(int), np.arange(axis.result)[None, :]), shares)
    return weights


def _share(apart: _Numbers, cubic: float | None) -> _Numbers:
    """Return the weight at a distance: linear, or by Keys' cubic curve."""
    x = np.abs(apart)
    if cubic is None:
        return np.asarray(np.maximum(0, 1 - x))
    near = ((cubic + 2) * x - (cubic + 3)) * x * x + 1
    far = ((cubic * x - 5 * cubic) * x + 8 * cubic) * x - 4 * cubic
    return np.where(x <= 1, near, np.where(x < 2, far, 0))


def _times(write: Replacement, value: str, weights: _Numbers, place: int, rank: int) -> str:
    """Multiply along one axis: by gathering if each result needs few elements, else by a matrix."""
    taken = int(np.count_nonzero(weights, axis=0).max())
    if taken <= _FEW:
        return _sum_of(write, value, weights, place, rank, taken)
    if place == rank - 1:
        return write.op("MatMul", value, write.constant(weights))
    if place == rank - 2:
        return write.op("MatMul", write.constant(np.ascontiguousarray(weights.T)), value)
    swapped = [*range(rank)]
    swapped[place], swapped[-1] = rank - 1, place
    turned = write.op("MatMul", write.op("Transpose", value, perm=swapped), write.constant(weights))
    return write.op("Transpose", turned, perm=swapped)


def _sum_of(write: Replacement, value: str, weights: _Numbers, place: int, rank: int, count: int) -> str:
    """Sum this many weighted elements for each result, those of largest weight."""
    results = np.arange(weights.shape[1])
    chosen = np.argsort(-np.abs(weights), axis=0, kind="stable")[:count]
    terms = []
    for indices in np.sort(chosen, axis=0):
        shares = weights[indices, results].reshape(-1, *[1] * (rank - 1 - place))
        element = write.op("Gather", value, write.constant(indices.astype("int64")), axis=place)
        terms.append(write.op("Mul", element, write.constant(shares)))
    return functools.reduce(lambda left, right: write.op("Add", left, right), terms)


def _text(named: dict[str, object], name: str, default: str) -> str:
    value = named.get(name, default)
    return value.decode() if isinstance(value, bytes) else str(value)


RULES: dict[str, Rule] = {"Resize": resize, "Upsample": resize}
