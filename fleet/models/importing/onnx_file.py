"""Reads ONNX models: their inputs with static shapes, and the content for both TVM and ONNX Runtime.

TVM is imported only by `import_onnx`. Shapes and random weights are written into the ONNX graph itself, so that tuning
and reference run the same model.
"""

from __future__ import annotations

import contextlib
import io
import math
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fleet.base.digests import digest_of
from fleet.domain.measuring import TensorSpec
from fleet.errors import ImportFailed
from fleet.models.importing.complaint import complaint
from fleet.models.importing.external_data import weight_files
from fleet.models.importing.importer import Frontend, Importer, Reference
from fleet.models.importing.roundings import count_roundings
from fleet.models.importing.shapes import OpenShape, Shapes, close_shapes
from fleet.models.importing.value import Model, ModelFormat

if TYPE_CHECKING:
    import onnx
    from tvm.ir import IRModule

_ERRORS_ONLY = 3
"""Severity from which ONNX Runtime writes to its log."""

_PACKED = frozenset({"INT2", "UINT2", "INT4", "UINT4", "FLOAT4E2M1"})
"""Types that are packed, several values to a byte."""

_CONSTANT_WEIGHTS_IR_VERSION = 4
"""The first version that need not list every initializer as an input, too."""


def read_onnx(
    path: Path, shape_sets: Sequence[Shapes], batch_size: int | None, random_weights_seed: int | None
) -> list[Model]:
    """Read an ONNX file, for each set of shapes; see `fleet.models.model.load_model`."""
    return onnx_models(path.stem, _parse(path), shape_sets, batch_size, random_weights_seed)


def onnx_models(
    title: str,
    proto: onnx.ModelProto,
    shape_sets: Sequence[Shapes],
    batch_size: int | None,
    random_weights_seed: int | None,
) -> list[Model]:
    """Return an ONNX model for each set of shapes."""
    from fleet.models.random_weights import randomize_weights

    _keep_weights_constant(proto)
    found = {value.name: _open_shape(value) for value in proto.graph.input}
    models: list[Model] = []
    for shapes in shape_sets:
        specs = _set_shapes(proto, found, close_shapes(found, shapes, batch_size))
        if random_weights_seed is not None and not models:
            randomize_weights(proto, random_weights_seed)  # all sets of shapes use the weights that suit the first
        models.append(_model(title, proto, specs))
    return models


def _model(title: str, proto: onnx.ModelProto, specs: tuple[TensorSpec, ...]) -> Model:
    content = proto.SerializeToString(deterministic=True)
    return Model(
        title=title,
        format=ModelFormat.ONNX,
        digest=digest_of(content),
        input_names=tuple(value.name for value in proto.graph.input),
        inputs=specs,
        output_names=tuple(value.name for value in proto.graph.output),
        stored=content,
        roundings=count_roundings(proto.graph),
    )


def import_onnx(model: Model, *, unrolls: bool = False) -> IRModule:
    """Return the model as Relax functions, after rewriting operators that TVM's frontend lacks.

    Args:
        unrolls: see `fleet.models.model.import_model`.

    Raises:
        ImportFailed: an operator that TVM cannot import.
    """
    import onnx

    from fleet.models.importing.onnx_frontend import to_relax
    from fleet.models.onnx_rewrites.prepare import prepared

    proto = prepared(onnx.load_from_string(model.content), unrolls=unrolls)
    # warnings of ONNX's checker, after many of which TVM continues
    with warnings.catch_warnings(record=True) as doubts:
        try:
            with contextlib.redirect_stdout(io.StringIO()):  # TVM prints operators that it cannot convert to our stdout
                return to_relax(proto)
        except KeyError as error:  # an undefined name; the checker's error has the details
            said = " ".join(str(doubts[0].message).split()) if doubts else str(error)
            raise ImportFailed(f"TVM cannot import the model: {said}") from error
        except Exception as error:  # TVM's frontends raise many classes
            raise ImportFailed(_explain(proto, error)) from error


def _parse(path: Path) -> onnx.ModelProto:
    import onnx
    from google.protobuf.message import DecodeError

    try:
        proto = onnx.load(str(path))
    except OSError as error:
        raise ImportFailed(f"cannot read {path}: {error.strerror or error}") from error
    except (DecodeError, ValueError, onnx.checker.ValidationError) as error:
        raise ImportFailed(f"{path} is no ONNX model: {error}") from error
    if not proto.graph.node:
        raise ImportFailed(f"{path} is no ONNX model: its graph has no node")
    if not proto.graph.output:
        raise ImportFailed(f"{path} computes nothing: its graph has no output")
    if any(isinstance(text, bytes) for text in _names(proto.graph)):
        raise ImportFailed(f"{path} is no ONNX model: names in it are not UTF-8")
    for tensor in proto.graph.initializer:
        _check_size(path, tensor)
    _check_versions(path, proto)
    _check_names(path, proto.graph)
    return proto


def _check_versions(path: Path, proto: onnx.ModelProto) -> None:
    """Refuse a file of a newer format: its operators may have other semantics."""
    import onnx

    newest = onnx.defs.onnx_opset_version()
    opset = max((one.version for one in proto.opset_import if one.domain in ("", "ai.onnx")), default=1)
    for name, found, known in (("IR version", proto.ir_version, int(onnx.IR_VERSION)), ("opset", opset, newest)):
        if found > known:
            raise ImportFailed(
                f"{path} has {name} {found}, and the installed package onnx {onnx.__version__} knows {known}; update "
                "onnx, or export the model for an earlier one"
            )


