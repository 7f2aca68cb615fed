"""Positions of waiting requests: how many others are served before each, as the queue is now. Pure.

Accounts of one class take turns. So before the n-th request of an account come all suitable requests of higher classes,
and of every other account of its class as many as it has had turns by then.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass
from itertools import accumulate

from fleet.domain.leases import LeaseClass
from fleet.tracker.core.groups import Group
from fleet.tracker.core.lanes import Lane, Turn
from fleet.tracker.core.matching import Matching
from fleet.tracker.core.records import RequestEntry
from fleet.tracker.core.waiting import Waiting

_MAX_RIVAL_GROUPS = 64
"""Number of groups with shared devices above which a position counts all requests."""
_MAX_EXACT_LANES = 64
_KEPT_SEC = 1.0
"""A summary of more lanes than that is used again for this long."""
_MAX_SUMMARIES = 64


@dataclass(frozen=True, slots=True)
class _Summary:
    """Counts per account of one class's requests that compete for the devices of a selector."""

    higher_count: int
    """Number of requests of higher classes."""
    turns: list[Turn]
    """Turn of each account, sorted."""
    counts: list[int]
    """Number of requests of each account, sorted."""
    sums: list[int]
    """Sums of the first counts, beginning with 0."""

    def served_in(self, rounds: int) -> int:
        """Return the number of requests served when each account has had this many turns."""
        shorter = bisect_left(self.counts, rounds)
        return self.sums[shorter] + rounds * (len(self.counts) - shorter)


class Positions:
    """Positions in one queue."""

    def __init__(self, waiting: Waiting, matching: Matching) -> None:
        self._waiting = waiting
        self._matching = matching
        self._kept: dict[tuple[Group, LeaseClass], tuple[float, _Summary]] = {}

    def of(self, request: RequestEntry, now: float) -> int:
        """Return the number of requests that are served before this one and could take its device.

        Exact for the first request of an account. For a later one it may be too large by one turn of each account. If
        very many selectors compete, all requests count. It is never too small, unless the queue has just changed. Zero
        for a request that does not wait any more.
        """
        if request not in self._waiting:
            return 0
        lane, rank = self._waiting.lane_of(request)
        group = self._matching.group(request.terms.selector)
        rivals = self._matching.overlapping(group)
        if len(rivals) > _MAX_RIVAL_GROUPS:
            return len(self._waiting) - 1
        own = [other for rival in rivals if (other := self._waiting.lane_in(rival, lane))]
        place = lane.places[rank]
        before = rank + sum(int(other.places.bisect_left(place)) for other in own)
        summary = self._summary(group, rivals, lane.lease_class, now)
        if not before:
            return summary.higher_count + bisect_left(summary.turns, lane.backlog.turn)
        own_count = len(lane.places) + sum(len(other.places) for other in own)
        return summary.higher_count + before + summary.served_in(before + 1) - min(own_count, before + 1)

    def _summary(self, group: Group, rivals: set[Group], lease_class: LeaseClass, now: float) -> _Summary:
        at_sec, summary = self._kept.get((group, lease_class), (-_KEPT_SEC, None))
        if summary is not None and now - at_sec < _KEPT_SEC:
            return summary
        lanes = [lane for rival in (group, *rivals) for lane in self._waiting.lanes_of(rival)]
        summary = _summarize(lanes, lease_class)
        if len(lanes) > _MAX_EXACT_LANES:
            if len(self._kept) >= _MAX_SUMMARIES:
                self._kept.clear()
            self._kept[group, lease_class] = now, summary
        return summary


def _summarize(lanes: list[Lane], lease_class: LeaseClass) -> _Summary:
    counts, turns, higher_count = Counter[str](), dict[str, Turn](), 0
    for lane in lanes:
        if lane.lease_class is lease_class:
            counts[lane.account.name] += len(lane.places)
            turns[lane.account.name] = lane.backlog.turn
        elif lane.lease_class.rank < lease_class.rank:
            higher_count += len(lane.places)
    ordered = sorted(counts.values())
    return _Summary(higher_count, sorted(turns.values()), ordered, [0, *accumulate(ordered)])
