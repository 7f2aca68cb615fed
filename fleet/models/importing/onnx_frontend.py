"""TVM's ONNX frontend, with one more operator: recurrent layers, which become calls of their programs."""

from __future__ import annotations

import functools
import json
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fleet.models.onnx_rewrites.graph import opset_of
from fleet.models.onnx_rewrites.recurrent_joined import LAYER, OPERATOR
from fleet.models.recurrent_layer import Cell, Recurrence
from fleet.models.recurrent_program import recurrence_program

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto
    from tvm.ir import IRModule
    from tvm.relax import BlockBuilder, Expr


def to_relax(proto: ModelProto) -> IRModule:
    """Return a model as `from_onnx` of TVM's frontend does. Doubts of ONNX's checker are warnings."""
    import onnx

    try:
        onnx.checker.check_model(proto)
    except onnx.checker.ValidationError as error:
        warnings.warn(str(error), stacklevel=1)
    importer = _importer()(None, "float32", keep_params_in_input=False, sanitize=True)
    return importer.from_onnx(proto.graph, opset_of(proto))


@functools.cache
def _importer() -> type[Any]:
    from tvm.relax.frontend.onnx.onnx_frontend import ONNXGraphImporter

    class Importer(ONNXGraphImporter):  # type: ignore[misc]
        """Knows our operator, too."""

        def _check_for_unsupported_ops(self, graph: GraphProto) -> None:
            others = type(graph)()
            others.node.extend(node for node in graph.node if node.op_type != OPERATOR)
            super()._check_for_unsupported_ops(others)

        def _convert_operator(self, op_name: str, inputs: Sequence[Expr], attrs: Mapping[str, Any], opset: int) -> Expr:
            if op_name != OPERATOR:
                return super()._convert_operator(op_name, inputs, attrs, opset)
            return _call(self.bb, inputs, json.loads(attrs[LAYER]))

    return Importer


def _call(builder: BlockBuilder, inputs: Sequence[Expr], facts: dict[str, Any]) -> Expr:
    from tvm import relax

    lists = {name: tuple(facts[name]) for name in ("is_reverse", "activations")}
    layer = Recurrence(**{**facts, **lists, "cell": Cell(facts["cell"])})
    program = builder.add_func(recurrence_program(layer), str(layer.cell))
    types = [relax.TensorType(shape, "float32") for shape in layer.results]
    return builder.emit(relax.call_tir(program, relax.Tuple(list(inputs)), types))
