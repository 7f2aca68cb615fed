"""LSTM, GRU and RNN as matrix products and element-wise operators, for targets without a program for whole layers.

The steps are unrolled, so the sequence length has to be known. One product covers the input of all steps; only the
products with the state run step by step. Equations, gate orders and the meaning of each input follow the ONNX operator
specification.

Beyond the end of a short sequence in a batch, the state stays unchanged and the outputs are 0. In reverse, the initial
state stays until the last element, so one rule serves both directions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from onnx import NodeProto

from fleet.errors import ImportFailed
from fleet.models.onnx_rewrites.graph import Replacement, Rule, called, present
from fleet.models.onnx_rewrites.recurrent_node import (
    BIASES,
    GATES,
    INITIAL_C,
    INITIAL_H,
    PEEPHOLES,
    SEQUENCE_LENS,
    read_recurrent,
)

_MAX_STEPS = 4096

_State = tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class _Direction:
    """One direction of a recurrent node: computes a step from the previous state."""

    write: Replacement
    activations: Sequence[str]
    hidden_size: int
    recurrence: str
    """Weights of the state, transposed: [hidden, gates * hidden]."""

    recurrence_bias: str
    """[gates * hidden], or "" without biases."""

    peepholes: Sequence[str]
    """LSTM only: weights [hidden] of the cell for input, output and forget gate; or none."""

    clip: float | None

    is_linear_before_reset: bool = False
    couples_gates: bool = False
    """LSTM only: the forget gate is 1 - the input gate."""

    def activate(self, index: int, value: str) -> str:
        """Apply the activation at an index of the node's list."""
        write = self.write
        if self.clip is not None:
            low, high = (write.constant(np.array(sign * self.clip, "float32")) for sign in (-1, 1))
            value = write.op("Min", write.op("Max", value, low), high)
        return write.op(self.activations[index], value)

    def from_state(self, hidden: str) -> str:
        """Multiply a state with the recurrence weights."""
        product = self.write.op("MatMul", hidden, self.recurrence)
        return self.write.op("Add", product, self.recurrence_bias) if self.recurrence_bias else product


def _lstm_step(one: _Direction, given: str, state: _State) -> _State:
    hidden, cell = state
    write = one.write
    gates = write.split(write.op("Add", given, one.from_state(hidden)), 4, axis=1)
    input_gate, output_gate, forget_gate, candidate = gates

    def peep(gate: str, index: int, seen: str) -> str:
        return write.op("Add", gate, write.op("Mul", one.peepholes[index], seen)) if one.peepholes else gate

    kept_in = one.activate(0, peep(input_gate, 0, cell))
    if one.couples_gates:
        kept = write.op("Sub", write.constant(np.array(1, "float32")), kept_in)
    else:
        kept = one.activate(0, peep(forget_gate, 2, cell))
    added = write.op("Mul", kept_in, one.activate(1, candidate))
    new_cell = write.op("Add", write.op("Mul", kept, cell), added)
    shown = one.activate(0, peep(output_gate, 1, new_cell))
    # Like ONNX Runtime, clip the gates but not the cell, although an activation reads it, too.
    return write.op("Mul", shown, write.op(one.activations[2], new_cell)), new_cell


def _gru_step(one: _Direction, given: str, state: _State) -> _State:
    (hidden,) = state
    write = one.write
    update_x, reset_x, candidate_x = write.split(given, 3, axis=1)
    if one.is_linear_before_reset:
        update_h, reset_h, candidate_h = write.split(one.from_state(hidden), 3, axis=1)
    else:
        update_h, reset_h = _gru_gates(one, hidden)
        candidate_h = ""
    update = one.activate(0, write.op("Add", update_x, update_h))
    reset = one.activate(0, write.op("Add", reset_x, reset_h))
    if one.is_linear_before_reset:
        remembered = write.op("Mul", reset, candidate_h)
    else:
        remembered = _gru_candidate(one, write.op("Mul", reset, hidden))
    candidate = one.activate(1, write.op("Add", candidate_x, remembered))
    # equals (1 - z) * candidate + z * hidden, with one multiplication less
    changed = write.op("Mul", update, write.op("Sub", hidden, candidate))
    return (write.op("Add", candidate, changed),)


