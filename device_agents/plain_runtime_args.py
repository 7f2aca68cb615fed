"""The arguments of one call of a compiled function, made of what a request says."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Sequence

from device_agents.filling import make_tile, random_content
from device_agents.plain_runtime_native import FLOAT, INT, TENSOR, Any, DlTensor
from device_agents.runtimes import CandidateFailed
from fleet.v1 import measurement_pb2, tensor_pb2

MOST_BYTES = 2**31
"""Of one argument: a 32-bit process has no more to give."""

_CPU = 1
_DTYPE = re.compile(r"(u?int|float|bfloat|bool)(\d*)(?:x(\d+))?")
_CODES = {"int": 0, "uint": 1, "float": 2, "bfloat": 4, "bool": 6}
"""Of DLDataTypeCode."""


class Arguments:
    """The arguments of one call, in the form that compiled functions take; their memory is freed at the end."""

    def __init__(self, library: ctypes.CDLL, args: Sequence[tensor_pb2.Argument]) -> None:
        self._library = library
        self.count = len(args)
        self.packed = (Any * max(1, self.count))()
        self._tensors: dict[int, tuple[DlTensor, int, tensor_pb2.TensorSpec]] = {}
        try:
            for index, argument in enumerate(args):
                self._pack(index, argument)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Arguments:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for tensor, _, _ in self._tensors.values():
            self._library.plain_free(tensor.data)
        self._tensors.clear()

    def written(self, args: Sequence[tensor_pb2.Argument]) -> list[tensor_pb2.Tensor]:
        """Return the tensors that a caller wants back: the outputs, or all of them when none is marked."""
        kinds = [argument.WhichOneof("kind") for argument in args]
        wanted = ("output",) if "output" in kinds else ("fill", "tensor")
        found = [self._tensors[index] for index, kind in enumerate(kinds) if kind in wanted]
        return [
            tensor_pb2.Tensor(spec=spec, content=ctypes.string_at(tensor.data, size) if size else b"")
            for tensor, size, spec in found
        ]

    def _pack(self, index: int, argument: tensor_pb2.Argument) -> None:
        kind = argument.WhichOneof("kind")
        packed = self.packed[index]
        if kind is None:
            raise _bad(index, "is empty")
        if kind == "int_value":
            packed.type_index, packed.value.as_int = INT, argument.int_value
            return
        if kind == "float_value":
            packed.type_index, packed.value.as_float = FLOAT, argument.float_value
            return
        spec = argument.tensor.spec if kind == "tensor" else getattr(argument, kind)
        tensor, size = self._allocate(index, spec)
        packed.type_index, packed.value.as_int = TENSOR, ctypes.addressof(tensor)
        if kind == "fill":
            self._fill(index, tensor, size, spec)
        elif kind == "tensor":
            content = argument.tensor.content
            if len(content) != size:
                raise _bad(index, f"is {spec.dtype}{list(spec.shape)}, which takes {size} bytes, not {len(content)}")
            ctypes.memmove(tensor.data, content, size)
        else:
            ctypes.memset(tensor.data, 0, size)

    def _allocate(self, index: int, spec: tensor_pb2.TensorSpec) -> tuple[DlTensor, int]:
        found = _DTYPE.fullmatch(spec.dtype)
        if found is None or any(extent < 0 for extent in spec.shape):
            raise _bad(index, f": {spec.dtype}{list(spec.shape)} is no tensor type that the plain runtime knows")
        bits, lanes = int(found[2] or 8), int(found[3] or 1)
        count = 1
        for extent in spec.shape:
            count *= extent
        size = (count * bits * lanes + 7) // 8
        memory = self._library.plain_alloc(size) if size < MOST_BYTES else None
        if not memory:
            raise CandidateFailed(
                measurement_pb2.ERROR_KIND_OUT_OF_MEMORY, f"out of memory for argument {index}, {size} bytes"
            )
        shape = (ctypes.c_int64 * max(1, len(spec.shape)))(*spec.shape)
        tensor = DlTensor(memory, _CPU, 0, len(spec.shape), _CODES[found[1]], bits, lanes, shape, None, 0)
        self._tensors[index] = (tensor, size, spec)
        return tensor, size

    def _fill(self, index: int, tensor: DlTensor, size: int, spec: tensor_pb2.TensorSpec) -> None:
        content = random_content(spec.dtype, size, index)
        if content is not None:
            ctypes.memmove(tensor.data, content, size)
            return
        tile = make_tile(spec.dtype.partition("x")[0])
        if not tile:
            raise _bad(index, f": no random numbers of the type {spec.dtype} are known here; send real ones")
        for start in range(0, size, len(tile)):
            ctypes.memmove(tensor.data + start, tile, min(len(tile), size - start))


def _bad(index: int, problem: str) -> CandidateFailed:
    return CandidateFailed(measurement_pb2.ERROR_KIND_BAD_ARGUMENTS, f"argument {index} {problem}")
