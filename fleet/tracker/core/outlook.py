"""Everything that decides when waiting requests are served, at one moment, as plain values for a forecast."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TypeAlias

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

    Requests that a used-up quota holds back are left out.
    """
    now, groups = tables.now_sec, tables.waiting.groups()
    members: dict[str, list[int]] = defaultdict(list)
    for index, group in enumerate(groups):
        for count, name in enumerate(list(group.devices), 1):
            members[name].append(index)
            if count % (8 * _PORTION) == 0:
                yield
        yield
    pools: dict[tuple[int, ...], int] = {}
    pools_of: dict[int, set[int]] = defaultdict(set)
    boards = []
    for count, (name, indices) in enumerate(members.items(), 1):
        device = tables.devices.get(name)
        if device is not None and device.is_attached and device.is_healthy:
            pool = pools.setdefault(tuple(indices), len(pools))
            for index in indices:
                pools_of[index].add(pool)
            boards.append(Board(pool, model_of(device), _held(device, now)))
        if count % _PORTION == 0:
            yield
    lanes: list[Lane] = []
    for index, group in enumerate(groups):
        for waiting in tables.waiting.lanes_of(group):
            if not waiting.is_blocked:
                lanes.append(_lane(waiting, frozenset(pools_of[index]), now))
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


def _held(device: DeviceEntry, now: float) -> Held | None:
    lease = device.lease
    return Held(lease.account, lease.terms.lease_class, max(now - lease.granted_at_sec, 0.0)) if lease else None
