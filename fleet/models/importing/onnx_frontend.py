"""TVM's ONNX frontend with an additional operator for recurrent layers, converted to a call of their program."""

from __future__ import annotations

import contextlib
import functools
import json
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import onnx
from onnx import GraphProto, ModelProto, NodeProto

from fleet.models.onnx_rewrites.graph import opset_of
from fleet.models.onnx_rewrites.recurrent_joined import LAYER, OPERATOR
from fleet.models.recurrent_layer import Cell, Recurrence
from fleet.models.recurrent_program import recurrence_program

if TYPE_CHECKING:
    from tvm.ir import IRModule
    from tvm.relax import BlockBuilder, Expr


def to_relax(proto: ModelProto) -> IRModule:
    """Convert a model like `from_onnx` of TVM's frontend. Errors of ONNX's checker become warnings."""
    try:
        onnx.checker.check_model(proto)
    except onnx.checker.ValidationError as error:
        warnings.warn(str(error), stacklevel=1)
    importer = _importer()(None, "float32", keep_params_in_input=False, sanitize=True)
    try:
        return importer.from_onnx(proto.graph, opset_of(proto))
    except Exception:  # cleanup only; raised again
        importer.end_blocks()
        raise


class NodeRefused(Exception):
    """TVM cannot convert a node.

    Attributes:
        node: description of the node: its name or first output, its operator, and the types of its inputs.
    """

    def __init__(self, node: str) -> None:
        super().__init__(node)
        self.node = node


@functools.cache
def _importer() -> type[Any]:
    from tvm.relax.frontend.onnx.onnx_frontend import ONNXGraphImporter

    class Importer(ONNXGraphImporter):  # type: ignore[misc]
        """Importer with our additional operator, which names the node of a failed conversion."""

        _node: NodeProto

        def _parse_value_proto(self, value_proto: Any) -> str:
            if hasattr(value_proto, "op_type"):  # called for each node, before it is converted
                self._node = value_proto
            return str(super()._parse_value_proto(value_proto))

        def end_blocks(self) -> None:
            """Close blocks that a failed import left open, which TVM would warn about."""
            with contextlib.suppress(RuntimeError):  # raised if no block is open
                while True:
                    self.bb._end_block()  # noqa: SLF001 - TVM's frontend has no other way

        def _check_for_unsupported_ops(self, graph: GraphProto) -> None:
            others = type(graph)()
            others.node.extend(node for node in graph.node if node.op_type != OPERATOR)
            super()._check_for_unsupported_ops(others)

        def _convert_operator(self, op_name: str, inputs: Sequence[Expr], attrs: Mapping[str, Any], opset: int) -> Expr:
            if op_name == OPERATOR:
                return _call(self.bb, inputs, json.loads(attrs[LAYER]))
            try:
                return super()._convert_operator(op_name, inputs, attrs, opset)
            except NodeRefused:  # in a subgraph
                raise
            except Exception as error:  # TVM's frontends raise many classes
                raise NodeRefused(_described(self._node, inputs)) from error

    return Importer


def _described(node: NodeProto, inputs: Sequence[Expr | None]) -> str:
    name = node.name or node.output[0]
    types = ", ".join(_type_text(given) for given in inputs if given is not None)
    return f"node {name!r} ({node.op_type} of {types})" if types else f"node {name!r} ({node.op_type})"


def _type_text(given: Expr) -> str:
    found = getattr(given, "ty", None)
    dtype, shape = getattr(found, "dtype", "a shape"), getattr(getattr(found, "shape", None), "values", None)
    sizes = ", ".join(str(getattr(size, "value", size)) for size in shape or ())
    return f"{dtype}[{sizes}]" if shape is not None else str(dtype)


def _call(builder: BlockBuilder, inputs: Sequence[Expr], facts: dict[str, Any]) -> Expr:
    from tvm import relax

    lists = {name: tuple(facts[name]) for name in ("is_reverse", "activations")}
    layer = Recurrence(**{**facts, **lists, "cell": Cell(facts["cell"])})
    program = builder.add_func(recurrence_program(layer), str(layer.cell))
    types = [relax.TensorType(shape, "float32") for shape in layer.results]
    return builder.emit(relax.call_tir(program, relax.Tuple(list(inputs)), types))
