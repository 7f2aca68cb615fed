"""Rounding spread of a model: the error of its engine's float32 answers against float64.

Tolerances follow from the lengths of sums (`fleet.checking.numerics`), which ignores cancellation: attention with
activations in the thousands loses more precision than its sums suggest. The engine's own error includes it.
"""

from __future__ import annotations

import numpy as np

from fleet.building.pool import Pool, run_within
from fleet.checking.numerics import InputStyle, make_inputs
from fleet.domain.measuring import TensorSpec
from fleet.errors import BuildError
from fleet.models.confined import having
from fleet.models.model import Model, ModelFormat
from fleet.models.reference import reference_outputs
from fleet.runtime.agreement import relative_errors

_TIMEOUT_SEC = 30.0
_ENOUGH_ELEMENTS = 64
"""Number of elements of an output from which their largest error is meaningful."""

_MOST_INPUTS = 16
_SMALL_BYTES = 4_000_000
"""Largest model that gets all inputs; larger ones get fewer. A time limit would make exports irreproducible."""


async def find_spread(
    pool: Pool, model: Model, *, seed: int, style: InputStyle, largest_index: int
) -> tuple[float, ...] | None:
    """Measure the spread in a worker; return None if the model cannot be evaluated in float64, or not in time."""
    if model.format is not ModelFormat.ONNX or model.roundings:
        return None
    try:
        measuring = having(measure_spread, model)
        return await run_within(pool, _TIMEOUT_SEC, measuring, model, seed, style, largest_index)
    except BuildError:
        return None


def measure_spread(model: Model, seed: int, style: InputStyle, largest_index: int) -> tuple[float, ...] | None:
    """Return the engine's largest error per output as a share of (rms + |element|), or None if it is unknown."""
    from fleet.models.float64 import evaluate_in_float64

    worst, elements = np.zeros(len(model.output_names)), 0
    for attempt in range(max(1, _MOST_INPUTS * _SMALL_BYTES // max(_SMALL_BYTES, len(model.content)))):
        made = make_inputs(model.inputs, seed + attempt, style, largest_index=largest_index)
        inputs = [given for given in made if not isinstance(given, TensorSpec)]
        narrow, wide = reference_outputs(model, inputs), evaluate_in_float64(model, inputs)
        if narrow is None or wide is None or len(narrow.outputs) != len(wide):
            return None
        if [one.shape for one in narrow.outputs] != [one.shape for one in wide]:
            return None
        errors = [relative_errors(one, other) for one, other in zip(narrow.outputs, wide, strict=True)]
        worst = np.maximum(worst, [float(error.max(initial=0.0)) for error in errors])
        elements += min((error.size for error in errors), default=0)
        if elements >= _ENOUGH_ELEMENTS:
            break
    return tuple(map(float, worst))
