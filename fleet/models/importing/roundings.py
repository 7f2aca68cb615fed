"""Counts the roundings of a quantized ONNX model, which bound the difference of two correct answers."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onnx import GraphProto

_ROUNDING = frozenset(
    {"DynamicQuantizeLinear", "QuantizeLinear", "QLinearAdd", "QLinearConv", "QLinearMatMul", "QLinearMul"}
)


def count_roundings(graph: GraphProto) -> int:
    """Return the largest number of consecutive roundings to codes on the way to an output; 0 if it is float.

    Args:
        graph: its nodes in an order in which they can run, as ONNX demands.
    """
    behind: dict[str, int] = {}
    for node in graph.node:
        before = max((behind.get(name, 0) for name in node.input), default=0)
        behind |= dict.fromkeys(node.output, before + (node.op_type in _ROUNDING))
    return max((behind.get(value.name, 0) for value in graph.output), default=0)
