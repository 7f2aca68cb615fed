"""Random inputs for models and programs: indices within their tables, and numbers of a suitable scale."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fleet.checking.numerics import LARGEST_INDICES, Array, InputStyle, is_index, make_inputs
from fleet.domain.measuring import TensorSpec
from fleet.domain.workload import Workload
from fleet.models.model import Model
from fleet.models.reference import is_refused


def largest_index(model: Model) -> int:
    """Return the largest index for `make_inputs` with a model.

    Runs the engine of the model's format, in the build pool. Where that refuses all indices, it is not for them.
    """
    if not any(map(is_index, model.inputs)):
        return LARGEST_INDICES[0]
    taken = (largest for largest in LARGEST_INDICES if not is_refused(model, _all_at(model, largest)))
    return next(taken, LARGEST_INDICES[0])


def largest_index_of(workload: Workload) -> int:
    """Return the largest index for `make_inputs` with a single program."""
    limit = workload.largest_index
    return LARGEST_INDICES[0] if limit is None else min(LARGEST_INDICES[0], limit)


def inputs_of(
    workload: Workload, seed: int, style: InputStyle = InputStyle.NORMAL, *, args: Sequence[TensorSpec] | None = None
) -> list[Array | TensorSpec]:
    """Return suitable random inputs for a single program, and the specs of its outputs.

    Args:
        args: its arguments with other shapes; None for its own shapes.
    """
    return make_inputs(
        workload.args if args is None else args,
        seed,
        style,
        largest_index=largest_index_of(workload),
        scales=workload.input_scales,
    )


def _all_at(model: Model, largest: int) -> list[Array]:
    """Return inputs in which every index is the largest one."""
    drawn = [np.asarray(given) for given in make_inputs(model.inputs, 0)]
    return [
        np.full_like(array, largest) if is_index(spec) else array
        for array, spec in zip(drawn, model.inputs, strict=True)
    ]