def _check_names(path: Path, graph: onnx.GraphProto) -> None:
    """Refuse duplicate value names, which readers resolve differently."""
    given = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
    for node in graph.node:
        for name in filter(None, node.output):
            if name in given:
                raise ImportFailed(f"{path} is no ONNX model: {name!r} is written twice, again by node {node.name!r}")
            given.add(name)


def _check_size(path: Path, tensor: onnx.TensorProto) -> None:
    """Refuse a weight of the wrong size, on which numpy would fail much later."""
    import onnx

    with contextlib.suppress(KeyError, ValueError, TypeError):  # of an unknown type, which is reported later
        if not tensor.HasField("raw_data") or onnx.TensorProto.DataType.Name(tensor.data_type) in _PACKED:
            return
        wanted = math.prod(tensor.dims) * onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize
        if len(tensor.raw_data) != wanted:
            raise ImportFailed(
                f"{path} is no ONNX model: its tensor {tensor.name!r} has {len(tensor.raw_data)} bytes, not {wanted}"
            )


def _names(graph: onnx.GraphProto) -> Iterator[str]:
    """Yield all names in a graph; generated protobuf code returns names that are not UTF-8 as bytes."""
    for value in (*graph.input, *graph.output):
        yield value.name
        yield from (dim.dim_param for dim in value.type.tensor_type.shape.dim)
    for node in graph.node:
        yield from (node.name, node.op_type, *node.input, *node.output)
    yield from (tensor.name for tensor in graph.initializer)


def _keep_weights_constant(proto: onnx.ModelProto) -> None:
    """Remove initializers from the inputs, where old files list them; ONNX Runtime would not treat them as
    constants.
    """
    initialized = {tensor.name for tensor in proto.graph.initializer}
    inputs = [value for value in proto.graph.input if value.name not in initialized]
    del proto.graph.input[:]
    proto.graph.input.extend(inputs)
    proto.ir_version = max(proto.ir_version, _CONSTANT_WEIGHTS_IR_VERSION)


def _set_shapes(proto: onnx.ModelProto, found: Mapping[str, OpenShape], closed: Shapes) -> tuple[TensorSpec, ...]:
    """Set the shape of every input, and drop the shapes that were inferred from the file's."""
    if closed != found:
        del proto.graph.value_info[:]
    for value in proto.graph.input:
        del value.type.tensor_type.shape.dim[:]
        for size in closed[value.name]:
            value.type.tensor_type.shape.dim.add().dim_value = size
    return tuple(map(_spec, proto.graph.input))


def _open_shape(value: onnx.ValueInfoProto) -> OpenShape:
    """Return a shape as in the file. A size of 0 means an open dimension, as some exporters write it."""
    tensor = value.type.tensor_type
    if not tensor.HasField("shape"):
        return None
    return tuple(dim.dim_value if dim.dim_value > 0 else dim.dim_param for dim in tensor.shape.dim)


def _spec(value: onnx.ValueInfoProto) -> TensorSpec:
    import onnx

    tensor = value.type.tensor_type
    if tensor.elem_type == onnx.TensorProto.STRING:
        raise ImportFailed(f"input {value.name!r} holds strings, but TVM computes with numbers only")
    try:
        dtype = str(onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type))
    except (KeyError, ValueError, TypeError) as error:
        raise ImportFailed(f"input {value.name!r} has elements of the unknown type {tensor.elem_type}") from error
    return TensorSpec(tuple(dim.dim_value for dim in tensor.shape.dim), dtype)


def _explain(proto: onnx.ModelProto, error: Exception) -> str:
    """Return the operators and nodes of the model that TVM cannot import, as text."""
    from fleet.models.importing.onnx_frontend import NodeRefused

    if isinstance(error, NodeRefused) and error.__cause__ is not None:
        return f"TVM cannot import {error.node}: {complaint(error.__cause__)}"
    said = complaint(error)
    words = set(re.findall(r"\w+", said))
    nodes = {node.op_type: node.name or node.output[0] for node in proto.graph.node if node.op_type in words}
    if not nodes or "not supported" not in said:
        return f"TVM cannot import the model: {said}"
    named = ", ".join(f"{op_type} (node {name!r})" for op_type, name in sorted(nodes.items()))
    return f"TVM cannot import these operators: {named}"


def onnx_runner(
    model: Model, inputs: Sequence[NDArray[np.generic]], threads: int
) -> Callable[[], tuple[NDArray[np.generic], ...]]:
    """Return a function that runs the model in ONNX Runtime and returns its outputs."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = _ERRORS_ONLY
    feeds = dict(zip(model.input_names, inputs, strict=True))
    session = onnxruntime.InferenceSession(model.content, options, providers=["CPUExecutionProvider"])
    return lambda: tuple(session.run(None, feeds))


def _with_weights(path: Path) -> list[Path]:
    weights = weight_files(path) if path.is_file() else []  # no device or pipe is read here
    return [path, *(path.parent / name for name in weights)]


ONNX = Importer(
    forms=("*.onnx",),
    suffix=".onnx",
    read=read_onnx,
    files=_with_weights,
    frontend=Frontend(
        format=ModelFormat.ONNX,
        to_relax=import_onnx,
        reference=Reference(engine="onnxruntime", prepare=onnx_runner),
    ),
)
