"""Order of service of the waiting requests. Pure, and fast with 100,000 of them.

Accounts take turns, requests do not. A freed device goes to the highest class that waits for it, then to the account
with the least recent use over its weight. Within the account, priority, bid and age decide; they move no other account.
This is Choosy's rule (Ghodsi et al., EuroSys 2013): serving the account with the least, among those that a device
suits, approximates max-min fairness.

An account that was granted no device of a selector for `starvation_sec` is served next with its oldest request,
whatever the classes.

Requests of one account, class and selector form a lane. A freed device is offered to the accounts in their order, until
one has a lane with a selector that the device matches.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import chain, count, islice

from fleet.domain.leases import LeaseClass
from fleet.tracker.core.accounts import Accounts
from fleet.tracker.core.groups import Group
from fleet.tracker.core.lanes import Backlog, Key, Lane, Line, Place, Turn, age_of, place_of
from fleet.tracker.core.matching import Matching
from fleet.tracker.core.records import RequestEntry

_CLASSES = tuple(LeaseClass)
_FEW_LANES = 16
"""Number of a device's lanes up to which comparing all is faster than a search through the accounts."""
_MAX_FILLING_LANES = 16
_MAX_FILLING = 4
"""Number of lanes of each class, and of requests in each, that are examined for a lease of limited length."""


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
        self._turns: dict[LeaseClass, list[Turn]] = {lease_class: [] for lease_class in LeaseClass}
        """Sorted turns of the accounts that wait in each class."""
        self.exempt: dict[Key, RequestEntry] = {}
        """Requests for a device in spite of its mark, oldest first."""
        self._numbers = count(1)

    def __len__(self) -> int:
        return len(self._requests)

    def __contains__(self, request: RequestEntry) -> bool:
        return request.key in self._requests

    @property
    def account_count(self) -> int:
        """Number of accounts that wait."""
        return len(self._backlogs)

    def counts(self) -> Counter[LeaseClass]:
        """Count the requests of each class."""
        counts = Counter(dict.fromkeys(LeaseClass, 0))
        for backlog in self._backlogs.values():
            counts.update(backlog.counts)
        return counts

    def push(self, request: RequestEntry) -> None:
        """Add a request."""
        self._requests[request.key] = request
        if request.terms.even_if is not None:
            self.exempt[request.key] = request
        group = self._matching.group(request.terms.selector)
        backlog = self._backlog(request)
        lane = self._lane(backlog, request.terms.lease_class, group)
        is_oldest = not lane.by_age or request.asked_at_sec < lane.by_age[0][0]
        lane.places.add(place_of(request))
        lane.by_age.add(age_of(request))
        if not backlog.counts[lane.lease_class]:
            insort(self._turns[lane.lease_class], backlog.turn)
        backlog.counts[lane.lease_class] += 1
        if is_oldest:
            self._lines[group].note_wait(lane)
        if request.asked_at_sec < backlog.since_sec:
            backlog.since_sec = request.asked_at_sec
            self.note_use(backlog.account.name)

    def discard(self, request: RequestEntry) -> None:
        """Remove a request. Idempotent."""
        if self._requests.pop(request.key, None) is None:
            return
        self.exempt.pop(request.key, None)
        group = self._matching.group(request.terms.selector)
        lane = self._backlogs[request.account].lanes[group][request.terms.lease_class]
        backlog = lane.backlog
        lane.places.remove(place_of(request))
        lane.by_age.remove(age_of(request))
        backlog.counts[lane.lease_class] -= 1
        if not backlog.counts[lane.lease_class]:
            _remove(self._turns[lane.lease_class], backlog.turn)
        if not lane.places:
            self._close(lane, group)

    def discard_many(self, requests: Collection[RequestEntry]) -> None:
        """Remove requests."""
        for request in requests:
            self.discard(request)

    def starves(self, request: RequestEntry, now: float) -> bool:
        """Return True if the account of a waiting request was granted no suitable device for too long."""
        before_sec = now - self._accounts.policy.starvation_sec
        if request.asked_at_sec >= before_sec or request not in self:
            return False
        return self.lane_of(request)[0].waits_since_sec < before_sec

    def waits_for(self, selector: str) -> bool:
        """Return True if a request with this selector waits."""
        return self._matching.has_group(selector) and self._matching.group(selector).is_kept

    def next_for(self, device_name: str, now: float) -> RequestEntry | None:
        """Return the request that a free device serves next, or None if the accounts' quotas allow none."""
        is_suspect = device_name in self._matching.suspects
        return self.next_among(self._matching.groups_of(device_name), now, is_suspect=is_suspect)

    def next_among(self, groups: Iterable[Group], now: float, *, is_suspect: bool = False) -> RequestEntry | None:
        """Return the request that a free device in these groups, and in no others, serves next.

        Args:
            groups: all groups of the device.
            now: the current time [s].
            is_suspect: whether the device serves no batch request that does not name it.
        """
        found = [(group, line) for group in groups if (line := self._lines.get(group))]
        if not found:
            return None
        before_sec = now - self._accounts.policy.starvation_sec
        late = [each for _, line in found if line.may_starve(before_sec) for each in line.starving(before_sec)]
        if is_suspect:
            late = [each for each in late if each[2].lease_class is not LeaseClass.BATCH]
        if late:
            return self._requests[min(late, key=_wait)[2].by_age[0][2]]
        for lease_class in _CLASSES:
            if not self._turns[lease_class]:
                continue
            if is_suspect and lease_class is LeaseClass.BATCH:
                found = [(group, line) for group, line in found if group.exact_name is not None]
            by_name = [by_name for _, line in found if (by_name := line.lanes[lease_class])]
            if by_name and (lanes := self._next_lanes(lease_class, by_name)):
                first = lanes[0].places[0] if len(lanes) == 1 else min(lane.places[0] for lane in lanes)
                return self._requests[first[-1]]
        return None

    def next_within(
        self, device_name: str, longest_sec: float, default_sec: float, *, takes_batch: bool = False
    ) -> RequestEntry | None:
        """Return the first request for a device, in order, whose lease would last no longer than this.

        Args:
            default_sec: length of leases without their own limit.
            takes_batch: whether batch leases of any length will do.
        """
        found = [(group, line) for group in self._matching.groups_of(device_name) if (line := self._lines.get(group))]
        is_suspect = device_name in self._matching.suspects
        for lease_class in _CLASSES:
            is_batch = lease_class is LeaseClass.BATCH
            if is_suspect and is_batch:
                found = [(group, line) for group, line in found if group.exact_name is not None]
            lanes = [lane for _, line in found for lane in line.lanes[lease_class].values() if not lane.is_blocked]
            for lane in heapq.nsmallest(_MAX_FILLING_LANES, lanes, key=_lane_order):
                for place in lane.places[:_MAX_FILLING]:
                    request = self._requests[place[-1]]
                    if (takes_batch and is_batch) or (request.terms.max_sec or default_sec) <= longest_sec:
                        return request
        return None

    @property
    def waits_above_batch(self) -> bool:
        """True if a request above the class batch waits."""
        return bool(self._turns[LeaseClass.INTERACTIVE] or self._turns[LeaseClass.NORMAL])

    @property
    def least_level(self) -> float:
        """Use of the account with the least among those that wait in the class batch; infinite if none does."""
        turns = self._turns[LeaseClass.BATCH]
        return turns[0][0] if turns else math.inf

    def note_grant(self, account: str, device_name: str, now: float) -> None:
        """Note that an account was granted a device: it does not starve for devices like this."""
        backlog = self._backlogs.get(account)
        if backlog is None:
            return
        for group in self._matching.groups_of(device_name):
            for lane in backlog.lanes.get(group, {}).values():
                lane.served_sec = now

    def note_use(self, account: str) -> None:
        """Move an account to its place after its use changed."""
        backlog = self._backlogs.get(account)
        if backlog is None:
            return
        former, backlog.turn = backlog.turn, (backlog.account.level, backlog.since_sec, account)
        if backlog.turn == former:
            return
        for lease_class, waiting in backlog.counts.items():
            if waiting:
                _remove(self._turns[lease_class], former)
                insort(self._turns[lease_class], backlog.turn)

    def note_all(self) -> None:
        """Move all accounts to their places after the rules changed."""
        for name in self._backlogs:
            self.note_use(name)

    def groups(self) -> list[Group]:
        """Return the groups of all selectors that requests wait with."""
        return list(self._lines)

    def groups_of(self, account: str) -> list[Group]:
        """Return the groups of the selectors with which an account waits."""
        backlog = self._backlogs.get(account)
        return list(backlog.lanes) if backlog else []

    def lanes_of(self, group: Group) -> list[Lane]:
        """Return the lanes with one selector."""
        line = self._lines.get(group)
        return line.all_lanes() if line else []

    def lane_in(self, group: Group, like: Lane) -> Lane | None:
        """Return the lane with a selector that has the account and class of another lane."""
        return like.backlog.lanes.get(group, {}).get(like.lease_class)

    def lane_of(self, request: RequestEntry) -> tuple[Lane, int]:
        """Return the lane of a waiting request, and the number of its requests before this one."""
        group = self._matching.group(request.terms.selector)
        lane = self._backlogs[request.account].lanes[group][request.terms.lease_class]
        return lane, int(lane.places.bisect_left(place_of(request)))

    def highest_bid(self, account: str, groups: Iterable[Group], priority: int) -> float:
        """Return the highest bid of an account's batch requests for a device in these groups; 0 without one.

        Args:
            priority: the least that counts.
        """
        backlog = self._backlogs.get(account)
        if backlog is None:
            return 0.0
        lanes = (backlog.lanes.get(group, {}).get(LeaseClass.BATCH) for group in groups)
        firsts: list[Place] = [lane.places[0] for lane in lanes if lane is not None]
        return max((-bid for least, bid, *_ in firsts if -least >= priority), default=0.0)

    def first(self, limit: int) -> Iterator[RequestEntry]:
        """Yield requests in the order of service if no lease began or ended: accounts of a class take turns."""
        keys = (key for lease_class in LeaseClass for key in self._take_turns(lease_class))
        return (self._requests[key] for key in islice(keys, limit))

    def _next_lanes(self, lease_class: LeaseClass, lanes: Sequence[dict[str, Lane]]) -> list[Lane]:
        """Return the lanes, among those by account that a device serves, of the account that is next in turn."""
        if sum(map(len, lanes)) <= _FEW_LANES:
            least: Turn | None = None
            first: list[Lane] = []
            for each in chain.from_iterable(by_name.values() for by_name in lanes):
                turn = each.backlog.turn
                if (least is None or turn <= least) and not each.is_blocked:
                    first = [*first, each] if turn == least else [each]
                    least = turn
            return first
        for _, _, name in self._turns[lease_class]:
            found = [lane for by_name in lanes if (lane := by_name.get(name))]
            if found and not found[0].is_blocked:
                return found
        return []

    def _take_turns(self, lease_class: LeaseClass) -> Iterator[Key]:
        """Yield the requests of a class as its accounts take turns."""
        rests = [self._backlogs[name].places(lease_class) for _, _, name in self._turns[lease_class]]
        while rests:
            remaining = []
            for rest in rests:
                if place := next(rest, None):
                    yield place[-1]
                    remaining.append(rest)
            rests = remaining

    def _backlog(self, request: RequestEntry) -> Backlog:
        """Return the backlog of a request's account, made if it has none."""
        backlog = self._backlogs.get(request.account)
        if backlog is None:
            account, since_sec = self._accounts.account(request.account), request.asked_at_sec
            backlog = Backlog(account, since_sec, turn=(account.level, since_sec, account.name))
            self._backlogs[request.account] = backlog
        return backlog

    def _lane(self, backlog: Backlog, lease_class: LeaseClass, group: Group) -> Lane:
        """Return the lane for a request; create a missing one."""
        lanes = backlog.lanes.setdefault(group, {})
        if lane := lanes.get(lease_class):
            return lane
        lane = lanes[lease_class] = Lane(backlog, lease_class)
        if (line := self._lines.get(group)) is None:
            line = self._lines[group] = Line(self._numbers)
            self._matching.keep(group)
        line.lanes[lease_class][backlog.account.name] = lane
        return lane

    def _close(self, lane: Lane, group: Group) -> None:
        """Remove an empty lane."""
        backlog, lease_class, line = lane.backlog, lane.lease_class, self._lines[group]
        del backlog.lanes[group][lease_class]
        if not backlog.lanes[group]:
            del backlog.lanes[group]
        del line.lanes[lease_class][lane.account.name]
        if not backlog.lanes:
            del self._backlogs[lane.account.name]
        if not any(line.lanes.values()):
            del self._lines[group]
            self._matching.release(group)

    def validate(self, kept: Collection[Group] = ()) -> None:
        """Compare every index with an exhaustive search.

        Args:
            kept: groups that others keep.

        Raises:
            RuntimeError: they differ; the message names the index.
        """
        requests = self._requests.values()
        lanes: dict[tuple[str, LeaseClass, str], list[RequestEntry]] = {}
        for request in requests:
            lanes.setdefault((request.account, request.terms.lease_class, request.terms.selector), []).append(request)
        found = [(group, lane) for group in self._lines for lane in self.lanes_of(group)]
        _require(len(found) == len(lanes), "number of lanes")
        for group, lane in found:
            own = lanes.get((lane.account.name, lane.lease_class, group.text), [])
            _require(list(lane.places) == sorted(map(place_of, own)) and bool(own), f"requests of {group.text}")
            _require(list(lane.by_age) == sorted(map(age_of, own)), f"ages of {group.text}")
            backlog = self._backlogs[lane.account.name]
            _require(backlog.lanes[group].get(lane.lease_class) is lane, f"lanes of {lane.account.name}")
            _require(backlog.turn == (lane.account.level, backlog.since_sec, lane.account.name), "a turn")
        in_backlogs = sum(len(by_class) for backlog in self._backlogs.values() for by_class in backlog.lanes.values())
        _require(in_backlogs == len(lanes), "lanes of accounts")
        for lease_class, turns in self._turns.items():
            places: dict[str, list[Place]] = {}
            for request in requests:
                if request.terms.lease_class is lease_class:
                    places.setdefault(request.account, []).append(place_of(request))
            for name, expected in places.items():
                _require(list(self._backlogs[name].places(lease_class)) == sorted(expected), f"requests of {name}")
                _require(self._backlogs[name].counts[lease_class] == len(expected), f"number of requests of {name}")
            _require(turns == sorted(self._backlogs[name].turn for name in places), f"turns of {lease_class}")
        self._matching.validate([*self._lines, *kept])


def _remove(turns: list[Turn], turn: Turn) -> None:
    del turns[bisect_left(turns, turn)]


def _lane_order(lane: Lane) -> tuple[Turn, Place]:
    return lane.backlog.turn, lane.places[0]


def _wait(starving: tuple[float, str, Lane]) -> tuple[float, str]:
    return starving[:2]


def _require(holds: bool, index: str) -> None:
    if not holds:
        raise RuntimeError(f"index of requests is wrong: {index}")
