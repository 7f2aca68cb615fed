"""Waiting sets in the order of their turns, and the devices that they hold. Pure.

Sets take turns as single requests do: by class, the account's use, and the place within the account. A set that
assembles holds one device for each of its selectors, leased or free, and a device is held by one set at most.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeAlias

from fleet.tracker.core.accounts import Account, Accounts
from fleet.tracker.core.groups import Group
from fleet.tracker.core.lanes import Key, place_of
from fleet.tracker.core.matching import Matching
from fleet.tracker.core.records import RequestEntry
from fleet.tracker.core.set_plan import Plan
from fleet.tracker.core.waiting import Waiting

Order: TypeAlias = tuple[bool, int, float, float, str, tuple[object, ...]]
"""False for a starving set, rank of the class, use of the account, start of its wait, its name; then the place."""


@dataclass(slots=True, eq=False)
class WaitingSet:
    """A set that waits. It assembles if `devices` are held for it."""

    request: RequestEntry
    account: Account
    member_keys: frozenset[Key]
    """Keys of demands to give way."""
    groups: list[Group] = field(default_factory=list)
    """Group of each selector that has been compared with all devices so far."""
    devices: tuple[str, ...] = ()
    """Held devices, one for each selector; empty while it does not assemble."""
    at_sec: float = math.inf
    """All held devices are free then at the latest."""
    is_told: bool = False
    """True once its client knows that it waits."""

    @property
    def size(self) -> int:
        """Number of devices."""
        return len(self.request.terms.selectors)

    @property
    def is_examined(self) -> bool:
        """True once the groups of all selectors exist."""
        return len(self.groups) == self.size

    @property
    def is_blocked(self) -> bool:
        """True if a quota of its account leaves no room for all devices."""
        return self.account.is_blocked(self.request.terms.lease_class, self.size)


class SetQueue:
    """All sets that wait."""

    def __init__(self, matching: Matching, accounts: Accounts, waiting: Waiting) -> None:
        self._matching = matching
        self._accounts = accounts
        self._waiting = waiting
        self.entries: dict[Key, WaitingSet] = {}
        self.held: dict[str, WaitingSet] = {}
        """The set that holds each device."""
        self.offered: deque[str] = deque()
        """Devices to be served again, since a set began or ceased to hold them."""
        self.unvisited: list[Key] = []
        """Sets still to be planned in the current round, in reverse order."""
        self.claims: set[Group] = set()
        """Groups of those sets of the current round that wait only for devices which earlier ones hold."""
        self.look_sec = -math.inf
        """Start of the next round."""

    def __len__(self) -> int:
        return len(self.entries)

    def add(self, request: RequestEntry) -> WaitingSet:
        """Add a set."""
        keys = frozenset((request.client_id, member_id) for member_id in request.member_ids)
        entry = WaitingSet(request, self._accounts.account(request.account), keys)
        self.entries[request.key] = entry
        return entry

    def add_group(self, entry: WaitingSet, selector: str) -> Group:
        """Add the group of the next selector of a set."""
        group = self._matching.group(selector)
        self._matching.keep(group)
        entry.groups.append(group)
        return group

    def discard(self, request: RequestEntry) -> None:
        """Remove a set. Idempotent."""
        entry = self.entries.pop(request.key, None)
        if entry is None:
            return
        self.let_go(entry)
        for group in entry.groups:
            self._matching.release(group)

    def hold(self, entry: WaitingSet, plan: Plan) -> list[WaitingSet]:
        """Hold devices for a set; return later sets that lose theirs."""
        former, entry.devices, entry.at_sec = entry.devices, plan.devices, plan.at_sec
        self._forget(former)
        losers = {id(loser): loser for name in plan.devices if (loser := self.held.get(name))}
        for loser in losers.values():
            self.let_go(loser)
        for name in plan.devices:
            self.held[name] = entry
            self._matching.set_busy(name)
        self.offered.extend(plan.devices)
        return list(losers.values())

    def let_go(self, entry: WaitingSet) -> None:
        """Stop holding devices for a set. Idempotent."""
        devices, entry.devices, entry.at_sec = entry.devices, (), math.inf
        self._forget(devices)

    def in_order(self, now: float) -> list[WaitingSet]:
        """Return all sets in the order of their turns."""
        first: dict[str, tuple[float, int]] = {}
        for entry in self.entries.values():
            request = entry.request
            age = (request.asked_at_sec, request.arrival)
            first[request.account] = min(first.get(request.account, age), age)
        return sorted(self.entries.values(), key=lambda entry: self._order(entry, first[entry.request.account], now))

    def goes_before(self, entry: WaitingSet, single: RequestEntry, now: float) -> bool:
        """Return True if it is the turn of a set before that of a single request."""
        own, lane = entry.request, self._waiting.lane_of(single)[0]
        before_sec = now - self._accounts.policy.starvation_sec
        waits = min(own.asked_at_sec, before_sec), min(lane.waits_since_sec, before_sec)
        if min(waits) < before_sec:
            return waits[0] < waits[1]
        if own.terms.lease_class is not single.terms.lease_class:
            return own.terms.lease_class.rank < single.terms.lease_class.rank
        if own.account == single.account:
            return place_of(own) < place_of(single)
        return (entry.account.level, own.asked_at_sec, own.account) < lane.backlog.turn

    def starves(self, entry: WaitingSet, now: float) -> bool:
        """Return True if a set has waited so long that no class goes before it."""
        return entry.request.asked_at_sec < now - self._accounts.policy.starvation_sec

    def _order(self, entry: WaitingSet, first: tuple[float, int], now: float) -> Order:
        request = entry.request
        is_oldest = (request.asked_at_sec, request.arrival) == first
        starves = is_oldest and self.starves(entry, now)
        rank = 0 if starves else request.terms.lease_class.rank
        level = request.asked_at_sec if starves else entry.account.level
        return not starves, rank, level, first[0], request.account, place_of(request)

    def _forget(self, devices: Iterable[str]) -> None:
        for name in devices:
            del self.held[name]
            self.offered.append(name)
