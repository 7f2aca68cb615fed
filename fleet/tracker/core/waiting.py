"""Order of service of the waiting requests. Pure, and fast with 100,000 of them.

Accounts take turns, requests do not. A freed device goes to the highest class that waits for it, then to the account
with the least recent use over its weight. Within the account, priority, bid and age decide; they move no other account.
This is Choosy's rule (Ghodsi et al., EuroSys 2013): serving the account with the least, among those that a device
suits, approximates max-min fairness.

An account that was granted no device of a selector for `starvation_sec` is served next with its oldest request,
whatever the classes.

Requests of one account, class and selector form a lane. Heaps of lanes are corrected when they are read: a charge makes
an entry too small, so it is replaced when it comes to the top. Only an entry that becomes smaller is added at once.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import count, islice
from typing import TypeAlias

from sortedcontainers import SortedList

from fleet.domain.leases import LeaseClass
from fleet.tracker.core.accounts import Account, Accounts
from fleet.tracker.core.matching import Group, Matching
from fleet.tracker.core.records import RequestEntry

_MAX_STALE = 64
"""Number of stale entries of a heap, beside four for each lane, above which it is made anew."""

Key: TypeAlias = tuple[str, str]
"""Client and id of a request."""
Place: TypeAlias = tuple[int, float, float, int, Key]
"""Order within a lane: negative priority, negative bid, time, number of arrival; then the request's key."""
Turn: TypeAlias = tuple[int, float, float, str]
"""Order of accounts: rank of the class, level of use, start of the backlog, name."""


@dataclass(slots=True, eq=False)
class Lane:
    """Requests of one account and class with one selector; never empty while it is listed."""

    account: Account
    lease_class: LeaseClass
    backlog: Backlog
    served_sec: float = 0.0
    """Latest grant of a device of the selector to the account."""
    number: int = 0
    """Number of its valid entry in the heap of turns; 0: none, since a quota is used up."""
    places: SortedList = field(default_factory=SortedList)
    by_age: SortedList = field(default_factory=SortedList)
    """Requests as (time, arrival, key)."""

    @property
    def turn(self) -> Turn:
        """Present order of the lane."""
        return self.lease_class.rank, self.account.level, self.backlog.since_sec, self.account.name

    @property
    def waits_since_sec(self) -> float:
        """Start of the time without a suitable grant."""
        asked_at_sec: float = self.by_age[0][0]
        return max(self.served_sec, asked_at_sec)


@dataclass(slots=True, eq=False)
class Backlog:
    """Lanes of one account."""

    since_sec: float
    """Time of the oldest request since the account last waited for nothing. It orders accounts with equal use."""
    lanes: dict[tuple[LeaseClass, Group], Lane] = field(default_factory=dict)


class Line:
    """Lanes with one selector."""

    def __init__(self, numbers: Iterator[int]) -> None:
        self.lanes: dict[tuple[LeaseClass, str], Lane] = {}
        self._numbers = numbers
        self._turns: list[tuple[Turn, int, Lane]] = []
        self._starving: list[tuple[float, int, Lane]] = []

    def enter(self, lane: Lane) -> None:
        """Add or correct the entries of a lane."""
        if len(self._turns) + len(self._starving) > 8 * len(self.lanes) + _MAX_STALE:
            self._make_anew()
        lane.number = next(self._numbers)
        heapq.heappush(self._turns, (lane.turn, lane.number, lane))
        heapq.heappush(self._starving, (lane.waits_since_sec, lane.number, lane))

    def next_lane(self) -> Lane | None:
        """Return the next lane in turn."""
        heap = self._turns
        while heap:
            turn, number, lane = heap[0]
            if self._is_stale(number, lane):
                heapq.heappop(heap)
            elif turn != (current := lane.turn):
                heapq.heapreplace(heap, (current, number, lane))
            else:
                return lane
        return None

    def starving_lane(self, before_sec: float) -> tuple[float, int, Lane] | None:
        """Return the lane that has waited longest, with the start and a number, if it began before a moment."""
        heap = self._starving
        while heap and heap[0][0] < before_sec:
            since_sec, number, lane = heap[0]
            if self._is_stale(number, lane):
                heapq.heappop(heap)
            elif since_sec != (current := lane.waits_since_sec):
                heapq.heapreplace(heap, (current, number, lane))
            else:
                return heap[0]
        return None

    def _is_stale(self, number: int, lane: Lane) -> bool:
        """Return True for an entry that does not count, and for one with a used-up quota."""
        if number == lane.number and lane.account.is_blocked(lane.lease_class):
            lane.number = 0
        return number != lane.number

    def _make_anew(self) -> None:
        valid = [lane for lane in self.lanes.values() if lane.number]
        self._turns = [(lane.turn, lane.number, lane) for lane in valid]
        self._starving = [(lane.waits_since_sec, lane.number, lane) for lane in valid]
        heapq.heapify(self._turns)
        heapq.heapify(self._starving)


