"""Inputs of an exported model with their expected answers. Runs in the build pool."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fleet.checking.index_inputs import largest_index
from fleet.checking.numerics import Array, InputStyle, make_inputs
from fleet.checking.weakness import Weakness, find_weakness
from fleet.domain.measuring import TensorSpec
from fleet.errors import InvalidRequest
from fleet.models.model import Model, ModelFormat
from fleet.models.reference import reference_outputs

_OTHER_SEED = 1_000
"""Added to the seed for inputs that should give different outputs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """Seeded inputs, and the right outputs."""

    inputs: tuple[Array, ...]
    outputs: tuple[Array, ...]
    output_names: tuple[str, ...]
    seed: int
    """That gave these inputs."""

    style: InputStyle
    largest_index: int

    reference: str
    """Engine of the outputs:  "onnxruntime", "torch", "ai_edge_litert", or "onnx" for its implementation in numpy."""

    weakness: Weakness | None
    """Why agreeing with these outputs proves little, if so."""


def find_answers(model: Model, seed: int) -> Answers:
    """Run a model on seeded inputs whose outputs are a meaningful test, if there are any."""
    found: list[Answers] = []
    largest = largest_index(model)
    for attempt, style in enumerate(InputStyle):
        found.append(_answers_for(model, seed + attempt, style, largest))
        if found[-1].weakness is None:
            return found[-1]
    return found[0]


def _answers_for(model: Model, seed: int, style: InputStyle, largest: int) -> Answers:
    inputs, others = (_inputs(model, one, style, largest) for one in (seed, seed + _OTHER_SEED))
    outputs, reference = _run(model, inputs)
    return Answers(
        inputs=tuple(inputs),
        outputs=outputs,
        output_names=model.output_names,
        seed=seed,
        style=style,
        largest_index=largest,
        reference=reference,
        weakness=find_weakness(outputs, _run(model, others)[0]),
    )


def _inputs(model: Model, seed: int, style: InputStyle, largest: int) -> list[Array]:
    made = make_inputs(model.inputs, seed, style, largest_index=largest)
    return [given for given in made if not isinstance(given, TensorSpec)]


def _run(model: Model, inputs: Sequence[Array]) -> tuple[tuple[Array, ...], str]:
    run = reference_outputs(model, inputs)
    if run is not None:
        return tuple(map(np.asarray, run.outputs)), run.by
    if model.format is not ModelFormat.ONNX:
        raise InvalidRequest(
            f"{model.title} is exported with answers to check it by; the engine for them is not installed, or refuses "
            f"the model: try pip install 'tvm-fleet[{model.format}]'"
        )
    from onnx import load_from_string
    from onnx.reference import ReferenceEvaluator

    feeds = dict(zip(model.input_names, inputs, strict=True))
    return tuple(map(np.asarray, ReferenceEvaluator(load_from_string(model.onnx_bytes)).run(None, feeds))), "onnx"
