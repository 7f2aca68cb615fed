"""Replaces the weights of an ONNX model by seeded random ones.

Models that ship without training results carry constants for weights. Then every output element is the same number,
and a kernel that mixes up its elements goes unseen. Random weights make it visible, if three things hold.

- Activations neither vanish nor explode on their way. The model runs node by node on an example input, and the weights
  of each convolution or product are scaled to bring its result's mean square to 1 (layer-sequential unit variance:
  Mishkin and Matas, All you need is a good init, 2016); batch normalisation gets the mean and variance of its data, as
  training would leave them.
- Outputs move with the input. After rectifiers all channels have about the same positive mean; it does not depend on
  the input, and layer by layer its share grows until nothing else is left. So most of a filter's own mean is removed.
- Rounding errors do not grow. Without all of that mean they would double every few layers, so some of it stays.

Constants that are not weights (shapes, axes, scalars, masks, tables such as those of rotary embeddings, constants of
operators not listed) stay as they are.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, numpy_helper

from fleet.models.node_by_node import Array, CannotRun, NodeByNode, example_inputs, names_read

logger = logging.getLogger(__name__)

_Shape: TypeAlias = tuple[int, ...]
_Drawn: TypeAlias = NDArray[np.float32]
_CONSTANT = frozenset(
    {"Constant", "ConstantOfShape", "Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"}
)
"""Operators that make constants, or others of constants."""

_ADDED_STD = 0.1
_KEPT_MEAN = 0.3
"""Share of a filter's mean that stays."""

_FEWEST_TERMS = 16
"""Sums of fewer terms keep their mean: without it a depthwise filter would see edges only."""

_MASKED = 1e4
"""Added constants beyond this, in amount, mask; no weight is as large."""

_STEPS_PER_OCTAVE = 4
"""Measured scales are rounded to powers of 2^(1/4), so that machines which round differently agree on the weights."""


def randomize_weights(proto: ModelProto, seed: int) -> int:
    """Replace the float weights of a model in place. Return their number.

    A node that cannot run here ends the measuring: the weights after it are scaled by the size of their sums alone.
    """
    rng = np.random.default_rng(seed)
    drawing = _Drawing(proto, rng, NodeByNode(proto, example_inputs(proto, np.random.default_rng([seed, 1]))))
    for index in range(len(proto.graph.node)):
        drawing.visit(index)
    _store(proto, drawing.drawn)
    return len(drawing.drawn)


class _Drawing:
    """Draws the weights of one node after the other."""

    def __init__(self, proto: ModelProto, rng: np.random.Generator, steps: NodeByNode) -> None:
        self.drawn: dict[str, Array] = {}
        """New constants by name. A weight behind a reshape gets the name, and shape, of the reshape's result."""
        self._nodes = proto.graph.node
        self._rng = rng
        self._steps = steps
        self._is_measuring = True
        self._constants = {tensor.name for tensor in proto.graph.initializer}

    def visit(self, index: int) -> None:
        """Draw the weights of a node, scale them to its data, and run it."""
        node = self._nodes[index]
        for position in range(len(node.input)):
            self._draw(node, position)
        is_constant = node.op_type in _CONSTANT and self._constants.issuperset(node.input)
        if is_constant:
            self._constants.update(node.output)
        try:
            if self._is_measuring:
                self._fit(node)
            if self._is_measuring or is_constant:
                self._steps.advance(index)
        except CannotRun as error:
            self._is_measuring = False
            logger.warning("random weights do not follow the data from here on", extra={"reason": str(error)})

    def _draw(self, node: NodeProto, position: int) -> None:
        name = node.input[position]
        role = _ROLES.get((node.op_type, position)) or _ROLES.get((node.op_type, None))
        if role is None or name not in self._constants or name in self.drawn:
            return
        old = self._steps.values[name]
        if old.dtype.kind != "f" or not role.is_weight(old):
            return
        self._set(name, role.draw(self._rng, old.shape, node).astype(old.dtype))

    def _set(self, name: str, weight: Array) -> None:
        self.drawn[name] = self._steps.values[name] = weight

    def _fit(self, node: NodeProto) -> None:
        """Scale the result of a product to a mean square of 1, and fit the statistics of a normalisation to its
        data.
        """
        if node.op_type == "BatchNormalization":
            data = self._steps.values[node.input[0]].astype(np.float64)
            mean, deviation = float(np.mean(data)), float(np.std(data))
            if node.input[3] in self.drawn and node.input[4] in self.drawn:
                self._move(node.input[3], by=_rounded(mean), times=_rounded(deviation))
                self._move(node.input[4], times=_rounded(deviation) ** 2)
            return
        weights = [name for index, name in enumerate(node.input) if (node.op_type, index) in _SCALED]
        fresh = [name for name in weights if name in self.drawn]
        if fresh:
            (result,) = self._steps.outputs_of(node).values()
            size = float(np.sqrt(np.mean(np.square(result, dtype=np.float64))))
            self._move(fresh[0], times=1.0 / (_rounded(size) or 1.0))

    def _move(self, name: str, *, times: float, by: float = 0.0) -> None:
        old = self.drawn[name]
        if math.isfinite(times) and math.isfinite(by) and times > 0:
            self._set(name, (old.astype(np.float32) * times + by).astype(old.dtype))


def _rounded(value: float) -> float:
    """Return the nearest power of 2^(1/4) with the sign of the value; 0 and non-finite values are unchanged."""
    if value == 0 or not math.isfinite(value):
        return value
    return math.copysign(2.0 ** (round(math.log2(abs(value)) * _STEPS_PER_OCTAVE) / _STEPS_PER_OCTAVE), value)


