"""An ONNX graph during rewriting: the known facts about its values, and the replacement of nodes.

A rule looks at one node and writes nodes that compute the same under the same output names; `rewrite` puts them in its
place. Names that a rule makes up are new to the whole model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

from fleet.errors import ImportFailed

Array: TypeAlias = NDArray[np.generic]
Attribute: TypeAlias = int | float | str | Sequence[int] | Sequence[float]

LARGE_BYTES = 1 << 24
"""Weights above this are not looked into: nobody computes axes or shapes from them."""

_LOOKED_AT_BYTES = 1 << 10
"""Shape inference looks into constants up to this size, and gets only the type of larger ones."""

_AXES_ARE_INPUT = 18
"""From this version on ReduceL1, ReduceL2 and their like have axes as an input, no more as an attribute."""

_SPLIT_COUNTS = 18
"""From this version on Split wants to be told into how many parts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueType:
    """Type and shape of a value, from shape inference."""

    dtype: np.dtype[np.generic]
    shape: tuple[int, ...] | None
    """None where a dimension, or the number of dimensions, is unknown."""


@dataclass(kw_only=True)
class Values:
    """Known facts about the values of a model's main graph."""

    types: Mapping[str, ValueType]
    constants: dict[str, Array]
    """Those up to `LARGE_BYTES`; of larger ones only the type is known."""

    taken: set[str]
    """Every name in use, those inside of branches and loops included."""

    opset: int
    """Version of the standard operators that the model uses."""

    makers: Mapping[str, NodeProto] = field(default_factory=dict)
    """Nodes by the names of the values that they compute."""

    def why_unknown(self, name: str) -> str:
        """Return the reason why the shape of a value is unknown: its first input without a shape."""
        node = self.makers.get(name)
        if node is None:
            return f"the model says no shape of {name!r}"
        unknown = (read for read in node.input if read and self.shape(read) is None)
        first = next(unknown, None)
        if first is not None:
            return self.why_unknown(first)
        return f"the shape of {name!r} depends on numbers that {called(node)} gets only when the model runs"

    def shape(self, name: str) -> tuple[int, ...] | None:
        """Return the shape of a value if all of it is known."""
        if name in self.constants:
            return self.constants[name].shape
        return self.types[name].shape if name in self.types else None

    def dtype(self, name: str) -> np.dtype[np.generic] | None:
        """Return the element type of a value, None if it is unknown."""
        if name in self.constants:
            return self.constants[name].dtype
        return self.types[name].dtype if name in self.types else None


@dataclass(kw_only=True)
class Replacement:
    """Creates the nodes that replace one node."""

    values: Values
    prefix: str
    nodes: list[NodeProto] = field(default_factory=list)

    def op(self, op_type: str, *inputs: str, output: str = "", domain: str = "", **attributes: Attribute) -> str:
        """Add a node with one output, and return the output's name."""
        return self.ops(op_type, inputs, [output or self._fresh(op_type)], domain, **attributes)[0]

    def ops(
        self, op_type: str, inputs: Sequence[str], outputs: Sequence[str], domain: str = "", **attributes: Attribute
    ) -> Sequence[str]:
        """Add a node with these outputs, "" for a new name, and return their names."""
        named = [name or self._fresh(op_type) for name in outputs]
        self.nodes.append(helper.make_node(op_type, list(inputs), named, domain=domain, **attributes))
        return named

    def constant(self, value: Array) -> str:
        """Add a constant, and return its name."""
        name = self._fresh("constant")
        self.nodes.append(helper.make_node("Constant", [], [name], value=numpy_helper.from_array(value, name)))
        self.values.constants[name] = value
        return name

    def integers(self, *numbers: int) -> str:
        """Add an int64 vector, the type of axes, shapes and sizes in ONNX."""
        return self.constant(np.array(numbers, "int64"))

    def split(self, name: str, count: int, *, axis: int) -> Sequence[str]:
        """Split a value into equal parts."""
        parts = [""] * count
        if self.values.opset >= _SPLIT_COUNTS:
            return self.ops("Split", [name], parts, axis=axis, num_outputs=count)
        return self.ops("Split", [name], parts, axis=axis)

    def reduce(self, op_type: str, name: str, axis: int) -> str:
        """Reduce one axis to size 1. Newer versions have the axes as an input."""
        if self.values.opset >= _AXES_ARE_INPUT:
            return self.op(op_type, name, self.integers(axis), keepdims=1)
        return self.op(op_type, name, axes=[axis], keepdims=1)

    def _fresh(self, word: str) -> str:
        base = f"{self.prefix}_{word.lower()}"
        name, count = base, 1
        while name in self.values.taken:
            name, count = f"{base}_{count}", count + 1
        self.values.taken.add(name)
        return name


Rule: TypeAlias = "Callable[[NodeProto, Replacement], bool]"
"""Writes the replacement of a node, and returns True; or returns False, and the node stays."""


