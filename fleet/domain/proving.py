"""Proofs of a time: how inputs change from call to call, how many calls are made, and which times prove a claim.

The times in a record are the kernel's own claim: whatever timed it ran in the kernel's process. A proof is made from
outside. A fresh worker makes calls in a row whose inputs differ. A seed decides how they differ, and the worker learns
it when the clock starts. It commits to the outputs of every call, and the agent takes the time. Afterwards some of
these calls are made again: their outputs have to be the committed ones, and the client compares them with the
reference.

Before the worker sees the artifact, it makes the same rows without the call. These times hold the messages, the changes
of inputs and the digests, owe nothing to the kernel, and are subtracted.

A row of k calls proves a claim if it takes at most

    (time of the empty row)  +  k * (claim * TOLERANCE + what a call of the harness may cost more)  +  NOISE

This is a bound on the whole time, not on the slope alone: a kernel that makes the short row slow on purpose would have
a small slope.
"""

from __future__ import annotations

import enum
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fleet.domain.measuring import Tensor, TensorSpec

EXTRA_ITEMS = 1024
"""A bank has so many numbers more than its input: the places where an input's content may begin in it."""

DIGEST_BYTES = 16
MOST_ANSWERS = 16

_SHORTEST_ROW_SEC = 0.006
_LONGEST_ROW_SEC = 0.04
_MOST_CALLS = 10_000
_TOLERANCE = 1.25
"""A time that was taken with warm caches and one input grows by a tenth or two when inputs change."""

_HARNESS_SHARE = 0.1
_HARNESS_SEC = 0.4e-6
"""Cost of a call of the harness beside a kernel that takes the first cache away from it, beyond its cost alone: a share
of that, and this constant [s]."""

_NOISE_SEC = 0.3e-3
"""Of the agent's clock around one row: a turn of its event loop, and a wake-up of the worker [s]."""

_CHANGE_SHARE = 0.1
_COPIED_BYTES_PER_SEC = 5e9
_FEWEST_CHANGED_BYTES = 256
"""An input changes by as many bytes as are copied in this share of the claimed time, all of it where that is enough."""

_HALF = 0xFFFFFFFF


class ProofVerdict(enum.StrEnum):
    """Result of a proof. The names are those of fleet.v1.ProofVerdict without their prefix."""

    PROVEN = "PROVEN"
    REFUTED = "REFUTED"
    IMPOSSIBLE = "IMPOSSIBLE"
    """The device, or its agent, has no means to tell; nothing is said of the time."""

    UNDECIDED = "UNDECIDED"
    """It took longer, and others had the processors meanwhile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProofArgument:
    """One argument of a function whose time is proven."""

    spec: TensorSpec
    bank: bytes = b""
    """Numbers that an input is made of: those of its type, and EXTRA_ITEMS more. Empty for an output."""

    is_fixed: bool = False
    """It stays what the bank begins with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProofOrder:
    """A proof as a client asks for it."""

    artifact_digest: str
    args: tuple[ProofArgument, ...]
    claimed_sec: float
    function: str = "main"
    timeout_sec: float = 60.0
    answers: int = 2
    """Calls that are made again, at most MOST_ANSWERS."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProofAnswer:
    """A call that was timed, and its outputs."""

    seed: bytes
    call: int
    outputs: tuple[Tensor, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """Result of a proof."""

    verdict: ProofVerdict
    claimed_sec: float = 0.0
    measured_sec: float = 0.0
    """Per call, by the agent's clock [s]."""

    least_sec: float = 0.0
    """The smallest claim that it proves [s]."""

    spread_sec: float = 0.0
    """By how much the same rows differed, per call [s]."""

    calls: int = 0
    message: str = ""
    """Why it is not proven, for people."""

    answers: tuple[ProofAnswer, ...] = ()

    @property
    def is_proven(self) -> bool:
        return self.verdict is ProofVerdict.PROVEN


@dataclass(frozen=True, slots=True, kw_only=True)
class Varying:
    """An input that differs from call to call."""

    live: memoryview
    """Its content, as bytes."""

    bank: memoryview
    item_bytes: int
    piece_bytes: int
    """Bytes that each call changes."""


