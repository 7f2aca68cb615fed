"""Arguments of one call of a compiled function, in memory that the function can access."""

from __future__ import annotations

import ctypes
import math
import re
from collections.abc import Sequence

from device_agents.runtimes.arguments import bad_argument, check_content, wanted_back
from device_agents.runtimes.contract import CandidateFailed
from device_agents.runtimes.filling import make_tile, random_content
from device_agents.runtimes.plain.native import FLOAT, INT, TENSOR, AnyValue, DlTensor
from device_agents.runtimes.proving import view
from fleet.domain.measuring import Argument, ErrorKind, Tensor, TensorSpec

MOST_BYTES = 2**31
"""Limit of one argument: a 32-bit process has no more memory."""

_CPU = 1
_DTYPE = re.compile(r"(u?int|float|bfloat|bool)(\d*)(?:x(\d+))?")
_CODES = {"int": 0, "uint": 1, "float": 2, "bfloat": 4, "bool": 6}
"""DLDataTypeCode by name."""


class PackedArguments:
    """Arguments of one call in the calling convention of compiled functions; their memory is freed at the end."""

    def __init__(self, library: ctypes.CDLL, args: Sequence[Argument]) -> None:
        self._library = library
        self._args = args
        self.count = len(args)
        self.packed = (AnyValue * max(1, self.count))()
        self._tensors: dict[int, tuple[DlTensor, int, TensorSpec]] = {}
        try:
            for index, argument in enumerate(args):
                self._pack(index, argument)
        except BaseException:  # also if cancelled or interrupted; raised again
            self.close()
            raise

    def __enter__(self) -> PackedArguments:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for tensor, _, _ in self._tensors.values():
            self._library.plain_free(tensor.data)
        self._tensors.clear()

    def written(self) -> list[Tensor]:
        """Return the tensors to send back to the caller, see `wanted_back`."""
        found = [self._tensors[index] for index in wanted_back(self._args, range(self.count))]
        return [Tensor(spec, ctypes.string_at(tensor.data, size) if size else b"") for tensor, size, spec in found]

    def contents(self) -> list[memoryview]:
        """Return the memory of each argument as bytes. All arguments must be tensors."""
        found = (self._tensors[index] for index in range(self.count))
        return [view(int(tensor.data), size) for tensor, size, _ in found]

    def _pack(self, index: int, argument: Argument) -> None:
        packed = self.packed[index]
        if isinstance(argument, int):
            packed.type_index, packed.value.as_int = INT, argument
            return
        if isinstance(argument, float):
            packed.type_index, packed.value.as_float = FLOAT, argument
            return
        spec = argument.spec if isinstance(argument, Tensor) else argument
        tensor, size = self._allocate(index, spec)
        packed.type_index, packed.value.as_int = TENSOR, ctypes.addressof(tensor)
        if isinstance(argument, Tensor):
            check_content(index, argument, size)
            ctypes.memmove(tensor.data, argument.content, size)
        elif argument.is_output:
            ctypes.memset(tensor.data, 0, size)
        else:
            self._fill(index, tensor, size, spec)

    def _allocate(self, index: int, spec: TensorSpec) -> tuple[DlTensor, int]:
        found = _DTYPE.fullmatch(spec.dtype)
        if found is None or any(extent < 0 for extent in spec.shape):
            text = f"{spec.dtype}{list(spec.shape)}"
            raise bad_argument(index, f"is {text}, which is not a tensor type that the plain runtime knows")
        bits, lanes = int(found[2] or 8), int(found[3] or 1)
        size = (math.prod(spec.shape) * bits * lanes + 7) // 8
        memory = self._library.plain_alloc(size) if size < MOST_BYTES else None
        if not memory:
            raise CandidateFailed(ErrorKind.OUT_OF_MEMORY, f"out of memory for argument {index}, {size} bytes")
        shape = (ctypes.c_int64 * max(1, len(spec.shape)))(*spec.shape)
        tensor = DlTensor(memory, _CPU, 0, len(spec.shape), _CODES[found[1]], bits, lanes, shape, None, 0)
        self._tensors[index] = (tensor, size, spec)
        return tensor, size

    def _fill(self, index: int, tensor: DlTensor, size: int, spec: TensorSpec) -> None:
        content = random_content(spec.dtype, size, index)
        if content is not None:
            ctypes.memmove(tensor.data, content, size)
            return
        tile = make_tile(spec.dtype.partition("x")[0])
        if not tile:
            raise bad_argument(index, f"is {spec.dtype}, of which no random numbers are known here; send real ones")
        for start in range(0, size, len(tile)):
            ctypes.memmove(tensor.data + start, tile, min(len(tile), size - start))
