"""Converts between numpy arrays and the fleet's tensors. Only this part of the client needs numpy: import it lazily.

An argument is an array, a `TensorSpec` (allocated on the device: zeroed when it is an output, else filled with random
numbers), a (shape, dtype) pair meaning the same, or a plain int or float.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypeAlias

from fleet.domain.measuring import Argument, Tensor, TensorSpec
from fleet.errors import InvalidRequest
from fleet.wire.rpc import MAX_MESSAGE_BYTES

if TYPE_CHECKING:
    import numpy as np

    Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
    PlainArgument: TypeAlias = TensorSpec | int | float | Array

_ENVELOPE_BYTES = 1024 * 1024
"""Room for everything in a message that is not array content."""


def as_argument(value: object) -> PlainArgument:
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


def spec_of(argument: PlainArgument) -> TensorSpec | None:
    """Return shape and dtype of a plain argument; None for a number."""
    if isinstance(argument, TensorSpec):
        return argument
    if isinstance(argument, (int, float)):
        return None
    return TensorSpec(tuple(argument.shape), argument.dtype.name)


def sendable(values: Iterable[object]) -> tuple[Argument, ...]:
    """Convert arguments to the values that are sent.

    Raises:
        InvalidRequest: one is none of the forms above, or together they are too large for one message.
    """
    arguments = [as_argument(value) for value in values]
    check_size(sum(getattr(argument, "nbytes", 0) for argument in arguments))
    return tuple(
        argument if isinstance(argument, (TensorSpec, int, float)) else tensor_of(argument) for argument in arguments
    )


def check_size(size_bytes: int) -> None:
    """Raise InvalidRequest if arguments of this total size do not fit one message."""
    if size_bytes > MAX_MESSAGE_BYTES - _ENVELOPE_BYTES:
        raise InvalidRequest(
            f"the arguments are {size_bytes / 2**20:.0f} MiB together, one call takes "
            f"{MAX_MESSAGE_BYTES // 2**20} MiB; have large ones filled on the device: pass (shape, dtype) pairs"
        )


def tensor_of(array: Array) -> Tensor:
    """Return an array as row-major little-endian bytes.

    Raises:
        InvalidRequest: its elements are not numbers.
    """
    if array.dtype.kind not in "biufcV" or array.dtype.names:
        raise InvalidRequest(f"cannot send an array of dtype {array.dtype}; only numbers and bools travel")
    array = array.astype(array.dtype.newbyteorder("<"), copy=False)
    return Tensor(TensorSpec(tuple(array.shape), array.dtype.name), array.tobytes())


def array_of(tensor: Tensor) -> Array:
    """Return a writable array.

    Raises:
        InvalidRequest: it has more or fewer bytes than its shape and dtype say.
    """
    import numpy as np

    spec, dtype = tensor.spec, numpy_dtype(tensor.spec.dtype)
    wanted_bytes = math.prod(spec.shape) * dtype.itemsize
    if len(tensor.content) != wanted_bytes:
        raise InvalidRequest(f"a {spec} tensor has {wanted_bytes} bytes, {len(tensor.content)} came")
    return np.frombuffer(tensor.content, dtype).reshape(spec.shape).copy()


def numpy_dtype(name: str) -> np.dtype[Any]:
    """Return numpy's dtype for a DLPack name; ml_dtypes has those that numpy lacks (bfloat16, float8_*).

    Raises:
        InvalidRequest: the name is unknown, or only ml_dtypes might know it and is not installed.
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