def varying(live: memoryview, bank: memoryview, item_bytes: int, claimed_sec: float) -> Varying:
    """Return how an input changes, given the time of one call."""
    wanted = int(claimed_sec * _CHANGE_SHARE * _COPIED_BYTES_PER_SEC) if claimed_sec < 1 else len(live)
    piece = min(len(live), max(_FEWEST_CHANGED_BYTES, wanted)) // item_bytes * item_bytes
    return Varying(live=live, bank=bank, item_bytes=item_bytes, piece_bytes=max(piece, item_bytes))


def vary(seed: bytes, inputs: Sequence[Varying]) -> Iterator[None]:
    """Change the inputs for one call after the other, each time that the iterator is advanced."""
    draw = random.Random(seed).getrandbits
    places = []
    for one in inputs:
        spare = (len(one.bank) - len(one.live)) // one.item_bytes + 1
        start = (draw(32) * spare >> 32) * one.item_bytes
        one.live[:] = one.bank[start : start + len(one.live)]
        goals = (len(one.live) - one.piece_bytes) // one.item_bytes + 1
        sources = (len(one.bank) - one.piece_bytes) // one.item_bytes + 1
        places.append((one.live, one.bank, one.item_bytes, one.piece_bytes, goals, sources))
    while True:
        bits = draw(64)
        high, low = bits >> 32, bits & _HALF
        for live, bank, item, piece, goals, sources in places:
            goal, source = (high * goals >> 32) * item, (low * sources >> 32) * item
            live[goal : goal + piece] = bank[source : source + piece]
        yield


def contents_of_call(order: ProofOrder, seed: bytes, call: int) -> list[bytes | None]:
    """Return the content of each argument at one call of a row; None for outputs."""
    lives = [bytearray(arg.bank[: arg.spec.size_bytes]) for arg in order.args]
    changing = [
        varying(memoryview(live), memoryview(arg.bank), item_bytes(arg.spec), order.claimed_sec)
        for live, arg in zip(lives, order.args, strict=True)
        if is_varying(arg)
    ]
    changes = vary(seed, changing)
    for _ in range(call + 1):
        next(changes)
    return [None if arg.spec.is_output else bytes(live) for live, arg in zip(lives, order.args, strict=True)]


def is_varying(arg: ProofArgument) -> bool:
    """Tell whether an argument differs from call to call."""
    return not (arg.spec.is_output or arg.is_fixed) and arg.spec.size_bytes > 0


def item_bytes(spec: TensorSpec) -> int:
    """Return the size of one element [bytes]; at least 1."""
    return max(1, spec.size_bytes // max(1, math.prod(spec.shape)))


def choose_rows(claimed_sec: float, empty_sec: float, rng: random.Random) -> tuple[int, int]:
    """Return the numbers of calls of the short and the long row, which nobody can know beforehand.

    Args:
        empty_sec: what a call of the harness costs without the kernel.
    """
    wanted = _SHORTEST_ROW_SEC / max(claimed_sec, 1e-12)
    most = min(_MOST_CALLS, _LONGEST_ROW_SEC / max(empty_sec + claimed_sec, 1e-12))
    long = max(2 + rng.randrange(2), math.ceil(min(wanted, most) * rng.uniform(1.0, 1.3)))
    return max(1, int(long * rng.uniform(0.3, 0.6))), long


@dataclass(frozen=True, slots=True, kw_only=True)
class RowTimes:
    """The shortest times that rows of two lengths took, without the kernel and with it [s]."""

    short: int
    long: int
    empty_short_sec: float
    empty_long_sec: float
    short_sec: float
    long_sec: float

    @property
    def measured_sec(self) -> float:
        """Time of one call: the slope, less that of the empty rows."""
        added = (self.long_sec - self.short_sec) - (self.empty_long_sec - self.empty_short_sec)
        return max(0.0, added / (self.long - self.short))

    @property
    def least_sec(self) -> float:
        """The smallest claim that these times prove [s]: by the bound on the long row, and by the slope."""
        harness_sec = _HARNESS_SEC + _HARNESS_SHARE * self.empty_long_sec / self.long
        by_row = (self.long_sec - self.empty_long_sec - _NOISE_SEC) / self.long - harness_sec
        by_slope = self.measured_sec - harness_sec - 2 * _NOISE_SEC / (self.long - self.short)
        return max(0.0, by_row, by_slope) / _TOLERANCE


def longest_sec(claimed_sec: float, calls: int, empty_sec: float) -> float:
    """Return how long a row is waited for: far longer than any that could still prove the claim [s]."""
    return 1.0 + 20 * (empty_sec + calls * (claimed_sec + _HARNESS_SEC))
