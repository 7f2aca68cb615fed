"""Winograd convolutions for emulated boards: as the graph chooses them, with their static schedules, and with the right
answers by the sum as it is written.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from cross.compile.library import build
from fleet.domain.measuring import TensorSpec
from fleet.graph.marking import ATTRIBUTE as CONSTANTS
from fleet.graph.winograd import best_outputs, winograd
from fleet.graph.winograd_algorithm import TAPS, Filtering
from fleet.spaces.packing import pack_all, pack_specs, packings_of
from fleet.spaces.space import finished, static_schedule

if TYPE_CHECKING:
    from cross.targets.target import Target

SIZES = {2: (10, 32), 4: (12, 16)}
"""By m of the F(m, 3) that is chosen for it: side of the result, and channels of data and result. The smallest."""


@dataclass(frozen=True)
class Answers:
    """Inputs of a built convolution, and its expected result."""

    inputs: list[np.ndarray]
    expected: np.ndarray
    terms: int
    """Of each sum."""


def build_winograd(outputs: int, target: Target, folder: Path) -> Path:
    """Build the convolution that F(outputs, 3) is chosen for, with its answers beside it; return its library."""
    import tvm
    from tvm import te

    side, channels = SIZES[outputs]
    chosen = best_outputs(1, side, side, channels=channels, filters=channels)
    if chosen != outputs:
        raise ValueError(f"F({chosen}, 3) is chosen here, not F({outputs}, 3)")
    filtering = Filtering(outputs)
    shape = (1, side, side, channels)
    data = te.placeholder(shape, name="data")
    kernel = te.placeholder((filtering.size, filtering.size, channels, channels), name="kernel")
    result = winograd(data, kernel, filtering, (side, side), (1, 1))
    mod = tvm.IRModule({"main": te.create_prim_func([data, kernel, result]).with_attr(CONSTANTS, [1])})
    schedule = static_schedule(mod, target)
    if schedule is None:
        raise ValueError(f"no schedule for {target}")
    packings = packings_of(schedule, mod)
    specs = [TensorSpec(tuple(map(int, each.shape)), "float32") for each in (data, kernel)]
    specs = [*pack_specs(specs, packings), TensorSpec(shape, "float32", True)]
    path = build(finished(schedule.mod, target), target, folder, args=tuple(specs)).path
    rng = np.random.default_rng(outputs)
    image = rng.standard_normal(shape, np.float32)
    weights = rng.standard_normal((TAPS, TAPS, channels, channels), np.float32)
    packed = pack_all([image, filtering.weights(weights)], packings)
    np.savez(
        _beside(path), *[each for each in packed if isinstance(each, np.ndarray)], expected=_direct(image, weights)
    )
    return path


def answers(path: Path) -> Answers:
    """Return the inputs and results of a built convolution."""
    with np.load(_beside(path)) as stored:
        inputs = [stored[f"arr_{at}"] for at in range(2)]
        return Answers(inputs, stored["expected"], TAPS**2 * inputs[0].shape[-1])


def _direct(image: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return the convolution by the sum as it is written, padded by 1."""
    padded = np.pad(image, ((0, 0), (1, 1), (1, 1), (0, 0))).astype(np.float64)
    height, width = image.shape[1:3]
    parts = [padded[:, y : y + height, x : x + width] @ weights[y, x] for y in range(TAPS) for x in range(TAPS)]
    return np.sum(parts, axis=0).astype(np.float32)


def _beside(path: Path) -> Path:
    return path.with_suffix(".npz")
