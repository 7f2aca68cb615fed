"""Arguments of a call, shared by the runtimes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress
from typing import TypeVar

from device_agents.runtimes.contract import CandidateFailed
from fleet.domain.measuring import Argument, ErrorKind, Tensor, TensorSpec

T = TypeVar("T")


def bad_argument(index: int, problem: str) -> CandidateFailed:
    """Return the failure for an argument that does not match."""
    return CandidateFailed(ErrorKind.BAD_ARGUMENTS, f"argument {index} {problem}")


def check_content(index: int, tensor: Tensor, size_bytes: int) -> None:
    """Refuse a tensor whose content has another length than its type's.

    Raises:
        CandidateFailed: it has more or fewer than `size_bytes`.
    """
    if len(tensor.content) != size_bytes:
        type_text = f"{tensor.spec.dtype}{list(tensor.spec.shape)}"
        raise bad_argument(index, f"is {type_text}, which takes {size_bytes} bytes, not {len(tensor.content)}")


def wanted_back(args: Sequence[Argument], values: Sequence[T]) -> list[T]:
    """Return the values to send back to the caller: the outputs, or all tensors if none is marked."""
    outputs = [isinstance(argument, TensorSpec) and argument.is_output for argument in args]
    tensors = [isinstance(argument, TensorSpec | Tensor) for argument in args]
    return list(compress(values, outputs if any(outputs) else tensors))
