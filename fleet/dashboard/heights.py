"""Shares the lines of a terminal among panes. Pure."""

from __future__ import annotations

from collections.abc import Sequence

ROOMY_LINES = 28
"""Number of lines from which details are shown below the panes; with fewer, they replace the panes."""

_HEADER_LINES = 1


def lay_out(
    available: int, row_counts: Sequence[int], *, zoomed: int | None = None, is_detailed: bool = False
) -> tuple[list[int], int]:
    """Return the numbers of lines of each pane, and of the details.

    Args:
        available: lines for all of them.
        row_counts: rows of each pane.
        zoomed: the pane that gets the maximum; None: all get their share.
    """
    available = max(0, available)
    if is_detailed and available < ROOMY_LINES:
        return [0] * len(row_counts), available
    for_panes = available // 2 if is_detailed else available
    wanted = [_HEADER_LINES + (count if zoomed in (None, index) else 0) for index, count in enumerate(row_counts)]
    spaced = [want + 1 for want in wanted[:-1]] + list(wanted[-1:])
    lines = share(for_panes, spaced if sum(spaced) <= for_panes else wanted)
    return lines, available - sum(lines) if is_detailed else 0


def share(available: int, wanted: Sequence[int]) -> list[int]:
    """Share lines fairly: a pane that needs less than an equal part gets all it needs, and leaves the rest to the
    others.

    Nobody gets more than it wants. The first ones get the lines that cannot be divided.
    """
    given = [0] * len(wanted)
    while (left := available - sum(given)) > 0:
        hungry = [index for index, want in enumerate(wanted) if given[index] < want]
        if not hungry:
            break
        part = max(1, left // len(hungry))
        for index in hungry[:left]:
            given[index] += min(part, wanted[index] - given[index])
    return given
