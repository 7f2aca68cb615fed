"""Arrays to messages and back. The only place of the client that needs numpy, imported when first used.

An argument is an array, a `TensorSpec` (allocated on the device: zeroed when it is an output, else filled with random
numbers), a (shape, dtype) pair meaning the same, or a plain int or float.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from fleet import wire
from fleet.errors import InvalidRequest
from fleet.measuring import TensorSpec
from fleet.rpc import MAX_MESSAGE_BYTES
from fleet.v1 import tensor_pb2

if TYPE_CHECKING:
    import numpy as np

    Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]

_ENVELOPE_BYTES = 1024 * 1024
"""Room for everything in a message that is not array content."""


def as_argument(value: object) -> Any:
    """Return an argument in one of its plain forms: TensorSpec, int, float, or numpy array.

    Raises:
        InvalidRequest: it is none of the forms above.
    """
    if isinstance(value, (TensorSpec, bool, int, float)):
        return int(value) if isinstance(value, bool) else value
    if isinstance(value, tuple) and len(value) == 2 and isinstance(value[1], str):
        return TensorSpec(tuple(map(int, value[0])), value[1])
    if not hasattr(value, "__array__") and not hasattr(value, "__dlpack__"):
        raise InvalidRequest(
            f"cannot pass a {type(value).__name__}; pass an array, a TensorSpec, a (shape, dtype) pair or a number"
        )
    import numpy as np

    return np.asarray(value)


def spec_of(argument: Any) -> TensorSpec | None:
    """Return shape and dtype of a plain argument; None for a number."""
    if isinstance(argument, TensorSpec):
        return argument
    if isinstance(argument, (int, float)):
        return None
    return TensorSpec(tuple(argument.shape), argument.dtype.name)


def argument_to_proto(argument: Any) -> tensor_pb2.Argument:
    """Return the message of a plain argument, see `as_argument`."""
    if isinstance(argument, TensorSpec):
        return wire.argument_to_proto(argument)
    if isinstance(argument, int):
        return tensor_pb2.Argument(int_value=argument)
    if isinstance(argument, float):
        return tensor_pb2.Argument(float_value=argument)
    return tensor_pb2.Argument(tensor=tensor_to_proto(argument))


def arguments_to_proto(arguments: Sequence[Any]) -> list[tensor_pb2.Argument]:
    """Return the messages of plain arguments.

    Raises:
        InvalidRequest: together they are too large for one message.
    """
    size_bytes = sum(getattr(argument, "nbytes", 0) for argument in arguments)
    if size_bytes > MAX_MESSAGE_BYTES - _ENVELOPE_BYTES:
        raise InvalidRequest(
            f"the arguments are {size_bytes / 2**20:.0f} MiB together, one call takes "
            f"{MAX_MESSAGE_BYTES // 2**20} MiB; have large ones filled on the device: pass (shape, dtype) pairs"
        )
    return [argument_to_proto(argument) for argument in arguments]


def tensor_to_proto(array: Array) -> tensor_pb2.Tensor:
    """Return an array as row-major little-endian bytes."""
    if array.dtype.kind not in "biufcV" or array.dtype.names:
        raise InvalidRequest(f"cannot send an array of dtype {array.dtype}; only numbers and bools travel")
    array = array.astype(array.dtype.newbyteorder("<"), copy=False)
    spec = tensor_pb2.TensorSpec(shape=array.shape, dtype=array.dtype.name)
    return tensor_pb2.Tensor(spec=spec, content=array.tobytes())


def tensor_from_proto(message: tensor_pb2.Tensor) -> Array:
    """Return a writable array."""
    import numpy as np

    dtype = numpy_dtype(message.spec.dtype)
    wanted_bytes = math.prod(message.spec.shape) * dtype.itemsize
    if len(message.content) != wanted_bytes:
        raise InvalidRequest(
            f"a {message.spec.dtype}{list(message.spec.shape)} tensor has {wanted_bytes} bytes, "
            f"{len(message.content)} came"
        )
    return np.frombuffer(message.content, dtype).reshape(tuple(message.spec.shape)).copy()


def numpy_dtype(name: str) -> np.dtype[Any]:
    """Return numpy's dtype of a DLPack name, from ml_dtypes where numpy has none (bfloat16, float8_*).

    Raises:
        InvalidRequest: nobody knows the name, or ml_dtypes would and is not installed.
    """
    import numpy as np

    try:
        return np.dtype(name)
    except TypeError:
        pass
    try:
        import ml_dtypes
    except ImportError:
        raise InvalidRequest(f"numpy has no dtype {name!r}; with the package ml_dtypes installed it may") from None
    known = getattr(ml_dtypes, name, None)
    if known is None:
        raise InvalidRequest(f"there is no dtype {name!r} in numpy or ml_dtypes")
    dtype: np.dtype[Any] = np.dtype(known)
    return dtype
