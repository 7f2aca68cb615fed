"""Lanes of waiting requests: those of one account and class with one selector. Values of `waiting`."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from sortedcontainers import SortedList

from fleet.domain.leases import LeaseClass
from fleet.tracker.core.accounts import Account
from fleet.tracker.core.groups import Group
from fleet.tracker.core.records import RequestEntry

_CLASSES = tuple(LeaseClass)
_MAX_STALE = 64
"""Number of stale entries of a heap, beside four for each lane, above which it is made anew."""

Key: TypeAlias = tuple[str, str]
"""Client and id of a request."""
Place: TypeAlias = tuple[int, float, float, int, Key]
"""Order within a lane: negative priority, negative bid, time, number of arrival; then the request's key."""
Turn: TypeAlias = tuple[float, float, str]
"""Order of accounts within a class: level of use, start of the backlog, name."""


@dataclass(slots=True, eq=False)
class Backlog:
    """Waiting requests of one account."""

    account: Account
    since_sec: float
    """Time of the oldest request since the account last waited for nothing. It orders accounts with equal use."""
    turn: Turn
    lanes: dict[Group, dict[LeaseClass, Lane]] = field(default_factory=dict)
    counts: dict[LeaseClass, int] = field(default_factory=lambda: dict.fromkeys(_CLASSES, 0))
    """Number of requests of all lanes, by class."""

    def places(self, lease_class: LeaseClass) -> Iterator[Place]:
        """Return the places of the requests of a class, in order."""
        return heapq.merge(*(lane.places for lanes in self.lanes.values() if (lane := lanes.get(lease_class))))


@dataclass(slots=True, eq=False)
class Lane:
    """Requests of one account and class with one selector; never empty."""

    backlog: Backlog
    lease_class: LeaseClass
    served_sec: float = 0.0
    """Latest grant of a device of the selector to the account."""
    places: SortedList = field(default_factory=SortedList)
    by_age: SortedList = field(default_factory=SortedList)
    """Requests as (time, arrival, key)."""

    @property
    def account(self) -> Account:
        """Account of the requests."""
        return self.backlog.account

    @property
    def waits_since_sec(self) -> float:
        """Start of the time without a suitable grant."""
        asked_at_sec: float = self.by_age[0][0]
        return max(self.served_sec, asked_at_sec)

    @property
    def is_blocked(self) -> bool:
        """True if a quota of its account is used up."""
        return self.backlog.account.is_blocked(self.lease_class)


class Line:
    """Lanes with one selector."""

    def __init__(self, numbers: Iterator[int]) -> None:
        self.lanes: dict[LeaseClass, dict[str, Lane]] = {lease_class: {} for lease_class in LeaseClass}
        """Lanes by class and account."""
        self._numbers = numbers
        self._by_wait: list[tuple[float, int, Lane]] = []
        """Heap of lanes by the start of their wait, or by an earlier moment."""

    def all_lanes(self) -> list[Lane]:
        """Return the lanes of all classes."""
        return [lane for lanes in self.lanes.values() for lane in lanes.values()]

    def note_wait(self, lane: Lane) -> None:
        """Note the start of a lane's wait, if it is new or earlier than before."""
        if len(self._by_wait) > 4 * sum(map(len, self.lanes.values())) + _MAX_STALE:
            self._by_wait = [(each.waits_since_sec, next(self._numbers), each) for each in self.all_lanes()]
            heapq.heapify(self._by_wait)
        heapq.heappush(self._by_wait, (lane.waits_since_sec, next(self._numbers), lane))

    def may_starve(self, before_sec: float) -> bool:
        """Return False if no lane has waited since before a moment."""
        return bool(self._by_wait) and self._by_wait[0][0] < before_sec

    def starving(self, before_sec: float) -> Iterator[tuple[float, str, Lane]]:
        """Yield the lanes that have waited since before a moment, with the start of their wait and their account."""
        found = []
        while self._by_wait and self._by_wait[0][0] < before_sec:
            since_sec, number, lane = heapq.heappop(self._by_wait)
            if not lane.places:
                continue
            found.append((lane.waits_since_sec, number, lane))
            if found[-1][0] == since_sec and not lane.is_blocked:
                yield since_sec, lane.account.name, lane
        for entry in found:
            heapq.heappush(self._by_wait, entry)


def place_of(request: RequestEntry) -> Place:
    """Return the order of a request within its account and class."""
    terms = request.terms
    return -terms.priority, -terms.bid, request.asked_at_sec, request.arrival, request.key


def age_of(request: RequestEntry) -> tuple[float, int, Key]:
    """Return the order of a request by age."""
    return request.asked_at_sec, request.arrival, request.key
