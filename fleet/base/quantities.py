"""Quantities as people read them."""

from __future__ import annotations


def time_text(sec: float) -> str:
    """Return a time in four digits and the unit that suits it: "161 us"."""
    for unit, scale in (("s", 1.0), ("ms", 1e3), ("us", 1e6)):
        if sec * scale >= 1:
            return f"{sec * scale:.4g} {unit}"
    return f"{sec * 1e9:.4g} ns"


def count_text(count: int, noun: str) -> str:
    """Return how many there are of something: "1 candidate", "8 candidates"."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
