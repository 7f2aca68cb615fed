"""Parser of LSTM, GRU and RNN nodes: sizes, directions and activations by the ONNX specification."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from onnx import NodeProto

from fleet.errors import ImportFailed
from fleet.models.onnx_rewrites.graph import Values, attributes_of, called, number
from fleet.models.recurrent_layer import GATES as GATES_OF_CELLS

GATES = {cell.upper(): count for cell, count in GATES_OF_CELLS.items()}
_DEFAULTS = {"LSTM": ("Sigmoid", "Tanh", "Tanh"), "GRU": ("Sigmoid", "Tanh"), "RNN": ("Tanh",)}
_ACTIVATIONS = frozenset({"Elu", "HardSigmoid", "LeakyRelu", "Relu", "Sigmoid", "Softplus", "Softsign", "Tanh"})
"""Activations that are ONNX operators of the same name with the same defaults."""

BIASES, SEQUENCE_LENS, INITIAL_H, INITIAL_C, PEEPHOLES = 3, 4, 5, 6, 7
"""Indices of the optional inputs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecurrentNode:
    """Parameters of a recurrent node."""

    kind: str
    directions: tuple[str, ...]
    """One or both of "forward" and "reverse"."""

    activations: tuple[str, ...]
    """Activations of all directions, concatenated."""

    clip: float | None
    is_batch_first: bool
    steps: int
    batch: int
    size: int
    """Number of input features."""

    hidden: int
    is_linear_before_reset: bool
    couples_gates: bool
    dtype: np.dtype[np.generic]

    def activations_of(self, direction: int) -> tuple[str, ...]:
        """Return the activations of one direction."""
        count = len(_DEFAULTS[self.kind])
        return self.activations[direction * count : (direction + 1) * count]


def read_recurrent(node: NodeProto, values: Values) -> RecurrentNode:
    """Return the parameters of a recurrent node.

    Raises:
        ImportFailed: the shape of its input is unknown, or an activation is unsupported or has parameters.
    """
    attributes = attributes_of(node)
    directions = _directions(attributes)
    is_batch_first = bool(number(node, "layout"))
    steps, batch, size = _sizes(node, values, is_batch_first=is_batch_first)
    return RecurrentNode(
        kind=node.op_type,
        directions=directions,
        activations=_activations(node, attributes, len(directions)),
        clip=float(clip) if isinstance(clip := attributes.get("clip"), float) else None,
        is_batch_first=is_batch_first,
        steps=steps,
        batch=batch,
        size=size,
        hidden=number(node, "hidden_size") or _hidden_of_weights(node, values),
        is_linear_before_reset=bool(number(node, "linear_before_reset")),
        couples_gates=bool(number(node, "input_forget")),
        dtype=values.dtype(node.input[0]) or np.dtype("float32"),
    )


def _directions(attributes: dict[str, object]) -> tuple[str, ...]:
    direction = attributes.get("direction", b"forward")
    name = direction.decode() if isinstance(direction, bytes) else str(direction)
    return ("forward", "reverse") if name == "bidirectional" else (name,)


def _activations(node: NodeProto, attributes: dict[str, object], directions: int) -> tuple[str, ...]:
    given = attributes.get("activations")
    named: Sequence[str] = [bytes(name).decode() for name in given] if isinstance(given, list) else []
    named = named or [*_DEFAULTS[node.op_type]] * directions
    strange = sorted({name for name in named if name not in _ACTIVATIONS})
    if strange or attributes.get("activation_alpha") or attributes.get("activation_beta"):
        what = f"activation {strange[0]}" if strange else "activations with parameters of its own"
        raise ImportFailed(f"{called(node)} uses {what}, which is not known here; known: {sorted(_ACTIVATIONS)}")
    return tuple(named)


def _sizes(node: NodeProto, values: Values, *, is_batch_first: bool) -> tuple[int, int, int]:
    shape = values.shape(node.input[0])
    if shape is None:
        raise ImportFailed(f"{called(node)}: its sequence length is unknown: {values.why_unknown(node.input[0])}")
    return (shape[1], shape[0], shape[2]) if is_batch_first else (shape[0], shape[1], shape[2])


def _hidden_of_weights(node: NodeProto, values: Values) -> int:
    shape = values.shape(node.input[2])
    if shape is None:
        raise ImportFailed(f"{called(node)}: its hidden size is unknown")
    return shape[2]
