"""Instructions of processors that sum products of 8-bit integers, with the layout of their operands.

Each takes a vector of int32 sums and adds, to each lane, the products of `group` neighbouring pairs. All of them are
exact: the older way on x86, `vpmaddubsw`, saturates at 16 bits, so processors without VNNI multiply 16-bit integers.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass

from cross.targets.target import Target
from fleet.artifacts.fit import needed_features


@dataclass(frozen=True, slots=True, kw_only=True)
class IntegerUnit:
    """One instruction, with its vector widths."""

    name: str
    """Name of the instruction, also used in the names of its tensor intrinsics."""

    data: str
    """Dtype that activations have in memory."""

    data_operand: str
    """Dtype in which the instruction takes them: wider ones are widened as they are padded."""

    weights: str
    group: int
    """Neighbours along the sum that one step takes."""

    widths: tuple[int, ...]
    """int32 lanes of the vectors that there are, the widest first."""

    has_scalar_operand: bool
    """One operand can be a lane of a register, repeated."""

    latency: int
    """Cycles until a sum can be used."""

    def intrinsic(self, lanes: int) -> str:
        """Return the name of the tensor intrinsic for one width."""
        return f"fleet.{self.name}_{lanes}x{self.group}"


@functools.lru_cache(maxsize=32)
def integer_unit(target: Target) -> IntegerUnit | None:
    """Return the instruction of a target that is faster than float32 arithmetic; None if it has none."""
    if not target.is_processor:
        return None
    features = needed_features(target.options, target.arch)
    if target.arch == "x86_64":
        return _x86_unit(features)
    return _SDOT if target.arch == "aarch64" and "asimddp" in features else None


def _x86_unit(features: Mapping[str, str]) -> IntegerUnit | None:
    if "avx512_vnni" in features:
        return _x86("vpdpbusd", group=4, widths=(16, 8, 4), latency=4)
    if "avx_vnni" in features:
        return _x86("vpdpbusd", group=4, widths=(8, 4), latency=4)
    if "avx2" in features:
        widths = (16, 8, 4) if "avx512bw" in features else (8, 4)
        return _x86("vpmaddwd", group=2, widths=widths, latency=1)
    return None


def _x86(name: str, *, group: int, widths: tuple[int, ...], latency: int) -> IntegerUnit:
    operand, weights = ("uint8", "int8") if name == "vpdpbusd" else ("int16", "int16")
    return IntegerUnit(
        name=name,
        data="uint8",
        data_operand=operand,
        weights=weights,
        group=group,
        widths=widths,
        has_scalar_operand=False,
        latency=latency,
    )


_SDOT = IntegerUnit(
    name="sdot",
    data="int8",
    data_operand="int8",
    weights="int8",
    group=4,
    widths=(4,),
    has_scalar_operand=True,
    latency=4,
)
