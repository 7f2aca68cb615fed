"""Evaluation of ONNX models in float64, to estimate the rounding error of answers in float32.

Weights, inputs and constants become float64. ONNX Runtime runs the result if it has float64 kernels. It has none for
convolutions and some other operators; then onnx's reference implementation runs it.
"""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Iterator, Sequence
from typing import TypeAlias

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import (
    AttributeProto,
    FunctionProto,
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    defs,
    helper,
    numpy_helper,
)

from fleet.models.importing.value import Model, ModelFormat

logger = logging.getLogger(__name__)

Array: TypeAlias = NDArray[np.generic]

_MOST_BYTES = 900_000_000
"""Maximum size of a model: twice this size has to fit into one protobuf message."""

_RANDOM = frozenset({"Bernoulli", "Dropout", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform"})
_FLOAT_ONLY = "tensor(float)"
_TYPE_ATTRIBUTES = frozenset({"to", "dtype"})


def evaluate_in_float64(model: Model, inputs: Sequence[Array]) -> tuple[Array, ...] | None:
    """Return a model's outputs in float64, or None if it cannot be evaluated.

    Args:
        inputs: one array per input of the model, in order.
    """
    if model.format is not ModelFormat.ONNX or len(model.content) > _MOST_BYTES:
        return None
    try:
        wide = widened(onnx.load_from_string(model.content))
        feeds = {
            name: np.asarray(given).astype(np.float64) if given.dtype == np.float32 else np.asarray(given)
            for name, given in zip(model.input_names, inputs, strict=True)
        }
        return _run(wide, feeds)
    except Exception as error:  # noqa: BLE001 - operators of the reference raise errors of any class
        logger.info("not evaluated in float64", extra={"model": model.title, "reason": str(error)})
        return None


def widened(model: ModelProto) -> ModelProto:
    """Return a copy of a model with float64 in place of float32.

    Raises:
        ValueError: the model draws random numbers.
    """
    wide = ModelProto()
    wide.CopyFrom(model)
    versions = {entry.domain: entry.version for entry in wide.opset_import}
    _widen(wide.graph, versions)
    for function in wide.functions:
        _widen(function, {entry.domain: entry.version for entry in function.opset_import})
    return wide


def _run(wide: ModelProto, feeds: dict[str, Array]) -> tuple[Array, ...]:
    if importlib.util.find_spec("onnxruntime") is not None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.log_severity_level = 4
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
        try:
            session = onnxruntime.InferenceSession(
                wide.SerializeToString(), options, providers=["CPUExecutionProvider"]
            )
            return tuple(map(np.asarray, session.run(None, feeds)))
        except Exception as error:  # noqa: BLE001 - its errors share no other base class
            logger.debug("no kernels in float64", extra={"reason": str(error)})
    from onnx.reference import ReferenceEvaluator

    return tuple(map(np.asarray, ReferenceEvaluator(wide).run(None, feeds)))


def _widen(graph: GraphProto | FunctionProto, versions: dict[str, int]) -> None:
    if isinstance(graph, GraphProto):
        for tensor in graph.initializer:
            _widen_tensor(tensor)
        for info in (*graph.input, *graph.output):
            if info.type.tensor_type.elem_type == TensorProto.FLOAT:
                info.type.tensor_type.elem_type = TensorProto.DOUBLE
    del graph.value_info[:]
    nodes = [one for node in graph.node for one in _widen_node(node, versions)]
    del graph.node[:]
    graph.node.extend(nodes)


def _widen_node(node: NodeProto, versions: dict[str, int]) -> Iterator[NodeProto]:
    """Yield the node, with casts at the inputs and outputs that are float32 by the operator's definition."""
    if node.op_type in _RANDOM:
        raise ValueError(f"{node.op_type} is not evaluated in float64")
    for attribute in node.attribute:
        if attribute.type == AttributeProto.TENSOR:
            _widen_tensor(attribute.t)
        elif attribute.type == AttributeProto.GRAPH:
            _widen(attribute.g, versions)
        elif attribute.name in _TYPE_ATTRIBUTES and attribute.i == TensorProto.FLOAT:
            attribute.i = TensorProto.DOUBLE
    _widen_constant(node)
    inputs, outputs = _float_only(node, versions)
    after = []
    for at in inputs:
        cast = f"{node.input[at]}/float32/{node.output[0]}/{at}"
        yield helper.make_node("Cast", [node.input[at]], [cast], to=TensorProto.FLOAT)
        node.input[at] = cast
    for at in outputs:
        wide = node.output[at]
        node.output[at] = f"{wide}/float32"
        after.append(helper.make_node("Cast", [node.output[at]], [wide], to=TensorProto.DOUBLE))
    yield node
    yield from after


def _widen_tensor(tensor: TensorProto) -> None:
    if tensor.data_type == TensorProto.FLOAT:
        wide = numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float64), tensor.name)
        tensor.CopyFrom(wide)


def _widen_constant(node: NodeProto) -> None:
    """Replace constants that are float32 by their attribute or by default with float64 tensors."""
    if node.op_type == "ConstantOfShape" and not node.attribute:
        node.attribute.append(helper.make_attribute("value", numpy_helper.from_array(np.zeros(1))))
    given = next((one for one in node.attribute if one.name in ("value_float", "value_floats")), None)
    if node.op_type == "Constant" and given is not None:
        values = np.asarray(given.f if given.name == "value_float" else list(given.floats), np.float64)
        node.attribute.remove(given)
        node.attribute.append(helper.make_attribute("value", numpy_helper.from_array(values)))


def _float_only(node: NodeProto, versions: dict[str, int]) -> tuple[list[int], list[int]]:
    """Return the indices of inputs and outputs that an operator supports in float32 only."""
    try:
        schema = defs.get_schema(node.op_type, versions.get(node.domain, 1), node.domain)
    except defs.SchemaError:  # an operator of another domain, or a function of the model
        return [], []
    formal = [list(schema.inputs), list(schema.outputs)]
    return tuple(  # type: ignore[return-value]
        [
            at
            for at, name in enumerate(names)
            if name and known and known[min(at, len(known) - 1)].type_str == _FLOAT_ONLY
        ]
        for names, known in zip((node.input, node.output), formal, strict=True)
    )
