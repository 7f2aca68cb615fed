"""Reads ONNX models: their inputs, with every shape known, and the bytes that both TVM and ONNX Runtime get.

TVM is not imported here. Shapes and random weights are written into the ONNX graph itself, so that whoever runs the
model, for tuning or as the reference, runs the same one.
"""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fleet.base.config import did_you_mean
from fleet.domain.measuring import TensorSpec
from fleet.errors import ImportFailed, InvalidRequest, NotFound
from fleet.workloads.random_weights import randomize_weights

if TYPE_CHECKING:
    import onnx

_BUNDLED = "backend/test/data/light"
_CONSTANT_WEIGHTS_IR_VERSION = 4
"""The first version that need not list every initializer as an input, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """An ONNX model with static shapes."""

    title: str
    """File name without its ending."""

    digest: str
    """ "sha256:<hex>" of `onnx_bytes`: file content, shapes and weights."""

    input_names: tuple[str, ...]
    inputs: tuple[TensorSpec, ...]
    """inputs[i] belongs to input_names[i]."""

    onnx_bytes: bytes
    """The serialised model, shapes and weights as used."""


def bundled_model(name: str = "squeezenet") -> Path:
    """Return the path of a model that the `onnx` package carries: "squeezenet", "resnet50", "shufflenet", ...

    Raises:
        NotFound: it carries no such model.
    """
    spec = importlib.util.find_spec("onnx")
    folders = list(spec.submodule_search_locations or ()) if spec else []
    known = {
        path.stem.removeprefix("light_"): path
        for folder in folders
        for path in sorted((Path(folder) / _BUNDLED).glob("light_*.onnx"))
    }
    if name not in known:
        hint = did_you_mean(name, known) if known else "; the package onnx is not installed"
        raise NotFound(f"the onnx package carries no model {name!r}{hint}")
    return known[name]


def load_model(
    path: Path | str, *, shapes: Mapping[str, tuple[int, ...]] | None = None, random_weights_seed: int | None = None
) -> Model:
    """Read an ONNX file.

    Args:
        shapes: shape by input name, for inputs with unknown dimensions.
        random_weights_seed: replace the weights by random ones; None keeps them.

    Raises:
        ImportFailed: there is no such file, it is not an ONNX model, or an input has an unknown shape.
        InvalidRequest: a shape is for an input that does not exist, or does not fit it.
    """
    path = Path(path)
    proto = _parse(path)
    _keep_weights_constant(proto)
    inputs = list(proto.graph.input)
    _set_shapes(proto, inputs, shapes or {})
    specs = tuple(_spec(value) for value in inputs)
    if random_weights_seed is not None:
        randomize_weights(proto, random_weights_seed)
    content = proto.SerializeToString(deterministic=True)
    return Model(
        title=path.stem,
        digest=f"sha256:{hashlib.sha256(content).hexdigest()}",
        input_names=tuple(value.name for value in inputs),
        inputs=specs,
        onnx_bytes=content,
    )


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
    return proto


def _keep_weights_constant(proto: onnx.ModelProto) -> None:
    """Drop initializers from the inputs, where old files list them; ONNX Runtime would not treat them as constants."""
    initialized = {tensor.name for tensor in proto.graph.initializer}
    inputs = [value for value in proto.graph.input if value.name not in initialized]
    del proto.graph.input[:]
    proto.graph.input.extend(inputs)
    proto.ir_version = max(proto.ir_version, _CONSTANT_WEIGHTS_IR_VERSION)


def _set_shapes(
    proto: onnx.ModelProto, inputs: list[onnx.ValueInfoProto], shapes: Mapping[str, tuple[int, ...]]
) -> None:
    by_name = {value.name: value for value in inputs}
    for name, shape in shapes.items():
        if name not in by_name:
            raise InvalidRequest(f"the model has no input {name!r}{did_you_mean(name, by_name)}")
        _set_shape(by_name[name], shape)
    if shapes:
        del proto.graph.value_info[:]  # inferred for the old shapes
    unknown = {value.name: _unknown_dims(value) for value in inputs}
    problems = [f"{name!r} has {', '.join(dims)}" for name, dims in unknown.items() if dims]
    if problems:
        first = next(name for name, dims in unknown.items() if dims)
        advice = f"Give all dimensions, like --shape {first}={_example(by_name[first])}"
        raise ImportFailed(f"inputs of unknown shape: {'; '.join(problems)}. {advice}")


def _set_shape(value: onnx.ValueInfoProto, shape: tuple[int, ...]) -> None:
    if any(size < 1 for size in shape):
        raise InvalidRequest(f"the shape {shape} of input {value.name!r} has a dimension below 1")
    dims = value.type.tensor_type.shape.dim
    if value.type.tensor_type.HasField("shape") and len(dims) != len(shape):
        raise InvalidRequest(f"input {value.name!r} has {len(dims)} dimensions, the shape {shape} has {len(shape)}")
    for index, size in enumerate(shape):
        known = dims[index].dim_value if index < len(dims) else 0
        if known and known != size:
            raise InvalidRequest(f"dimension {index} of input {value.name!r} is {known} in the model, not {size}")
        (dims[index] if index < len(dims) else dims.add()).dim_value = size


def _unknown_dims(value: onnx.ValueInfoProto) -> list[str]:
    """Return the unknown dimensions of an input in words, [] when its shape is known."""
    tensor = value.type.tensor_type
    if not tensor.HasField("shape"):
        return ["no shape at all"]
    return [
        f"dimension {index} = {dim.dim_param or '?'}" for index, dim in enumerate(tensor.shape.dim) if dim.dim_value < 1
    ]


def _example(value: onnx.ValueInfoProto) -> str:
    dims = value.type.tensor_type.shape.dim
    return ",".join(str(dim.dim_value or 1) for dim in dims) or "1,3,224,224"


def _spec(value: onnx.ValueInfoProto) -> TensorSpec:
    import onnx

    tensor = value.type.tensor_type
    dtype = str(onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type))
    return TensorSpec(tuple(dim.dim_value for dim in tensor.shape.dim), dtype)
