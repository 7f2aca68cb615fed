"""Proofs of measured times by the agent's clock: changing inputs, number of calls, and the verdict.

The times in a record are only claims, because the timer runs in the kernel's process. A proof is timed from outside. A
fresh worker makes a row of calls with different inputs. The inputs follow from a seed that the worker receives when the
clock starts. The worker commits to the outputs of every call, and the agent takes the time. Afterwards some calls are
repeated: their outputs must match the commitment, and the client compares them with the reference.

Before the worker receives the artifact, it makes the same rows without the kernel. These calibration times cover
messages, changes of inputs and digests, and are subtracted.

A row of k calls proves a claim if it takes at most

    (time of the empty row)  +  k * (claim * TOLERANCE + overhead of the harness per call)  +  NOISE

The bound applies to the whole time and not only to the slope: a kernel that slows down the short row on purpose has a
small slope.
"""

from __future__ import annotations

import enum
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fleet.base.quantities import time_text
from fleet.domain.measuring import Tensor, TensorSpec

EXTRA_ITEMS = 1024
"""Extra elements of a bank beyond the size of its input. The input's content starts at a random offset in it."""

DIGEST_BYTES = 16
MOST_ANSWERS = 16

_SHORTEST_ROW_SEC = 0.006
_LONGEST_ROW_SEC = 0.04
_MOST_CALLS = 10_000
_TOLERANCE = 1.25
"""Factor on the claim: changing inputs make a time measured with warm caches 10 to 20 % longer."""

_HARNESS_SHARE = 0.1
_HARNESS_SEC = 0.4e-6
"""Overhead of the harness per call if a kernel evicts its data from the L1 cache: share of its overhead, and [s]."""

_NOISE_SEC = 0.3e-3
"""Uncertainty of the agent's clock per row: one turn of the event loop and one wake-up of the worker [s]."""

_CHANGE_SHARE = 0.1
_COPIED_BYTES_PER_SEC = 5e9
_FEWEST_CHANGED_BYTES = 256
"""Changed bytes of an input per call: the bytes that are copied in this share of the claimed time, up to the whole
input."""

_HALF = 0xFFFFFFFF


class ProofVerdict(enum.StrEnum):
    """Verdict of a proof, named as in fleet.v1.ProofVerdict without the prefix."""

    PROVEN = "PROVEN"
    REFUTED = "REFUTED"
    IMPOSSIBLE = "IMPOSSIBLE"
    """The device or its agent cannot prove times. This says nothing about the time."""

    UNDECIDED = "UNDECIDED"
    """The calls took longer than claimed, but other processes used the cores meanwhile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProofArgument:
    """Argument of the function under proof."""

    spec: TensorSpec
    bank: bytes = b""
    """Pool of elements for an input: the size of the input and EXTRA_ITEMS more. Empty for an output."""

    is_fixed: bool = False
    """Use the start of the bank for every call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProofOrder:
    """Request for a proof."""

    artifact_digest: str
    args: tuple[ProofArgument, ...]
    claimed_sec: float
    function: str = "main"
    timeout_sec: float = 60.0
    answers: int = 2
    """Number of repeated calls, at most MOST_ANSWERS."""

    allow_poison: bool = False
    """See fleet.domain.measuring.Trial."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProofAnswer:
    """Outputs of one timed call."""

    seed: bytes
    call: int
    outputs: tuple[Tensor, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """Result of a proof."""

    verdict: ProofVerdict
    claimed_sec: float = 0.0
    measured_sec: float = 0.0
    """Time per call by the agent's clock [s]."""

    least_sec: float = 0.0
    """Smallest claim that this proof supports [s]."""

    spread_sec: float = 0.0
    """Difference between equal rows, per call [s]."""

    calls: int = 0
    message: str = ""
    """Readable reason if the time is not proven."""

    answers: tuple[ProofAnswer, ...] = ()

    @property
    def is_proven(self) -> bool:
        return self.verdict is ProofVerdict.PROVEN


def too_fast(claimed_sec: float, floor_sec: float) -> Proof:
    """Return the refutation of a time below the device's minimum."""
    message = f"{time_text(claimed_sec)} is less than the device can: {time_text(floor_sec)} at the very least"
    return Proof(verdict=ProofVerdict.REFUTED, claimed_sec=claimed_sec, least_sec=floor_sec, message=message)


@dataclass(frozen=True, slots=True, kw_only=True)
class Varying:
    """Input that changes from call to call."""

    live: memoryview
    """Current content, as bytes."""

    bank: memoryview
    item_bytes: int
    piece_bytes: int
    """Bytes changed per call."""


def varying(live: memoryview, bank: memoryview, item_bytes: int, claimed_sec: float) -> Varying:
    """Return an input with its number of changed bytes, given the time of one call."""
    wanted = int(claimed_sec * _CHANGE_SHARE * _COPIED_BYTES_PER_SEC) if claimed_sec < 1 else len(live)
    piece = min(len(live), max(_FEWEST_CHANGED_BYTES, wanted)) // item_bytes * item_bytes
    return Varying(live=live, bank=bank, item_bytes=item_bytes, piece_bytes=max(piece, item_bytes))


def vary(seed: bytes, inputs: Sequence[Varying]) -> Iterator[None]:
    """Change the inputs for the next call with each step of the iterator."""
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
    """Return the content of each argument at one call of a row, None for outputs."""
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
    """Return unpredictable numbers of calls for the short and the long row.

    Args:
        empty_sec: overhead of the harness per call, without the kernel [s].
    """
    wanted = _SHORTEST_ROW_SEC / max(claimed_sec, 1e-12)
    most = min(_MOST_CALLS, _LONGEST_ROW_SEC / max(empty_sec + claimed_sec, 1e-12))
    long = max(2 + rng.randrange(2), math.ceil(min(wanted, most) * rng.uniform(1.0, 1.3)))
    return max(1, int(long * rng.uniform(0.3, 0.6))), long


@dataclass(frozen=True, slots=True, kw_only=True)
class RowTimes:
    """Shortest times of rows of two lengths, with and without the kernel [s]."""

    short: int
    long: int
    empty_short_sec: float
    empty_long_sec: float
    short_sec: float
    long_sec: float

    @property
    def measured_sec(self) -> float:
        """Time of one call [s]: the slope, minus the slope of the empty rows."""
        added = (self.long_sec - self.short_sec) - (self.empty_long_sec - self.empty_short_sec)
        return max(0.0, added / (self.long - self.short))

    @property
    def least_sec(self) -> float:
        """Smallest claim that these times prove [s], by the bound on the long row and by the slope."""
        harness_sec = _HARNESS_SEC + _HARNESS_SHARE * self.empty_long_sec / self.long
        by_row = (self.long_sec - self.empty_long_sec - _NOISE_SEC) / self.long - harness_sec
        by_slope = self.measured_sec - harness_sec - 2 * _NOISE_SEC / (self.long - self.short)
        return max(0.0, by_row, by_slope) / _TOLERANCE


def longest_sec(claimed_sec: float, calls: int, empty_sec: float) -> float:
    """Return the timeout of a row [s], far above any time that could prove the claim."""
    return 1.0 + 20 * (empty_sec + calls * (claimed_sec + _HARNESS_SEC))