def rewrite(proto: ModelProto, rules: Mapping[str, Rule]) -> int:
    """Apply rules, by operator, to the nodes of a model's main graph. Return how many nodes were replaced."""
    if not any(node.op_type in rules for node in proto.graph.node):
        return 0
    values = values_of(proto)
    kept: list[NodeProto] = []
    count = 0
    for index, node in enumerate(proto.graph.node):
        rule = rules.get(node.op_type) if not node.domain else None
        replacement = Replacement(values=values, prefix=node.name or f"{node.op_type}{index}")
        if rule is not None and rule(node, replacement):
            kept.extend(replacement.nodes)
            count += 1
            continue
        kept.append(node)
    set_nodes(proto.graph, kept)
    return count


def set_nodes(graph: GraphProto, nodes: Sequence[NodeProto]) -> None:
    """Replace the nodes of a graph."""
    copies = [type(node).FromString(node.SerializeToString()) for node in nodes]
    del graph.node[:]
    graph.node.extend(copies)


def values_of(proto: ModelProto) -> Values:
    """Infer the types of all values, and collect the constants.

    Raises:
        ImportFailed: the model contradicts itself.
    """
    return Values(
        types=_types(proto),
        constants=dict(_constants(proto)),
        taken=names_in(proto.graph),
        opset=opset_of(proto),
        makers={name: node for node in proto.graph.node for name in node.output},
    )


def names_in(graph: GraphProto) -> set[str]:
    """Return every name that a graph and its subgraphs use."""
    found = {value.name for value in (*graph.input, *graph.output, *graph.initializer)}
    for node in all_nodes(graph):
        found.update((*node.input, *node.output))
    return found


def all_nodes(graph: GraphProto) -> Iterator[NodeProto]:
    """Return the nodes of a graph and its subgraphs: the branches of If, the bodies of Loop and Scan."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for inner in graphs_in(attribute):
                yield from all_nodes(inner)


def graphs_in(attribute: AttributeProto) -> list[GraphProto]:
    """Return the graphs in an attribute."""
    return [*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs]


def attributes_of(node: NodeProto) -> dict[str, object]:
    """Return a node's attributes as plain values: numbers, bytes, lists, tensors, graphs."""
    return {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}


def number(node: NodeProto, name: str, default: int = 0) -> int:
    """Return a node's integer attribute."""
    return next((int(attribute.i) for attribute in node.attribute if attribute.name == name), default)


def called(node: NodeProto) -> str:
    """Return an operator's name as shown to users."""
    return f"{node.op_type} (node {node.name or node.output[0]!r})"


def present(names: Sequence[str], index: int) -> str:
    """Return the input or output at an index; "" if it is omitted."""
    return names[index] if index < len(names) else ""


def opset_of(proto: ModelProto) -> int:
    """Return the version of the standard operators that a model uses."""
    return next((int(item.version) for item in proto.opset_import if item.domain in ("", "ai.onnx")), 1)


def constant_value(node: NodeProto) -> TensorProto | None:
    """Return the tensor of a Constant node from any of its attributes; None for strings and sparse tensors."""
    kinds = {"value_float": "float32", "value_floats": "float32", "value_int": "int64", "value_ints": "int64"}
    for name, value in attributes_of(node).items():
        if name == "value":
            return value
        if name in kinds:
            return numpy_helper.from_array(np.array(value, kinds[name]))
    return None


def _types(proto: ModelProto) -> dict[str, ValueType]:
    try:
        inferred = onnx.shape_inference.infer_shapes(_skeleton(proto), data_prop=True)
    except Exception as error:  # ONNX's C++ raises many classes
        raise ImportFailed(f"the shapes of the model do not fit together: {str(error).strip()[-300:]}") from error
    found = {}
    for value in (*inferred.graph.input, *inferred.graph.output, *inferred.graph.value_info):
        tensor = value.type.tensor_type
        if tensor.elem_type:
            dims = tensor.shape.dim
            is_known = tensor.HasField("shape") and all(dim.HasField("dim_value") for dim in dims)
            shape = tuple(dim.dim_value for dim in dims) if is_known else None
            found[value.name] = ValueType(dtype=helper.tensor_dtype_to_np_dtype(tensor.elem_type), shape=shape)
    return found


def _skeleton(proto: ModelProto) -> ModelProto:
    """Return the model with large weights as inputs: inference copies its input several times."""
    graph = GraphProto(name=proto.graph.name, node=proto.graph.node, input=proto.graph.input)
    graph.output.extend(proto.graph.output)
    graph.value_info.extend(proto.graph.value_info)
    listed = {value.name for value in proto.graph.input}
    for tensor in proto.graph.initializer:
        if _is_small(tensor, _LOOKED_AT_BYTES):
            graph.initializer.append(tensor)
        elif tensor.name not in listed:
            graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    skeleton = ModelProto(ir_version=proto.ir_version, graph=graph, functions=proto.functions)
    skeleton.opset_import.extend(proto.opset_import)
    return skeleton


def _is_small(tensor: TensorProto, limit_bytes: int) -> bool:
    count = math.prod(tensor.dims)
    return bool(
        count <= limit_bytes and count * helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize <= limit_bytes
    )


def _constants(proto: ModelProto) -> Iterator[tuple[str, Array]]:
    for tensor in proto.graph.initializer:
        if _is_small(tensor, LARGE_BYTES):
            yield tensor.name, numpy_helper.to_array(tensor)
    for node in proto.graph.node:
        value = constant_value(node) if node.op_type == "Constant" else None
        if value is not None:
            yield node.output[0], numpy_helper.to_array(value)
