"""Memory for a model's inputs and outputs, in this process or on a GPU."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fleet.errors import ArtifactRefused
from fleet.runtime.manifest import TensorType

if TYPE_CHECKING:
    import tvm_ffi

Array: TypeAlias = NDArray[Any]

_ALIGNMENT_BYTES = 64
"""Compiled code loads whole vectors from its arguments: it expects the alignment of TVM's own allocator."""

_LARGE_BYTES = 64 * 1024
"""From here on, looking whether an array need not be copied is worth its 10 us."""


class Staged(Protocol):
    """Memory of one input of a model."""

    dtype: np.dtype[Any]

    def tensor_of(self, array: Array) -> tvm_ffi.Tensor:
        """Return an array in the form that the model takes."""


def check_types(types: Iterable[TensorType]) -> None:
    """Check that numpy has the types of a model's inputs and outputs.

    Raises:
        ArtifactRefused: one is of another type, as bfloat16 is.
    """
    for wanted in types:
        try:
            np.empty(0, wanted.dtype).__dlpack__()
        except (TypeError, BufferError) as error:
            raise ArtifactRefused(
                f"{wanted.name!r} is {wanted.dtype}, which numpy does not have; let the model cast it, or use C"
            ) from error


def staged(wanted: TensorType, device: tvm_ffi.Device) -> Staged:
    """Allocate an input in the memory of a device.

    Raises:
        ArtifactRefused: the memory is not sufficient.
    """
    try:
        return _Here(wanted) if device.type == "cpu" else _OnDevice(wanted, device)
    except (MemoryError, OverflowError, ValueError) as error:
        raise ArtifactRefused(f"there is no memory for the input {wanted.name!r}, {wanted}: {error}") from error


def arrays_of(returned: object) -> list[Array]:
    """Return the VM's outputs, a tensor or nested tuples of them, as arrays in order."""
    if hasattr(returned, "__dlpack__"):
        return [_array_of(returned)]
    if isinstance(returned, Sequence):
        return [array for item in returned for array in arrays_of(item)]
    raise ArtifactRefused(f"the model returned a {type(returned).__name__}, not a tensor; export it again")


class _Here:
    """Memory in this process: a large suitable array is used in place, others are copied."""

    def __init__(self, wanted: TensorType) -> None:
        import tvm_ffi

        self.dtype = np.dtype(wanted.dtype)
        size_bytes = int(np.prod(wanted.shape, dtype=np.int64)) * self.dtype.itemsize
        memory = np.empty(size_bytes + _ALIGNMENT_BYTES, np.uint8)
        start = -memory.ctypes.data % _ALIGNMENT_BYTES
        self._array: Array = memory[start : start + size_bytes].view(self.dtype).reshape(wanted.shape)
        self._tensor = tvm_ffi.from_dlpack(self._array)

    def tensor_of(self, array: Array) -> tvm_ffi.Tensor:
        import tvm_ffi

        is_dense = array.nbytes >= _LARGE_BYTES and array.flags.c_contiguous and array.flags.writeable
        if is_dense and array.ctypes.data % _ALIGNMENT_BYTES == 0:
            return tvm_ffi.from_dlpack(array)
        np.copyto(self._array, array)
        return self._tensor


class _OnDevice:
    """Memory of a GPU, allocated once and written with each call."""

    def __init__(self, wanted: TensorType, device: tvm_ffi.Device) -> None:
        import tvm_ffi

        self.dtype = np.dtype(wanted.dtype)
        allocate = tvm_ffi.get_global_func("runtime.TVMTensorAllocWithScope")
        self._copy = tvm_ffi.get_global_func("runtime.TVMTensorCopyFromBytes")
        self._tensor: tvm_ffi.Tensor = allocate(tvm_ffi.Shape(wanted.shape), tvm_ffi.dtype(wanted.dtype), device, None)

    def tensor_of(self, array: Array) -> tvm_ffi.Tensor:
        dense = np.ascontiguousarray(array)
        self._copy(self._tensor, ctypes.c_void_p(dense.ctypes.data), dense.nbytes)
        return self._tensor


def _array_of(tensor: Any) -> Array:
    if tensor.device.type == "cpu":
        return np.from_dlpack(tensor)
    import tvm_ffi

    found: Array = np.empty(tuple(tensor.shape), str(tensor.dtype))
    tvm_ffi.get_global_func("runtime.TVMTensorCopyToBytes")(tensor, ctypes.c_void_p(found.ctypes.data), found.nbytes)
    return found
