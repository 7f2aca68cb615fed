"""Explanation of a selector that no device matches: the number of devices that each of its clauses leaves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fleet.domain.selectors import Clause, Comparison, Selector, check_comparable


@dataclass(frozen=True, slots=True)
class ClauseCount:
    """Devices that match a clause and all clauses before it."""

    clause: str
    device_count: int


def narrow(selector: Selector, alike: Sequence[tuple[Mapping[str, str], int]]) -> list[ClauseCount]:
    """Return the number of devices that each clause leaves, up to the first that leaves none.

    Equalities come first, then comparisons, then negations.

    Args:
        selector: any but `ANY`.
        alike: labels, each with the number of devices that have them.

    Raises:
        InvalidRequest: a comparison that no device's label allows.
    """
    check_comparable(selector, [labels for labels, _ in alike])
    counts: list[ClauseCount] = []
    for clause in sorted(selector.conditions, key=_strictness):
        alike = [(labels, count) for labels, count in alike if clause.holds(labels)]
        counts.append(ClauseCount(clause.text, sum(count for _, count in alike)))
        if not alike:
            break
    return counts


def narrowing_text(counts: Sequence[ClauseCount], device_count: int) -> str:
    """Return the counts in words: "arch=aarch64: 40 of 200; mem>=8GiB: 12 of these; fpga!=none: none"."""
    texts = [f"{count.clause}: {count.device_count or 'none'}" for count in counts]
    scopes = [f" of {device_count}", *[" of these"] * len(counts)]
    return "; ".join(
        f"{text}{scope if count.device_count or len(counts) == 1 else ''}"
        for text, scope, count in zip(texts, scopes, counts, strict=False)
    )


def _strictness(clause: Clause) -> int:
    if isinstance(clause, Comparison):
        return 1
    return 2 if clause.is_negated else 0
