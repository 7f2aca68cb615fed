"""Folds constant parts of an ONNX graph before TVM imports it, unless they are large.

Exporters leave arithmetic on shapes in the graph: Shape, Gather, Concat, Range, Where. TVM wants axes, shapes and
sizes as constants; with the shapes of all inputs known they are. `onnx.reference` computes them, node by node.
"""

from __future__ import annotations

import logging

import numpy as np
from onnx import ModelProto, NodeProto, helper, numpy_helper

from fleet.models.onnx_rewrites.graph import (
    LARGE_BYTES,
    Array,
    Values,
    all_nodes,
    constant_value,
    names_in,
    number,
    opset_of,
    set_nodes,
    values_of,
)

logger = logging.getLogger(__name__)

_KEPT = frozenset({"Constant", "QuantizeLinear", "DequantizeLinear", "If", "Loop", "Scan", "SequenceMap"})
_RANDOM = frozenset(
    {"Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"}
)
_OF_SHAPES = frozenset({"Shape", "Size"})


def fold_constants(proto: ModelProto) -> int:
    """Fold nodes of the main graph with constant results, in place; return the number of folded nodes.

    Repeats while shape operators are left. A padding computed from a shape hides all later shapes until it is folded
    (each convolution of EnCodec has one).
    """
    total = 0
    while count := _fold_once(proto):
        total += count
        if all(node.op_type not in _OF_SHAPES for node in proto.graph.node):
            break
    return total


def _fold_once(proto: ModelProto) -> int:
    values = values_of(proto)
    nodes: list[NodeProto] = []
    opset = opset_of(proto)
    shown = {value.name for value in proto.graph.output}
    count = 0
    for node in proto.graph.node:
        results = _results(node, values, opset)
        if results is None:
            nodes.append(node)
            continue
        count += 1
        for name, array in zip(node.output, results, strict=True):
            values.constants[name] = array
            if name in shown:
                nodes.append(helper.make_node("Constant", [], [name], value=numpy_helper.from_array(array, name)))
            else:
                proto.graph.initializer.append(numpy_helper.from_array(array, name))
    set_nodes(proto.graph, nodes)
    drop_unused(proto)
    return count


def use_tensor_constants(proto: ModelProto) -> None:
    """Convert the constants of all graphs to tensors, in place: TVM does not read numbers and lists."""
    for node in all_nodes(proto.graph):
        value = constant_value(node) if node.op_type == "Constant" else None
        if value is not None and node.attribute[0].name != "value":
            del node.attribute[:]
            node.attribute.append(helper.make_attribute("value", value))


def drop_unused(proto: ModelProto) -> None:
    """Remove the nodes and weights of the main graph that no output depends on."""
    needed = {value.name for value in proto.graph.output}
    kept: list[NodeProto] = []
    for node in reversed(proto.graph.node):
        if not needed.isdisjoint(node.output):
            kept.append(node)
            needed.update(node.input)
            needed.update(name for attribute in node.attribute for name in names_in(attribute.g))
    set_nodes(proto.graph, kept[::-1])
    for index in reversed(range(len(proto.graph.initializer))):
        if proto.graph.initializer[index].name not in needed:
            del proto.graph.initializer[index]


def _results(node: NodeProto, values: Values, opset: int) -> list[Array] | None:
    """Return the values of a node's outputs; None if they are not constant or too large."""
    if node.domain not in ("", "ai.onnx") or node.op_type in _KEPT | _RANDOM or not node.output:
        return None
    if node.op_type in _OF_SHAPES:
        return _of_shape(node, values)
    if any(name and name not in values.constants for name in node.input) or not all(node.output):
        return None
    if any((values.shape(name) is None) or _size_bytes(name, values) > LARGE_BYTES for name in node.output):
        return None
    return _evaluated(node, values, opset)


def _of_shape(node: NodeProto, values: Values) -> list[Array] | None:
    shape = values.shape(node.input[0])
    if shape is None:
        return None
    if node.op_type == "Size":
        return [np.array(np.prod(shape, dtype="int64"), "int64")]
    end = number(node, "end", len(shape))
    return [np.array(shape[number(node, "start") : end], "int64")]


def _size_bytes(name: str, values: Values) -> int:
    shape, dtype = values.shape(name), values.dtype(name)
    return int(np.prod(shape or (), dtype="int64")) * (dtype.itemsize if dtype else 1)


def _evaluated(node: NodeProto, values: Values, opset: int) -> list[Array] | None:
    """Run one node. An operator that the reference lacks or refuses is kept."""
    from onnx.reference import ReferenceEvaluator

    names = list(dict.fromkeys(name for name in node.input if name))
    unknown = [helper.make_empty_tensor_value_info(name) for name in names]
    graph = helper.make_graph([node], "constant", unknown, list(map(helper.make_empty_tensor_value_info, node.output)))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    try:
        results = ReferenceEvaluator(model).run(None, {name: values.constants[name] for name in names})
    except Exception as error:  # noqa: BLE001 - its operators raise anything
        logger.debug("not folded", extra={"operator": node.op_type, "reason": str(error)})
        return None
    arrays = [np.asarray(result) for result in results]
    return None if any(array.dtype.kind not in "biuf" for array in arrays) else arrays