class Waiting:
    """Requests that wait, in the order of service."""

    def __init__(self, matching: Matching, accounts: Accounts) -> None:
        self._matching = matching
        self._accounts = accounts
        self._requests: dict[Key, RequestEntry] = {}
        self._lines: dict[Group, Line] = {}
        """Lanes by the group of their selector; no line is empty."""
        self._backlogs: dict[str, Backlog] = {}
        """Lanes by account; no backlog is empty."""
        self._numbers = count(1)

    def __len__(self) -> int:
        return len(self._requests)

    def push(self, request: RequestEntry) -> None:
        """Add a request."""
        self._requests[request.key] = request
        lane, is_new = self._lane(request)
        was_older = not is_new and lane.by_age[0][0] <= request.asked_at_sec
        lane.places.add(_place(request))
        lane.by_age.add(_age(request))
        backlog = lane.backlog
        if request.asked_at_sec < backlog.since_sec:
            backlog.since_sec = request.asked_at_sec
            self._enter_all(backlog)
        elif not was_older:
            self._enter(lane)

    def discard(self, request: RequestEntry) -> None:
        """Remove a request. Idempotent."""
        if self._requests.pop(request.key, None) is None:
            return
        group = self._matching.group(request.terms.selector)
        lane = self._backlogs[request.account].lanes[request.terms.lease_class, group]
        lane.places.remove(_place(request))
        lane.by_age.remove(_age(request))
        if not lane.places:
            self._close(lane, group)

    def discard_many(self, requests: Collection[RequestEntry]) -> None:
        """Remove requests."""
        for request in requests:
            self.discard(request)

    def waits_for(self, selector: str) -> bool:
        """Return True if a request with this selector waits."""
        return self._matching.group(selector).is_kept

    def next_for(self, device_name: str, now: float) -> RequestEntry | None:
        """Return the request that a free device serves next; None: none that its account's quotas allow."""
        lines = [line for group in self._matching.groups_of(device_name) if (line := self._lines.get(group))]
        before_sec = now - self._accounts.policy.starvation_sec
        starving = [found for line in lines if (found := line.starving_lane(before_sec))]
        if starving:
            return self._requests[min(starving)[2].by_age[0][2]]
        lanes = [lane for line in lines if (lane := line.next_lane())]
        if not lanes:
            return None
        return self._requests[min(lanes, key=_order).places[0][-1]]

    def note_grant(self, account: str, device_name: str, now: float) -> None:
        """Note that an account was granted a device: it does not starve for devices like this."""
        backlog = self._backlogs.get(account)
        if backlog is None:
            return
        for group in self._matching.groups_of(device_name):
            for lease_class in LeaseClass:
                if lane := backlog.lanes.get((lease_class, group)):
                    lane.served_sec = now

    def note_less(self, account: str) -> None:
        """Correct the order after an account's use, or the use of its quotas, became smaller."""
        if backlog := self._backlogs.get(account):
            self._enter_all(backlog)

    def note_all(self) -> None:
        """Correct the order after the use of all accounts, or their quotas, changed."""
        for backlog in self._backlogs.values():
            self._enter_all(backlog)

    def groups_of(self, account: str) -> list[Group]:
        """Return the groups of the selectors with which an account waits."""
        backlog = self._backlogs.get(account)
        return list(dict.fromkeys(group for _, group in backlog.lanes)) if backlog else []

    def lanes_of(self, group: Group) -> Collection[Lane]:
        """Return the lanes with one selector."""
        line = self._lines.get(group)
        return line.lanes.values() if line else ()

    def lane_in(self, group: Group, like: Lane) -> Lane | None:
        """Return the lane with a selector that has the account and class of another lane."""
        return like.backlog.lanes.get((like.lease_class, group))

    def lane_of(self, request: RequestEntry) -> tuple[Lane, int]:
        """Return the lane of a waiting request, and the number of its requests before this one."""
        group = self._matching.group(request.terms.selector)
        lane = self._backlogs[request.account].lanes[request.terms.lease_class, group]
        return lane, int(lane.places.bisect_left(_place(request)))

    def first(self, limit: int) -> Iterator[RequestEntry]:
        """Yield requests in the order of service if no lease began or ended: accounts of a class take turns."""
        by_class: dict[LeaseClass, dict[str, list[Lane]]] = {lease_class: {} for lease_class in LeaseClass}
        for name, backlog in self._backlogs.items():
            for (lease_class, _), lane in backlog.lanes.items():
                by_class[lease_class].setdefault(name, []).append(lane)
        keys = (key for lanes in by_class.values() for key in _take_turns(lanes.values()))
        return (self._requests[key] for key in islice(keys, limit))

    def _lane(self, request: RequestEntry) -> tuple[Lane, bool]:
        """Return the lane of a new request, and True if it was made for it."""
        group = self._matching.group(request.terms.selector)
        account = self._accounts.account(request.account)
        backlog = self._backlogs.get(account.name)
        if backlog is None:
            backlog = self._backlogs[account.name] = Backlog(request.asked_at_sec)
        lease_class = request.terms.lease_class
        if lane := backlog.lanes.get((lease_class, group)):
            return lane, False
        lane = backlog.lanes[lease_class, group] = Lane(account, lease_class, backlog)
        if (line := self._lines.get(group)) is None:
            line = self._lines[group] = Line(self._numbers)
            self._matching.keep(group)
        line.lanes[lease_class, account.name] = lane
        return lane, True

    def _enter(self, lane: Lane) -> None:
        group = self._matching.group(self._requests[lane.places[0][-1]].terms.selector)
        self._lines[group].enter(lane)

    def _enter_all(self, backlog: Backlog) -> None:
        for (_, group), lane in backlog.lanes.items():
            self._lines[group].enter(lane)

    def _close(self, lane: Lane, group: Group) -> None:
        lane.number = 0
        name, line = lane.account.name, self._lines[group]
        del lane.backlog.lanes[lane.lease_class, group]
        if not lane.backlog.lanes:
            del self._backlogs[name]
        del line.lanes[lane.lease_class, name]
        if not line.lanes:
            del self._lines[group]
            self._matching.release(group)

    def validate(self) -> None:
        """Compare every index with an exhaustive search.

        Raises:
            RuntimeError: they differ; the message names the index.
        """
        requests = self._requests.values()
        lanes: dict[tuple[str, LeaseClass, str], list[RequestEntry]] = {}
        for request in requests:
            lanes.setdefault((request.account, request.terms.lease_class, request.terms.selector), []).append(request)
        found = [(group, lane) for group, line in self._lines.items() for lane in line.lanes.values()]
        _require(len(found) == len(lanes), "number of lanes")
        for group, lane in found:
            own = lanes.get((lane.account.name, lane.lease_class, group.text), [])
            _require(list(lane.places) == sorted(map(_place, own)) and bool(own), f"requests of {group.text}")
            _require(list(lane.by_age) == sorted(map(_age, own)), f"ages of {group.text}")
            backlog = self._backlogs[lane.account.name]
            _require(backlog.lanes.get((lane.lease_class, group)) is lane, f"lanes of {lane.account.name}")
            _require(bool(lane.number) or lane.account.is_blocked(lane.lease_class), f"turn of {lane.account.name}")
        _require(sum(len(backlog.lanes) for backlog in self._backlogs.values()) == len(lanes), "lanes of accounts")
        self._matching.validate(self._lines)


def _take_turns(lanes_by_account: Iterable[list[Lane]]) -> Iterator[Key]:
    """Yield the requests of accounts in turns, the account with the least use first."""
    accounts = sorted(lanes_by_account, key=lambda lanes: lanes[0].turn)
    rests = [heapq.merge(*(lane.places for lane in lanes)) for lanes in accounts]
    while rests:
        remaining = []
        for rest in rests:
            if place := next(rest, None):
                yield place[-1]
                remaining.append(rest)
        rests = remaining


def _order(lane: Lane) -> tuple[Turn, Place]:
    return lane.turn, lane.places[0]


def _place(request: RequestEntry) -> Place:
    terms = request.terms
    return -terms.priority, -terms.bid, request.asked_at_sec, request.arrival, request.key


def _age(request: RequestEntry) -> tuple[float, int, Key]:
    return request.asked_at_sec, request.arrival, request.key


def _require(holds: bool, index: str) -> None:
    if not holds:
        raise RuntimeError(f"index of requests is wrong: {index}")