def _gru_gates(one: _Direction, hidden: str) -> tuple[str, str]:
    """Return the state's contribution to update and reset gate."""
    write = one.write
    both = write.op("MatMul", hidden, _columns(one, one.recurrence, 0, 2))
    if one.recurrence_bias:
        both = write.op("Add", both, _columns(one, one.recurrence_bias, 0, 2))
    update, reset = write.split(both, 2, axis=1)
    return update, reset


def _gru_candidate(one: _Direction, hidden: str) -> str:
    """Return the state's contribution to the candidate after its reset."""
    product = one.write.op("MatMul", hidden, _columns(one, one.recurrence, 2, 3))
    if not one.recurrence_bias:
        return product
    return one.write.op("Add", product, _columns(one, one.recurrence_bias, 2, 3))


def _columns(one: _Direction, weights: str, start: int, end: int) -> str:
    """Return some of the three gates of a GRU's weights or biases."""
    write, size = one.write, one.hidden_size
    return write.op("Slice", weights, *(write.integers(number) for number in (start * size, end * size, -1)))


def _rnn_step(one: _Direction, given: str, state: _State) -> _State:
    return (one.activate(0, one.write.op("Add", given, one.from_state(state[0]))),)


_STEPS: dict[str, Callable[[_Direction, str, _State], _State]] = {
    "LSTM": _lstm_step,
    "GRU": _gru_step,
    "RNN": _rnn_step,
}


def unroll(node: NodeProto, write: Replacement) -> bool:
    """Replace a recurrent node by its steps.

    Raises:
        ImportFailed: its sequence length is unknown, or it uses activations with parameters of their own.
    """
    return _Unrolling(node, write).run()


UNROLLING: dict[str, Rule] = dict.fromkeys(GATES, unroll)


