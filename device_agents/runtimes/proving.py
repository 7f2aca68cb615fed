"""Rows of calls whose inputs differ, and whose outputs are committed to: the worker's part of a proof.

`fleet.domain.proving` says what a proof is. A runtime provides `ProofParts`; everything else is the same for all.
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
    """This runtime has no means to prove a time; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProofParts:
    """The arguments of a function, in memory that this process reaches, and what calls it."""

    contents: Sequence[memoryview]
    """Content of each argument in order, as bytes."""

    load: Callable[[str], Callable[[], object]]
    """Load the artifact at a path and return a call of its function with these arguments."""

    call_nothing: Callable[[], object]
    """Call a function that does nothing, with these arguments."""


class ProofRows:
    """Makes rows of calls."""

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
        """Load the artifact and call it once: what it makes at its first call is no part of a row."""
        self._call = self._parts.load(path)
        self._call()

    def row(self, seed: bytes, calls: int) -> bytes:
        """Make calls in a row; return the digests of their outputs, one after the other."""
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
        """Make one call of a row once more and return its outputs."""
        changes = vary(seed, self._inputs)
        for _ in range(call + 1):
            next(changes)
        self._call()
        outputs = [arg.spec for arg in self._order.args if arg.spec.is_output]
        return [Tensor(spec, bytes(content)) for spec, content in zip(outputs, self._outputs, strict=True)]


def digest_of_outputs(outputs: Sequence[bytes]) -> bytes:
    """Return what a worker commits to for these outputs of a call."""
    return hashlib.sha256(b"".join(outputs)).digest()[:DIGEST_BYTES]


def view(address: int, size_bytes: int) -> memoryview:
    """Return memory of this process as bytes."""
    return memoryview((ctypes.c_char * size_bytes).from_address(address)).cast("B") if size_bytes else memoryview(b"")


def check_banks(order: ProofOrder, sizes: Sequence[int]) -> None:
    """Refuse banks that are shorter than their inputs.

    Raises:
        CandidateFailed: one is.
    """
    for index, (arg, size) in enumerate(zip(order.args, sizes, strict=True)):
        if not arg.spec.is_output and len(arg.bank) < size:
            problem = f"argument {index}: {len(arg.bank)} bytes to draw from, and it takes {size}"
            raise CandidateFailed(ErrorKind.BAD_ARGUMENTS, problem)
