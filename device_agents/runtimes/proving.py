"""Runs rows of calls with varying inputs and commits to their outputs by digests: the worker's side of a proof.

`fleet.domain.proving` defines proofs. A runtime provides `ProofParts`; the rest is the same for all runtimes.
"""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from device_agents.runtimes.contract import CandidateFailed
from fleet.domain.measuring import ErrorKind, Tensor
from fleet.domain.proving import DIGEST_BYTES, ProofOrder, is_varying, item_bytes, vary, varying


class NotProvable(Exception):
    """This runtime cannot prove times; the message gives the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProofParts:
    """Arguments of a function in this process's memory, and callables that run it."""

    contents: Sequence[memoryview]
    """Bytes of each argument, in order."""

    load: Callable[[str], Callable[[], object]]
    """Loads the artifact at a path and returns a callable that runs its function with these arguments."""

    call_nothing: Callable[[], object]
    """Calls a no-op function with these arguments."""


class ProofRows:
    """Rows of calls of one function."""

    def __init__(self, order: ProofOrder, parts: ProofParts) -> None:
        self._order = order
        self._parts = parts
        self._call = parts.call_nothing
        pairs = list(zip(order.args, parts.contents, strict=True))
        for arg, content in pairs:
            content[:] = arg.bank[: len(content)] if not arg.spec.is_output else bytes(len(content))
        self._inputs = [
            varying(content, memoryview(arg.bank), item_bytes(arg.spec), order.claimed_sec)
            for arg, content in pairs
            if is_varying(arg)
        ]
        self._outputs = [content for arg, content in pairs if arg.spec.is_output]

    def load(self, path: str) -> None:
        """Load the artifact and call it once, so that rows exclude the setup of a first call."""
        self._call = self._parts.load(path)
        self._call()

    def row(self, seed: bytes, calls: int) -> bytes:
        """Make a row of calls and return the concatenated digests of their outputs, DIGEST_BYTES each."""
        call, outputs = self._call, self._outputs
        sha256, found = hashlib.sha256, bytearray()
        changes = vary(seed, self._inputs)
        for _ in range(calls):
            next(changes)
            call()
            digest = sha256()
            for output in outputs:
                digest.update(output)
            found += digest.digest()[:DIGEST_BYTES]
        return bytes(found)

    def again(self, seed: bytes, call: int) -> list[Tensor]:
        """Repeat one call of a row, by its index, and return its outputs."""
        changes = vary(seed, self._inputs)
        for _ in range(call + 1):
            next(changes)
        self._call()
        outputs = [arg.spec for arg in self._order.args if arg.spec.is_output]
        return [Tensor(spec, bytes(content)) for spec, content in zip(outputs, self._outputs, strict=True)]


def digest_of_outputs(outputs: Sequence[bytes]) -> bytes:
    """Return the digest by which a worker commits to the outputs of a call."""
    return hashlib.sha256(b"".join(outputs)).digest()[:DIGEST_BYTES]


def view(address: int, size_bytes: int) -> memoryview:
    """Return a view of this process's memory at an address."""
    return memoryview((ctypes.c_char * size_bytes).from_address(address)).cast("B") if size_bytes else memoryview(b"")


def check_banks(order: ProofOrder, sizes: Sequence[int]) -> None:
    """Check that no bank is shorter than its input.

    Args:
        sizes: sizes of the arguments [bytes].

    Raises:
        CandidateFailed: a bank is too short.
    """
    for index, (arg, size) in enumerate(zip(order.args, sizes, strict=True)):
        if not arg.spec.is_output and len(arg.bank) < size:
            problem = f"argument {index}: {len(arg.bank)} bytes to draw from, and it takes {size}"
            raise CandidateFailed(ErrorKind.BAD_ARGUMENTS, problem)