class _Unrolling:
    """Writes the unrolled nodes of one recurrent node, direction by direction."""

    def __init__(self, node: NodeProto, write: Replacement) -> None:
        self._node = node
        self._write = write
        self._facts = facts = read_recurrent(node, write.values)
        if not 1 <= facts.steps <= _MAX_STEPS:
            raise ImportFailed(f"{called(node)} has {facts.steps} steps; 1 to {_MAX_STEPS} can be written out")
        self._kind = facts.kind
        self._directions = facts.directions
        self._is_batch_first = facts.is_batch_first
        self._steps, self._batch, self._hidden = facts.steps, facts.batch, facts.hidden

    def run(self) -> bool:
        """Write all directions, and concatenate their outputs."""
        write, outputs = self._write, self._node.output
        given = present(self._node.input, 0)
        if self._is_batch_first:
            given = write.op("Transpose", given, perm=[1, 0, 2])
        ran = [self._direction(index, given, name) for index, name in enumerate(self._directions)]
        if present(outputs, 0):
            self._join_steps([shown for shown, _ in ran], outputs[0])
        for place, part in ((1, 0), (2, 1)):
            if present(outputs, place):
                self._join_states([state[part] for _, state in ran], outputs[place])
        return True

    def _direction(self, index: int, given: str, name: str) -> tuple[list[str], _State]:
        """Write one direction. Return each step's output [batch, hidden], in order of time, and the last state."""
        one = self._at(index)
        inputs = self._from_inputs(index, given)
        lengths = present(self._node.input, SEQUENCE_LENS)
        state = self._initial(index)
        shown = [""] * self._steps
        order = range(self._steps) if name == "forward" else reversed(range(self._steps))
        for step in order:
            new = _STEPS[self._kind](one, inputs[step], state)
            if lengths:
                state, shown[step] = self._hold(step, lengths, new, state)
            else:
                state, shown[step] = new, new[0]
        return shown, state

    def _hold(self, step: int, lengths: str, new: _State, state: _State) -> tuple[_State, str]:
        """Return state and output after a step, keeping the state beyond the end of a sequence."""
        write = self._write
        dtype = write.values.dtype(lengths) or np.dtype("int32")
        goes_on = write.op("Less", write.constant(np.array(step, dtype)), lengths)
        mask = write.op("Reshape", goes_on, write.integers(self._batch, 1))
        held = tuple(write.op("Where", mask, after, before) for after, before in zip(new, state, strict=True))
        return held, write.op("Where", mask, new[0], write.constant(np.array(0, self._facts.dtype)))

    def _at(self, index: int) -> _Direction:
        node, write = self._node, self._write
        peepholes: Sequence[str] = ()
        if present(node.input, PEEPHOLES):
            peepholes = write.split(self._part(PEEPHOLES, index), 3, axis=0)
        bias = ""
        if present(node.input, BIASES):
            bias = write.split(self._part(BIASES, index), 2, axis=0)[1]
        return _Direction(
            write=write,
            activations=self._facts.activations_of(index),
            hidden_size=self._hidden,
            recurrence=write.op("Transpose", self._part(2, index), perm=[1, 0]),
            recurrence_bias=bias,
            peepholes=peepholes,
            clip=self._facts.clip,
            is_linear_before_reset=self._facts.is_linear_before_reset,
            couples_gates=self._facts.couples_gates,
        )

    def _from_inputs(self, index: int, given: str) -> Sequence[str]:
        """Multiply all steps with the input weights at once. Return one [batch, gates * hidden] per step."""
        write = self._write
        product = write.op("MatMul", given, write.op("Transpose", self._part(1, index), perm=[1, 0]))
        if present(self._node.input, BIASES):
            product = write.op("Add", product, write.split(self._part(BIASES, index), 2, axis=0)[0])
        steps = [product] if self._steps == 1 else write.split(product, self._steps, axis=0)
        shape = write.integers(self._batch, GATES[self._kind] * self._hidden)
        return [write.op("Reshape", step, shape) for step in steps]

    def _initial(self, index: int) -> _State:
        places = (INITIAL_H, INITIAL_C) if self._kind == "LSTM" else (INITIAL_H,)
        return tuple(self._initial_part(place, index) for place in places)

    def _initial_part(self, place: int, index: int) -> str:
        write = self._write
        if not present(self._node.input, place):
            return write.constant(np.zeros((self._batch, self._hidden), self._facts.dtype))
        axis = 1 if self._is_batch_first else 0
        return write.op("Gather", self._node.input[place], write.constant(np.array(index, "int64")), axis=axis)

    def _part(self, place: int, index: int) -> str:
        """Return one direction's part of an input with the direction as first axis."""
        return self._write.op("Gather", self._node.input[place], self._write.constant(np.array(index, "int64")), axis=0)

    def _join_steps(self, directions: Sequence[Sequence[str]], output: str) -> None:
        """Write Y: [steps, directions, batch, hidden], batch first with layout 1."""
        write = self._write
        joined = []
        for steps in directions:
            stacked = write.op("Concat", *steps, axis=0)
            joined.append(write.op("Reshape", stacked, write.integers(self._steps, 1, self._batch, self._hidden)))
        if not self._is_batch_first:
            write.op("Concat", *joined, axis=1, output=output)
            return
        write.op("Transpose", write.op("Concat", *joined, axis=1), perm=[2, 0, 1, 3], output=output)

    def _join_states(self, states: Sequence[str], output: str) -> None:
        """Write Y_h or Y_c: [directions, batch, hidden], batch first with layout 1."""
        write, axis = self._write, 1 if self._is_batch_first else 0
        shape = (self._batch, 1, self._hidden) if self._is_batch_first else (1, self._batch, self._hidden)
        write.op(
            "Concat",
            *(write.op("Reshape", state, write.integers(*shape)) for state in states),
            axis=axis,
            output=output,
        )
