"""Candidate regions around an anchor of a graph: those that may be one program. Pure: calls are numbers.

TVM fuses an operator with its readers up to the next operator that all paths lead through, so a region grows from one
such operator to the next. It may also begin before its anchor: attention begins at the transposes of its inputs.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

_MOST_STEPS = 10
_MOST_BETWEEN = 16
_MOST_BEFORE = 12
"""Limits of a region: steps behind its anchor, calls of a step, calls before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """Calls of a model, numbered in order of execution."""

    reads: Mapping[int, Sequence[int]]
    """Calls that a call reads the results of."""

    readers: Mapping[int, Sequence[int]]
    constants: Collection[int]
    """Calls without an input of the model behind them."""

    anchors: Collection[int]
    borders: Collection[int]
    """Calls that no region reaches back beyond."""

    outputs: Collection[int]
    """Calls that give the results of the model."""


def regions(graph: Graph, anchor: int) -> Iterator[frozenset[int]]:
    """Yield regions around an anchor, likely ones first. The last call is the result."""
    grown = list(_grown(graph, anchor))
    near = next((n for n, one in enumerate(grown) if set(graph.anchors) & (one - {anchor})), len(grown))
    for n in (*range(near - 1, -1, -1), *range(near, len(grown))):
        yield _with_constants(graph, grown[n])
        if before := _before(graph, grown[n]):
            yield _with_constants(graph, grown[n] | before)


def _grown(graph: Graph, anchor: int) -> Iterator[frozenset[int]]:
    """Yield an anchor alone, and with one to ten steps behind it."""
    region, end = frozenset({anchor}), anchor
    yield region
    for _ in range(_MOST_STEPS):
        step = _step(graph, end)
        if not step:
            return
        region, end = region | step, max(step)
        yield region


def _step(graph: Graph, end: int) -> frozenset[int]:
    """Return the calls up to the next one that all readers of `end` lead to; none if that is not near."""
    if end in graph.outputs:
        return frozenset()
    pending, found = sorted(set(graph.readers[end])), set[int]()
    while pending:
        call = heapq.heappop(pending)
        found.add(call)
        if not pending:
            return frozenset(found)
        if call in graph.outputs or len(found) > _MOST_BETWEEN:
            break
        for reader in set(graph.readers[call]) - set(pending):
            heapq.heappush(pending, reader)
    return frozenset()


def _before(graph: Graph, region: frozenset[int]) -> frozenset[int]:
    """Return the calls that compute a region's inputs, back to anchors and borders."""
    found: set[int] = set()
    pending = [read for call in region for read in graph.reads[call]]
    while pending and len(found) < _MOST_BEFORE:
        call = pending.pop()
        is_end = call in graph.anchors or call in graph.borders or call in graph.constants
        if not is_end and call not in region | found:
            found.add(call)
            pending += graph.reads[call]
    return frozenset(found)


def _with_constants(graph: Graph, region: frozenset[int]) -> frozenset[int]:
    """Return a region with the constant calls that it reads."""
    found, pending = set(region), list(region)
    while pending:
        new = {read for read in graph.reads[pending.pop()] if read in graph.constants} - found
        found |= new
        pending += new
    return frozenset(found)
