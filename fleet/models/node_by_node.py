"""Runs an ONNX model one node at a time, so that constants can be changed once the preceding values are known.

Each node becomes a model of its own, run by ONNX Runtime where it is installed, else by the reference evaluator of the
`onnx` package: slow at pooling, but always there. One thread, so that sums keep their order. Values that no later node
reads are dropped.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, helper, numpy_helper

Array: TypeAlias = NDArray[np.generic]

_LARGEST_TOKEN = 8
"""Largest integer input: an index that small is valid in every table of a real model."""

_FATAL_ONLY = 4


class CannotRun(Exception):
    """A node that cannot be run: a custom operator, or a value that is not a tensor."""


class NodeByNode:
    """Values of a model's tensors after the nodes that have run."""

    def __init__(self, proto: ModelProto, inputs: Mapping[str, Array]) -> None:
        """Start with the model's inputs and its stored constants."""
        self._proto = proto
        self._kept = {tensor.name for tensor in proto.graph.initializer}
        self._last_reader = {
            name: index for index, node in enumerate(proto.graph.node) for name in names_read(node) if name
        }
        self.values: dict[str, Array] = {
            tensor.name: numpy_helper.to_array(tensor) for tensor in proto.graph.initializer
        }
        self.values.update(inputs)

    def outputs_of(self, node: NodeProto) -> dict[str, Array]:
        """Run one node on the current values, without changing them.

        Raises:
            CannotRun: it does not run on tensors, or nothing knows its operator.
        """
        names = list(dict.fromkeys(name for name in names_read(node) if name in self.values))
        feeds = {name: self.values[name] for name in names}
        results = _run(_model_of_one(self._proto, node, feeds), feeds)
        return dict(zip([name for name in node.output if name], results, strict=True))

    def advance(self, index: int) -> None:
        """Run node `index` of the graph and store its outputs; drop values without later readers.

        Raises:
            CannotRun: as `outputs_of`.
        """
        node = self._proto.graph.node[index]
        made = self.outputs_of(node)
        self.values.update({name: value for name, value in made.items() if name in self._last_reader})
        for name in names_read(node):
            if self._last_reader.get(name) == index and name not in self._kept:
                self.values.pop(name, None)


def example_inputs(proto: ModelProto, rng: np.random.Generator) -> dict[str, Array]:
    """Return an array for each input that is not stored: normal floats, small integers, all true."""
    stored = {tensor.name for tensor in proto.graph.initializer}
    found: dict[str, Array] = {}
    for value in proto.graph.input:
        if value.name in stored:
            continue
        tensor = value.type.tensor_type
        shape = tuple(max(dim.dim_value, 1) for dim in tensor.shape.dim)
        dtype = helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        if dtype.kind == "f":
            found[value.name] = rng.standard_normal(shape).astype(dtype)
        elif dtype.kind == "b":
            found[value.name] = np.ones(shape, dtype)
        else:
            found[value.name] = rng.integers(0, _LARGEST_TOKEN, shape, endpoint=True).astype(dtype)
    return found


def names_read(node: NodeProto) -> list[str]:
    """Return the names that a node reads, including those in its branches and loops."""
    names = list(node.input)
    for attribute in node.attribute:
        for graph in (*attribute.graphs, *([attribute.g] if attribute.HasField("g") else [])):
            names.extend(name for inner in graph.node for name in names_read(inner))
    return names


def _model_of_one(proto: ModelProto, node: NodeProto, feeds: Mapping[str, Array]) -> ModelProto:
    if not all(isinstance(value, np.ndarray) for value in feeds.values()):
        raise CannotRun(f"node {node.name!r} ({node.op_type}) reads a value that is no tensor")
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
        for name, value in feeds.items()
    ]
    outputs = [helper.make_empty_tensor_value_info(name) for name in node.output if name]
    return helper.make_model(
        helper.make_graph([node], "one", inputs, outputs),
        ir_version=proto.ir_version,
        opset_imports=proto.opset_import,
        functions=proto.functions,
    )


def _run(model: ModelProto, feeds: Mapping[str, Array]) -> list[Array]:
    try:
        if importlib.util.find_spec("onnxruntime") is None:
            from onnx.reference import ReferenceEvaluator

            return list(ReferenceEvaluator(model).run(None, dict(feeds)))
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.log_severity_level = _FATAL_ONLY
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        return list(session.run(None, dict(feeds)))
    except Exception as error:  # both raise any error of their operators
        node = model.graph.node[0]
        raise CannotRun(f"node {node.name!r} ({node.op_type}) does not run: {error}") from error
