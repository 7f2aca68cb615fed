"""Order of service of the waiting requests. Pure, and fast with 100,000 of them.

Requests with one selector form a line. A freed device is offered only to the heads of its groups' lines.
The order never changes while a request waits: priority + age / aging grows equally fast for all, so the time of the
request shifted by the priority is a constant sort key.

Bids are claims of clients, so they only count among the requests of one user, identified by a certificate's key. The
order of service decides which user is next. Among that user's requests with the same priority, the highest bid is
served and swaps places with the request that it overtakes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import islice
from typing import TypeAlias

from sortedcontainers import SortedList

from fleet.tracker.core.matching import Group, Matching
from fleet.tracker.core.records import RequestEntry

BID_REACH_SEC = 600.0
"""Starvation bound: a bid only overtakes requests of its user that were made up to this much earlier."""
_MAX_BIDS = 64
"""Number of a user's highest bids that are checked for a match with the device."""

Place: TypeAlias = tuple[float, int, tuple[str, str]]
"""Order of a request, then its key. Tuples compare faster than requests by a key function."""


class Waiting:
    """Requests that wait, in the order of service."""

    def __init__(self, matching: Matching) -> None:
        self._matching = matching
        self._requests: dict[tuple[str, str], RequestEntry] = {}
        self._all = SortedList()
        """Places of all requests."""
        self._lines: dict[Group, SortedList] = {}
        """Places by the group of the selector; no line is empty."""
        self._bids: dict[tuple[str, int], SortedList] = {}
        """Requests with a bid as (-bid, place), by user and priority."""

    def __len__(self) -> int:
        return len(self._requests)

    def push(self, request: RequestEntry) -> None:
        """Add a request."""
        group = self._matching.group(request.terms.selector)
        if (line := self._lines.get(group)) is None:
            line = self._lines[group] = SortedList()
            self._matching.keep(group)
        place = _place(request)
        line.add(place)
        self._all.add(place)
        self._requests[request.key] = request
        if request.terms.bid:
            self._bids.setdefault(_bidder(request), SortedList()).add((-request.terms.bid, place))

    def discard(self, request: RequestEntry) -> None:
        """Remove a request. Idempotent."""
        if self._requests.pop(request.key, None) is None:
            return
        place = _place(request)
        self._all.remove(place)
        self._discard_bid(request)
        group = self._matching.group(request.terms.selector)
        line = self._lines[group]
        line.remove(place)
        if not line:
            self._close_line(group)

    def discard_many(self, requests: Collection[RequestEntry]) -> None:
        """Remove requests; faster than one by one if they are most of all."""
        if len(requests) * 8 < len(self._requests):
            for request in requests:
                self.discard(request)
            return
        gone = {request.key: request for request in requests if self._requests.pop(request.key, None)}
        for request in gone.values():
            self._discard_bid(request)
        self._all = SortedList(place for place in self._all if place[2] not in gone)
        for selector in dict.fromkeys(request.terms.selector for request in gone.values()):
            group = self._matching.group(selector)
            left = SortedList(place for place in self._lines[group] if place[2] not in gone)
            self._lines[group] = left
            if not left:
                self._close_line(group)

    def move(self, request: RequestEntry, order: tuple[float, int]) -> None:
        """Give a request the place of one that no longer waits."""
        self.discard(request)
        request.order = order
        self.push(request)

    def waits_for(self, selector: str) -> bool:
        """Return True if a request with this selector waits."""
        return self._matching.group(selector).is_kept

    def next_for(self, device_name: str) -> RequestEntry | None:
        """Return the first request in the order of service that matches a device."""
        best: Place | None = None
        for group in self._matching.groups_of(device_name):
            line = self._lines.get(group)
            if line is not None and (best is None or line[0] < best):
                best = line[0]
        return None if best is None else self._requests[best[2]]

    def highest_bid(self, first: RequestEntry, device_name: str) -> RequestEntry:
        """Return the request to serve in a request's turn: itself, or one of the same user with a higher bid."""
        latest_sec = first.due_sec + BID_REACH_SEC
        for negative, (due_sec, _, key) in islice(self._bids.get(_bidder(first), ()), _MAX_BIDS):
            if -negative <= first.terms.bid:
                break
            rival = self._requests[key]
            if due_sec <= latest_sec and device_name in self._matching.group(rival.terms.selector).devices:
                return rival
        return first

    def count_before(self, request: RequestEntry, group: Group | None = None) -> int:
        """Return the number of requests before this one, in the line of a group or in all."""
        line = self._all if group is None else self._lines.get(group)
        return 0 if line is None else int(line.bisect_left(request.order))

    def first(self, limit: int) -> Iterator[RequestEntry]:
        """Yield requests in the order of service."""
        return (self._requests[key] for _, _, key in islice(self._all, limit))

    def _discard_bid(self, request: RequestEntry) -> None:
        if not request.terms.bid:
            return
        bids = self._bids[_bidder(request)]
        bids.remove((-request.terms.bid, _place(request)))
        if not bids:
            del self._bids[_bidder(request)]

    def _close_line(self, group: Group) -> None:
        del self._lines[group]
        self._matching.release(group)

    def validate(self) -> None:
        """Compare every index with an exhaustive search.

        Raises:
            RuntimeError: they differ; the message names the index.
        """
        requests = self._requests.values()
        _require(list(self._all) == sorted(map(_place, requests)), "order of all requests")
        for group, line in self._lines.items():
            expected = sorted(_place(request) for request in requests if request.terms.selector == group.text)
            _require(list(line) == expected and bool(expected), f"requests of {group.text}")
        _require(sum(map(len, self._lines.values())) == len(requests), "number of requests in lines")
        bids = sorted((-request.terms.bid, _place(request)) for request in requests if request.terms.bid)
        _require(sorted(bid for own in self._bids.values() for bid in own) == bids, "bids")
        self._matching.validate(self._lines)


def _bidder(request: RequestEntry) -> tuple[str, int]:
    return request.user, request.terms.priority


def _place(request: RequestEntry) -> Place:
    return *request.order, request.key


def _require(holds: bool, index: str) -> None:
    if not holds:
        raise RuntimeError(f"index of requests is wrong: {index}")
