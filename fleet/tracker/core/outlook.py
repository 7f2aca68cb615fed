"""Everything that decides when waiting requests are served, at one moment, as plain values for a forecast."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice, takewhile
from typing import TypeAlias, TypeGuard

from fleet.domain.health import HealthState
from fleet.domain.lease_class import LeaseClass
from fleet.tracker.core import yielding
from fleet.tracker.core.booking_table import PlannedBooking
from fleet.tracker.core.groups import Group
from fleet.tracker.core.lanes import Lane as WaitingLane
from fleet.tracker.core.lanes import Place, place_of
from fleet.tracker.core.records import DeviceEntry
from fleet.tracker.core.set_plan import shortage
from fleet.tracker.core.set_queue import WaitingSet
from fleet.tracker.core.tables import Tables

_PORTION = 256
"""Devices or requests that are read at once: under 1 ms."""
_LANE_REQUESTS = 500
"""Requests of one account, class and selector that are scheduled."""
_MAX_BOOKED = 64
"""Number of booked boards of a lane above which calibrated times are not moved past bookings."""
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
    is_safe: bool = False
    """True for a batch lease that gives way to no request yet."""


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
    """Longest lease of each request [s]; empty without bookings."""
    booked: Sequence[Sequence[Span]] = ()
    """Bookings of each of its boards; empty unless all are booked, and they are few."""
    members: Sequence[frozenset[int]] = ()
    """Pools of each member, if the lane is one set."""

    def leaves_alone(self, index: int, left_sec: float, yield_sec: float) -> bool:
        """Return True if a lease of a request fits before a booking, as `fleet.tracker.core.booked.fits` decides.

        Sets wait for devices without bookings.

        Args:
            left_sec: time until the booking [s].
        """
        if self.members:
            return False
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


@dataclass(frozen=True, slots=True)
class BookedLane:
    """Requests that wait for a booking of their account, in order, and its boards."""

    account: str
    span: Span
    boards: Sequence[Board]
    """Those that can be had, with leases of the booking only: others end at its start."""
    requests: Sequence[tuple[Key, LeaseClass]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """Boards and requests at one moment."""

    boards: Sequence[Board]
    lanes: Sequence[Lane]
    booked_lanes: Sequence[BookedLane] = ()
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
    now, policy = tables.now_sec, tables.accounts.policy
    sets = [entry for entry in tables.sets.entries.values() if entry.is_examined and not entry.is_blocked]
    groups = list(dict.fromkeys(chain(tables.waiting.groups(), *(entry.groups for entry in sets))))
    pools = _Pools(has_bookings=len(tables.bookings) > 0)
    boards = yield from _boards(tables, groups, pools, model_of)
    lanes = yield from _lanes(tables, groups, pools, now)
    for entry in sets:
        if _can_be_had(tables, entry):
            lanes.append(_set_lane(entry, [frozenset(pools.of[group]) for group in entry.groups], now))
        yield
    booked_lanes = []
    for booking in list(tables.bookings.entries.values()):
        if booking.requests:
            booked_lanes.append(_lane_of_booking(tables, booking, model_of))
            yield
    accounts = [tables.accounts.account(name) for name in {lane.account for lane in lanes}]
    uses = {account.name: tables.accounts.used_sec(account, now) / account.weight for account in accounts}
    levels = sorted(account.level for account in tables.accounts.by_name.values())
    use_ranks = {account.name: bisect_left(levels, account.level) / len(levels) for account in accounts}
    yield_sec = policy.yield_grace_sec * _YIELD_SHARE
    return Outlook(
        boards=boards, lanes=lanes, booked_lanes=booked_lanes, uses=uses, use_ranks=use_ranks, yield_sec=yield_sec
    )


@dataclass(slots=True)
class _Pools:
    """Numbers of the pools."""

    has_bookings: bool
    of: defaultdict[Group, set[int]] = field(default_factory=lambda: defaultdict(set))
    suspects: set[int] = field(default_factory=set)
    """Those of suspect devices, which serve no batch request that does not name them."""
    booked: defaultdict[int, list[Sequence[Span]]] = field(default_factory=lambda: defaultdict(list))
    """Bookings of each device in a pool."""


def _boards(
    tables: Tables, groups: Sequence[Group], pools: _Pools, model_of: Callable[[DeviceEntry], str]
) -> Generator[None, None, list[Board]]:
    """Return the devices that serve, and fill the pools."""
    groups_of: dict[str, list[int]] = defaultdict(list)
    for index, group in enumerate(groups):
        for count, name in enumerate(list(group.devices), 1):
            groups_of[name].append(index)
            if count % (8 * _PORTION) == 0:
                yield
        yield
    now, numbers, boards = tables.now_sec, dict[tuple[int, ...], int](), list[Board]()
    for count, (name, indices) in enumerate(groups_of.items(), 1):
        device = tables.devices.get(name)
        if _serves(device):
            is_suspect = device.mark.state is HealthState.SUSPECT
            pool = numbers.setdefault((*indices, -1) if is_suspect else tuple(indices), len(numbers))
            if is_suspect:
                pools.suspects.add(pool)
            for index in indices:
                pools.of[groups[index]].add(pool)
            booked = _booked(tables, name, now) if pools.has_bookings else ()
            pools.booked[pool].append(booked)
            boards.append(Board(pool, model_of(device), _held(tables, device), booked))
        if count % _PORTION == 0:
            yield
    return boards


def _lanes(tables: Tables, groups: Sequence[Group], pools: _Pools, now: float) -> Generator[None, None, list[Lane]]:
    """Return the lanes of single requests."""
    lanes = []
    for group in groups:
        every = frozenset(pools.of[group])
        for waiting in tables.waiting.lanes_of(group):
            if not waiting.is_blocked:
                takes_suspects = waiting.lease_class is not LeaseClass.BATCH or group.exact_name is not None
                lane = _lane(waiting, every if takes_suspects else every - pools.suspects, now)
                lanes.append(_booked_lane(tables, lane, pools.booked) if pools.has_bookings else lane)
                yield
    return lanes


def _lane(waiting: WaitingLane, pools: frozenset[int], now: float) -> Lane:
    places, account = list(islice(waiting.places, _LANE_REQUESTS)), waiting.account
    keys, age_sec = [place[-1] for place in places], max(now - waiting.by_age[0][0], 0.0)
    return Lane(account.name, waiting.lease_class, pools, keys, places, account.weight, age_sec)


def _set_lane(entry: WaitingSet, members: Sequence[frozenset[int]], now: float) -> Lane:
    request = entry.request
    age_sec, pools = max(now - request.asked_at_sec, 0.0), frozenset().union(*members)
    return Lane(
        entry.account.name,
        request.terms.lease_class,
        pools,
        [request.key],
        [place_of(request)],
        entry.account.weight,
        age_sec,
        members=members,
    )


def _can_be_had(tables: Tables, entry: WaitingSet) -> bool:
    """Return True if a set can be had with devices that serve now and are not booked."""

    def serving(group: Group) -> list[str]:
        names = (name for name in islice(group.devices, _PORTION) if name not in tables.bookings.by_device)
        return list(islice((name for name in names if _serves(tables.devices.get(name))), entry.size))

    return not shortage([serving(group) for group in entry.groups])


def _lane_of_booking(tables: Tables, booking: PlannedBooking, model_of: Callable[[DeviceEntry], str]) -> BookedLane:
    """Return the requests of a booking up to the first that a quota holds back."""
    now, entry, account = tables.now_sec, booking.entry, tables.accounts.account(booking.entry.account)
    boards = []
    for slot in booking.slots:
        device = tables.devices.get(slot.device_name)
        if device is not None and not slot.is_lost:
            boards.append(Board(0, model_of(device), _held(tables, device) if slot.lease_name else None))
    requests = [
        (request.key, request.terms.lease_class) for request in islice(booking.requests.values(), _LANE_REQUESTS)
    ]
    served = takewhile(lambda request: not account.is_blocked(request[1]), requests)
    return BookedLane(account.name, (entry.starts_at_sec - now, entry.ends_at_sec - now), boards, list(served))


def _serves(device: DeviceEntry | None) -> TypeGuard[DeviceEntry]:
    """Return True if requests are granted a device."""
    return device is not None and device.is_attached and device.is_healthy and device.mark.state.is_open


def _booked_lane(tables: Tables, lane: Lane, booked_in: Mapping[int, Sequence[Sequence[Span]]]) -> Lane:
    """Return a lane that knows the lengths of its leases, and the bookings of its boards."""
    requests = (tables.clients[client_id].requests[request_id] for client_id, request_id in lane.keys)
    longest_sec = [request.terms.max_sec or tables.limits.max_duration_sec for request in requests]
    booked: list[Sequence[Span]] = []
    for spans in chain.from_iterable(booked_in[pool] for pool in sorted(lane.pools)):
        if not spans or len(booked) == _MAX_BOOKED:
            return replace(lane, longest_sec=longest_sec)
        booked.append(spans)
    return replace(lane, longest_sec=longest_sec, booked=booked)


def _booked(tables: Tables, name: str, now: float) -> list[Span]:
    """Return the bookings of a device."""
    entries = (slot.booking.entry for slot in tables.bookings.by_device.get(name, ()))
    return [(entry.starts_at_sec - now, entry.ends_at_sec - now) for entry in entries]


def _held(tables: Tables, device: DeviceEntry) -> Held | None:
    lease = device.lease
    if lease is None:
        return None
    age_sec = max(tables.now_sec - lease.granted_at_sec, 0.0)
    return Held(lease.account, lease.terms.lease_class, age_sec, yielding.is_safe(tables, lease))