def _store(proto: ModelProto, drawn: dict[str, Array]) -> None:
    """Store the drawn arrays as the model's constants, and remove values without readers."""
    graph = proto.graph
    nodes = [node for node in graph.node if not drawn.keys() & set(node.output)]
    read = {value.name for value in graph.output}
    needed = []
    for node in reversed(nodes):
        if node.op_type not in _CONSTANT or read & set(node.output):
            needed.append(node)
            read.update(names_read(node))
    tensors = [tensor for tensor in graph.initializer if tensor.name not in drawn and tensor.name in read]
    del graph.node[:]
    del graph.initializer[:]
    graph.node.extend(reversed(needed))
    graph.initializer.extend(tensors)
    graph.initializer.extend(
        numpy_helper.from_array(np.ascontiguousarray(array), name) for name, array in drawn.items()
    )


def _transposes(node: NodeProto) -> bool:
    return any(attribute.name == "transB" and attribute.i for attribute in node.attribute)


def _product(rng: np.random.Generator, shape: _Shape, axes: tuple[int, ...]) -> _Drawn:
    """Draw a weight that is summed over these axes: scaled by their product, with most of its mean removed."""
    terms = math.prod(shape[axis] for axis in axes)
    drawn = _normal(rng, shape, 1 / math.sqrt(max(terms, 1)))
    if terms >= _FEWEST_TERMS:
        drawn -= np.float32(1 - _KEPT_MEAN) * drawn.mean(axes, keepdims=True)
    return drawn


def _normal(rng: np.random.Generator, shape: _Shape, deviation: float) -> _Drawn:
    drawn = rng.standard_normal(shape, dtype=np.float32)
    drawn *= np.float32(deviation)
    return drawn


def _filter(rng: np.random.Generator, shape: _Shape, _: NodeProto) -> _Drawn:
    return _product(rng, shape, tuple(range(1, len(shape))))


def _transposed_filter(rng: np.random.Generator, shape: _Shape, _: NodeProto) -> _Drawn:
    return _product(rng, shape, (0, *range(2, len(shape))))


def _left(rng: np.random.Generator, shape: _Shape, _: NodeProto) -> _Drawn:
    return _product(rng, shape, (len(shape) - 1,))


def _right(rng: np.random.Generator, shape: _Shape, node: NodeProto) -> _Drawn:
    return _product(rng, shape, (len(shape) - (1 if _transposes(node) or len(shape) < 2 else 2),))


def _added(rng: np.random.Generator, shape: _Shape, _: NodeProto) -> _Drawn:
    return _normal(rng, shape, _ADDED_STD)


def _entry(rng: np.random.Generator, shape: _Shape, _: NodeProto) -> _Drawn:
    return _normal(rng, shape, 1.0)


def _factor(rng: np.random.Generator, shape: _Shape, _: NodeProto) -> _Drawn:
    return rng.uniform(0.8, 1.2, shape).astype(np.float32)


def _slope(rng: np.random.Generator, shape: _Shape, _: NodeProto) -> _Drawn:
    return rng.uniform(0.1, 0.4, shape).astype(np.float32)


def _has_elements(array: Array) -> bool:
    return array.size > 1


def _is_no_mask(array: Array) -> bool:
    return array.size > 1 and float(np.abs(array.astype(np.float64)).max()) < _MASKED


def _is_per_channel(array: Array) -> bool:
    return [size > 1 for size in array.shape].count(True) == 1


def _is_table(array: Array) -> bool:
    return [size > 1 for size in array.shape].count(True) >= 2


@dataclass(frozen=True, slots=True)
class _Role:
    """Role of a constant in the operator that reads it."""

    draw: Callable[[np.random.Generator, _Shape, NodeProto], _Drawn]
    is_weight: Callable[[Array], bool] = _has_elements


_ROLES: dict[tuple[str, int | None], _Role] = {
    ("Conv", 1): _Role(_filter),
    ("Conv", 2): _Role(_added),
    ("ConvTranspose", 1): _Role(_transposed_filter),
    ("ConvTranspose", 2): _Role(_added),
    ("Gemm", 1): _Role(_right),
    ("Gemm", 2): _Role(_added),
    ("MatMul", 0): _Role(_left),
    ("MatMul", 1): _Role(_right),
    ("LSTM", 1): _Role(_left),
    ("LSTM", 2): _Role(_left),
    ("LSTM", 3): _Role(_added),
    ("GRU", 1): _Role(_left),
    ("GRU", 2): _Role(_left),
    ("GRU", 3): _Role(_added),
    ("Gather", 0): _Role(_entry, _is_table),
    ("BatchNormalization", 1): _Role(_factor),
    ("BatchNormalization", 2): _Role(_added),
    ("BatchNormalization", 3): _Role(_added),
    ("BatchNormalization", 4): _Role(_factor),
    ("InstanceNormalization", 1): _Role(_factor),
    ("InstanceNormalization", 2): _Role(_added),
    ("LayerNormalization", 1): _Role(_factor),
    ("LayerNormalization", 2): _Role(_added),
    ("PRelu", 1): _Role(_slope),
    ("Add", None): _Role(_added, _is_no_mask),
    ("Sum", None): _Role(_added, _is_no_mask),
    ("Mul", None): _Role(_factor, _is_per_channel),
}
_SCALED = frozenset({("Conv", 1), ("ConvTranspose", 1), ("Gemm", 1), ("MatMul", 0), ("MatMul", 1)})
