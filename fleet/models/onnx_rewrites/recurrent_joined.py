"""LSTM, GRU and RNN as a single custom operator for all steps, after one product with the input.

The importer replaces the operator with a program (`fleet.models.recurrent_program`). Further operators, which are
folded at compile time, bring the weights into the program's order.
"""

from __future__ import annotations

import json
from dataclasses import asdict

import numpy as np
from onnx import NodeProto, TensorProto

from fleet.models.onnx_rewrites.graph import Replacement, Rule, present
from fleet.models.onnx_rewrites.recurrent import unroll
from fleet.models.onnx_rewrites.recurrent_node import (
    BIASES,
    GATES,
    INITIAL_C,
    INITIAL_H,
    PEEPHOLES,
    SEQUENCE_LENS,
    RecurrentNode,
    read_recurrent,
)
from fleet.models.recurrent_layer import Cell, Recurrence

DOMAIN, OPERATOR, LAYER = "fleet", "FleetRecurrence", "layer"
"""Domain and name of the operator, and its attribute with the `Recurrence` as JSON."""


def join(node: NodeProto, write: Replacement) -> bool:
    """Replace a recurrent node by the operator, or by its unrolled steps if its dtype or activations are unusual.

    Raises:
        ImportFailed: the shape of its input is unknown, or an activation is unsupported or has parameters.
    """
    facts = read_recurrent(node, write.values)
    is_usual = facts.activations_of(0) == facts.activations_of(len(facts.directions) - 1)
    if not is_usual or facts.dtype != np.float32 or min(facts.steps, facts.batch) < 1:
        return unroll(node, write)
    _Joining(node, write, facts).run()
    return True


JOINING: dict[str, Rule] = dict.fromkeys(GATES, join)


