"""Quantities in labels and selectors: plain numbers, sizes in bytes, and versions.

    4, 2.5                       number
    2GiB, 512MB, 1.5TiB          size; fractions of a byte are dropped
    0.27.0, 1.2.3rc1             version: at least two dots or a suffix, or the value of a label that is always one

Two quantities are comparable if they have the same unit.
"""

from __future__ import annotations

import enum
import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal, localcontext
from typing import TypeAlias

_BYTES_BY_UNIT = {
    **{f"{prefix}B": 1000**power for power, prefix in enumerate(("", "k", "M", "G", "T"))},
    **{f"{prefix}iB": 1024**power for power, prefix in enumerate(("K", "M", "G", "T"), start=1)},
}
_SIZES_END = 2**64
"""Sizes are 64-bit fields on the wire."""
SIZE_UNITS = "B, kB, MB, GB, TB, KiB, MiB, GiB or TiB"
_NUMBER = re.compile(r"[0-9]{1,20}(?:\.[0-9]{1,9})?")
_SIZE = re.compile(rf"({_NUMBER.pattern})({'|'.join(_BYTES_BY_UNIT)})")
_VERSION = re.compile(
    r"(?P<release>[0-9]{1,9}(?:\.[0-9]{1,9}){0,7})"
    r"(?:[.-]?(?P<stage>dev|a|b|rc|post)(?P<number>[0-9]{1,9}))?(?:\+[a-z0-9.]{1,40})?"
)
_STAGES = ("dev", "a", "b", "rc", "", "post")
"""Stages of one release, in order; the part after "+" does not count."""
_LEAST_DOTS = 2
"""A version without a suffix has at least this many dots, so that it cannot be read as a number."""


class Unit(enum.StrEnum):
    """Unit of a quantity."""

    NUMBER = "number"
    SIZE = "size"
    VERSION = "version"


EXAMPLES: Mapping[Unit, str] = {Unit.NUMBER: "4", Unit.SIZE: "2GiB", Unit.VERSION: "0.27.0"}

_Version: TypeAlias = tuple[tuple[int, ...], int, int]


@dataclass(frozen=True, slots=True)
class Quantity:
    """A value with its unit."""

    unit: Unit
    value: Decimal | int | _Version
    """Comparable with other values of the unit; sizes in bytes."""

    text: str
    """Canonical: quantities are equal if their texts are."""


@functools.lru_cache(maxsize=4096)
def read_quantity(text: str, unit: Unit | None = None) -> Quantity | None:
    """Return the quantity that a text stands for; None for other texts.

    Args:
        text: number, size or version.
        unit: the only unit that counts; None: the form decides.
    """
    found: Quantity | None
    if match := _SIZE.fullmatch(text):
        size_bytes = _whole_bytes(Decimal(match[1]), _BYTES_BY_UNIT[match[2]])
        found = Quantity(Unit.SIZE, size_bytes, size_text(size_bytes)) if size_bytes < _SIZES_END else None
    elif unit is not Unit.VERSION and _NUMBER.fullmatch(text):
        found = Quantity(Unit.NUMBER, Decimal(text), _number_text(text))
    elif match := _VERSION.fullmatch(text):
        if unit is not Unit.VERSION and not match["stage"] and match["release"].count(".") < _LEAST_DOTS:
            return None
        found = _version(match, least=1 if unit is Unit.VERSION else _LEAST_DOTS + 1)
    else:
        return None
    return found if found is not None and unit in (None, found.unit) else None


def size_text(size_bytes: int) -> str:
    """Return a size exactly, in the unit that makes it shortest: "2GiB", "7808MiB", "2GB"."""
    texts = [f"{size_bytes // scale}{unit}" for unit, scale in _BYTES_BY_UNIT.items() if size_bytes % scale == 0]
    return min(texts, key=lambda text: (len(text.rstrip("iBkKMGT")), len(text), text)) if size_bytes else "0B"


def _whole_bytes(count: Decimal, scale: int) -> int:
    with localcontext(prec=50):
        return int(count * scale)


def _number_text(text: str) -> str:
    whole, _, fraction = text.partition(".")
    fraction = fraction.rstrip("0")
    return f"{int(whole)}.{fraction}" if fraction else str(int(whole))


def _version(match: re.Match[str], *, least: int) -> Quantity:
    parts = [int(part) for part in match["release"].split(".")]
    while len(parts) > 1 and not parts[-1]:
        del parts[-1]
    stage, number = match["stage"] or "", int(match["number"] or 0)
    shown = parts if stage else parts + [0] * (least - len(parts))
    text = ".".join(map(str, shown)) + (f".{stage}{number}" if stage else "")
    return Quantity(Unit.VERSION, (tuple(parts), _STAGES.index(stage), number), text)
