"""Everything that decides when waiting requests are served, at one moment, as plain values for a forecast."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from typing import TypeAlias

from fleet.domain.health import HealthState
from fleet.domain.lease_class import LeaseClass
from fleet.tracker.core.records import DeviceEntry
from fleet.tracker.core.tables import Tables
from fleet.tracker.core.waiting import Lane as WaitingLane
from fleet.tracker.core.waiting import Place

_PORTION = 256
"""Devices or requests that are read at once: under 1 ms."""
_LANE_REQUESTS = 500
"""Requests of one account, class and selector that are scheduled."""
_YIELD_SHARE = 1 / 3
"""Typical share of its grace after which a lease gives way."""

Key: TypeAlias = tuple[str, str]
"""Client and id of a request."""
Span: TypeAlias = tuple[float, float]
"""Start and end, from now on [s]; a start before now is negative."""


@dataclass(frozen=True, slots=True)
class Held:
    """A live lease."""

    account: str
    lease_class: LeaseClass
    age_sec: float


@dataclass(frozen=True, slots=True)
class Board:
    """A device that serves."""

    pool: int
    """Devices with one number match the same selectors of waiting requests."""
    model: str
    held: Held | None = None
    booked: Sequence[Span] = ()
    """Its bookings, earliest first."""

    def next_booking(self, sec: float) -> Span | None:
        """Return the current or next booking at a moment; None if there is none any more."""
        return next((span for span in self.booked if span[1] > sec), None)


@dataclass(frozen=True, slots=True)
class Lane:
    """Requests of one account and class with one selector, in order."""

    account: str
    lease_class: LeaseClass
    pools: frozenset[int]
    keys: Sequence[Key]
    places: Sequence[Place]
    """Order among all lanes of the account and class."""
    weight: float = 1.0
    age_sec: float = 0.0
    """Age of its oldest request [s]."""
    longest_sec: Sequence[float] = ()
    """Longest lease of each request [s]; empty while there are no bookings."""
    booked: Sequence[Sequence[Span]] = ()
    """Bookings of each of its boards; empty unless all are booked."""

    def leaves_alone(self, index: int, left_sec: float, yield_sec: float) -> bool:
        """Return True if a lease of a request fits before a booking, as `fleet.tracker.core.booked.fits` decides.

        Args:
            left_sec: time until the booking [s].
        """
        if self.lease_class is LeaseClass.BATCH:
            return left_sec > yield_sec
        return self.longest_sec[index] <= left_sec

    def open_from(self, index: int, sec: float, yield_sec: float) -> float:
        """Return the first moment, not before `sec`, at which bookings leave one of its boards to a request."""
        while ends := [self._closed_until(index, sec, booked, yield_sec) for booked in self.booked]:
            if min(ends) <= sec:
                break
            sec = min(ends)
        return sec

    def _closed_until(self, index: int, sec: float, booked: Sequence[Span], yield_sec: float) -> float:
        """Return the end of the booking that keeps a request from a board at a moment; the moment if none does."""
        for start, end in booked:
            if sec < end and not self.leaves_alone(index, start - sec, yield_sec):
                return end
        return sec


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """Boards and requests at one moment."""

    boards: Sequence[Board]
    lanes: Sequence[Lane]
    uses: Mapping[str, float]
    """Recent use of each account over its weight [device seconds]."""
    use_ranks: Mapping[str, float] = field(default_factory=dict)
    """Share of all accounts that have had less than each account, 0 to 1."""
    yield_sec: float = 5.0
    """Time in which a lease gives way [s]."""


def make_outlook(tables: Tables, model_of: Callable[[DeviceEntry], str]) -> Generator[None, None, Outlook]:
    """Return the outlook of the present queue; yields after each portion.

    Requests that a used-up quota holds back are left out, and devices with a mark that closes them.
    """
    now, groups, has_bookings = tables.now_sec, tables.waiting.groups(), len(tables.bookings) > 0
    members: dict[str, list[int]] = defaultdict(list)
    for index, group in enumerate(groups):
        for count, name in enumerate(list(group.devices), 1):
            members[name].append(index)
            if count % (8 * _PORTION) == 0:
                yield
        yield
    pools: dict[tuple[int, ...], int] = {}
    suspects: set[int] = set()
    pools_of: dict[int, set[int]] = defaultdict(set)
    booked_in: dict[int, list[Sequence[Span]]] = defaultdict(list)
    boards = []
    for count, (name, indices) in enumerate(members.items(), 1):
        device = tables.devices.get(name)
        if device is not None and device.is_attached and device.is_healthy and device.mark.state.is_open:
            is_suspect = device.mark.state is HealthState.SUSPECT
            pool = pools.setdefault((*indices, -1) if is_suspect else tuple(indices), len(pools))
            if is_suspect:
                suspects.add(pool)
            for index in indices:
                pools_of[index].add(pool)
            booked = _booked(tables, name, now) if has_bookings else ()
            booked_in[pool].append(booked)
            boards.append(Board(pool, model_of(device), _held(device, now), booked))
        if count % _PORTION == 0:
            yield
    lanes: list[Lane] = []
    for index, group in enumerate(groups):
        pools_of_group = frozenset(pools_of[index])
        for waiting in tables.waiting.lanes_of(group):
            if not waiting.is_blocked:
                is_named = group.exact_name is not None
                own = (
                    pools_of_group - suspects
                    if waiting.lease_class is LeaseClass.BATCH and not is_named
                    else pools_of_group
                )
                lane = _lane(waiting, own, now)
                lanes.append(_booked_lane(tables, lane, booked_in) if has_bookings else lane)
                yield
    accounts = [tables.accounts.account(name) for name in {lane.account for lane in lanes}]
    uses = {account.name: tables.accounts.used_sec(account, now) / account.weight for account in accounts}
    levels = sorted(account.level for account in tables.accounts.by_name.values())
    use_ranks = {account.name: bisect_left(levels, account.level) / len(levels) for account in accounts}
    yield_sec = tables.accounts.policy.yield_grace_sec * _YIELD_SHARE
    return Outlook(boards=boards, lanes=lanes, uses=uses, use_ranks=use_ranks, yield_sec=yield_sec)


def _lane(waiting: WaitingLane, pools: frozenset[int], now: float) -> Lane:
    places, account = list(islice(waiting.places, _LANE_REQUESTS)), waiting.account
    keys, age_sec = [place[-1] for place in places], max(now - waiting.by_age[0][0], 0.0)
    return Lane(account.name, waiting.lease_class, pools, keys, places, account.weight, age_sec)


def _booked_lane(tables: Tables, lane: Lane, booked_in: Mapping[int, Sequence[Sequence[Span]]]) -> Lane:
    """Return a lane that knows the lengths of its leases, and the bookings of its boards."""
    requests = (tables.clients[client_id].requests[request_id] for client_id, request_id in lane.keys)
    longest_sec = [request.terms.max_sec or tables.limits.max_duration_sec for request in requests]
    booked: list[Sequence[Span]] = []
    for spans in chain.from_iterable(booked_in[pool] for pool in sorted(lane.pools)):
        if not spans:
            return replace(lane, longest_sec=longest_sec)
        booked.append(spans)
    return replace(lane, longest_sec=longest_sec, booked=booked)


def _booked(tables: Tables, name: str, now: float) -> list[Span]:
    """Return the bookings of a device."""
    entries = (slot.booking.entry for slot in tables.bookings.by_device.get(name, ()))
    return [(entry.starts_at_sec - now, entry.ends_at_sec - now) for entry in entries]


def _held(device: DeviceEntry, now: float) -> Held | None:
    lease = device.lease
    return Held(lease.account, lease.terms.lease_class, max(now - lease.granted_at_sec, 0.0)) if lease else None