class _Joining:
    """Writer of the replacement for one recurrent node."""

    def __init__(self, node: NodeProto, write: Replacement, facts: RecurrentNode) -> None:
        self._node = node
        self._write = write
        self._facts = facts
        is_gru, is_lstm = facts.kind == "GRU", facts.kind == "LSTM"
        keeps_bias = is_gru and facts.is_linear_before_reset and bool(self._input(BIASES))
        self._layer = Recurrence(
            cell=Cell(facts.kind.lower()),
            steps=facts.steps,
            batch=facts.batch,
            hidden=facts.hidden,
            is_reverse=tuple(name == "reverse" for name in facts.directions),
            activations=facts.activations_of(0),
            clip=facts.clip,
            is_linear_before_reset=facts.is_linear_before_reset and is_gru,
            couples_gates=facts.couples_gates and is_lstm,
            has_candidate_bias=keeps_bias,
            has_peepholes=bool(self._input(PEEPHOLES)) and is_lstm,
            has_lengths=bool(self._input(SEQUENCE_LENS)),
            has_initial_hidden=bool(self._input(INITIAL_H)),
            has_initial_cell=bool(self._input(INITIAL_C)) and is_lstm,
        )

    def run(self) -> None:
        """Write the product with the input, the operator, and its outputs in the node's axis order."""
        layer = self._layer
        inputs = [self._products(), self._weights()]
        if layer.has_candidate_bias:
            inputs.append(self._candidate_bias())
        if layer.has_peepholes:
            by_gate = self._reshaped(self._input(PEEPHOLES), layer.directions, 3, layer.hidden)
            inputs.append(self._padded(by_gate, (layer.directions, 3)))
        if layer.has_lengths:
            inputs.append(self._write.op("Cast", self._input(SEQUENCE_LENS), to=TensorProto.INT32))
        if layer.has_initial_hidden:
            inputs.append(self._state(INITIAL_H))
        if layer.has_initial_cell:
            inputs.append(self._state(INITIAL_C))
        self._outputs(inputs)

    def _products(self) -> str:
        """Multiply all steps with the input weights of all directions: [steps, batch, directions, gates, padded]."""
        write, layer = self._write, self._layer
        given = self._input(0)
        if self._facts.is_batch_first:
            given = write.op("Transpose", given, perm=[1, 0, 2])
        rows = self._reshaped(given, layer.steps * layer.batch, self._facts.size)
        size = self._facts.size
        by_gate = self._by_gate(1, size)
        columns = layer.directions * layer.gates * layer.padded
        weights = self._reshaped(write.op("Transpose", by_gate, perm=[3, 0, 1, 2]), size, columns)
        product = write.op("MatMul", rows, weights)
        if self._input(BIASES):
            product = write.op("Add", product, self._reshaped(self._bias(), columns))
        return self._reshaped(product, layer.steps, layer.batch, layer.directions, layer.gates, layer.padded)

    def _bias(self) -> str:
        """Return the sum of both biases, [directions, gates, padded], without a bias that the operator adds itself."""
        write, layer = self._write, self._layer
        of_input, of_state = self._biases()
        if layer.has_candidate_bias:
            of_state = write.op("Mul", of_state, write.constant(np.array([[[1], [1], [0]]], "float32")))
        return self._padded(write.op("Add", of_input, of_state), (layer.directions, layer.gates))

    def _biases(self) -> list[str]:
        layer = self._layer
        both = self._reshaped(self._input(BIASES), layer.directions, 2, layer.gates, layer.hidden)
        parts = self._write.split(both, 2, axis=1)
        return [self._reshaped(part, layer.directions, layer.gates, layer.hidden) for part in parts]

    def _candidate_bias(self) -> str:
        """Return the state's bias of a GRU's candidate, [directions, padded]."""
        layer = self._layer
        candidate = self._write.split(self._biases()[1], layer.gates, axis=1)[2]
        return self._padded(self._reshaped(candidate, layer.directions, layer.hidden), (layer.directions,))

    def _weights(self) -> str:
        """Return the weights of the state in the program's order."""
        layer = self._layer
        sizes = (layer.directions, layer.gates, layer.padded // layer.tile, layer.tile, layer.hidden)
        tiled = self._reshaped(self._by_gate(2, layer.hidden), *sizes)
        return self._write.op("Transpose", tiled, perm=[0, 2, 4, 1, 3])

    def _by_gate(self, place: int, size: int) -> str:
        """Return weights as [directions, gates, padded, size]."""
        layer = self._layer
        before = (layer.directions, layer.gates)
        return self._padded(self._reshaped(self._input(place), *before, layer.hidden, size), before, (size,))

    def _state(self, place: int) -> str:
        state = self._input(place)
        return self._write.op("Transpose", state, perm=[1, 0, 2]) if self._facts.is_batch_first else state

    def _outputs(self, inputs: list[str]) -> None:
        """Write the operator with all outputs, including those omitted by the node."""
        write, wanted = self._write, self._node.output
        order = {0: [2, 0, 1, 3], 1: [1, 0, 2], 2: [1, 0, 2]} if self._facts.is_batch_first else {}
        names = ["" if place in order else present(wanted, place) for place in range(len(self._layer.results))]
        made = write.ops(OPERATOR, inputs, names, DOMAIN, **{LAYER: json.dumps(asdict(self._layer))})
        for place, axes in order.items():
            if present(wanted, place):
                write.op("Transpose", made[place], perm=axes, output=wanted[place])

    def _padded(self, name: str, before: tuple[int, ...], after: tuple[int, ...] = ()) -> str:
        """Pad the axis of the state's columns to whole tiles, given the axes before and after it."""
        missing = self._layer.padded - self._layer.hidden
        if not missing:
            return name
        zeros = self._write.constant(np.zeros((*before, missing, *after), "float32"))
        return self._write.op("Concat", name, zeros, axis=len(before))

    def _reshaped(self, name: str, *shape: int) -> str:
        return self._write.op("Reshape", name, self._write.integers(*shape))

    def _input(self, place: int) -> str:
        return present(self._node.input, place)
