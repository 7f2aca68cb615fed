"""Schedulers of a simulated lab: the tracker's state, and two rules that other trackers have."""

from __future__ import annotations

import functools
import heapq
import math
from collections import defaultdict, deque
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from sortedcontainers import SortedList

from benchmarks.lab_sim import Ask, Simulation
from benchmarks.lab_trace import BOARDS, MODELS
from fleet.domain.leases import LeaseClass, LeaseTerms
from fleet.domain.selectors import device_labels
from fleet.tracker.core import events as ev
from fleet.tracker.core.records import TrackerLimits
from fleet.tracker.core.share_policy import EVERY_ACCOUNT, Quota, SharePolicy
from fleet.tracker.core.state import TrackerState

EPOCH_SEC = 1_800_000_000.0
"""The simulation's zero on the tracker's clock."""
_LONG_SEC = 1e8
_RENEWAL_SEC = 900.0
"""Interval of a lease's renewals."""
_TTL_SEC = 4 / 3 * _RENEWAL_SEC
"""A lease that outlasts its expected length is charged for this at its renewal, until it ends."""
_FAMILY = "family."


class Turns:
    """The tracker's own state, with a quota of interactive leases that does not bind: people here ask at random."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        limits = TrackerLimits(max_ttl_sec=_LONG_SEC, max_duration_sec=_LONG_SEC, max_waiting_per_client=100_000)
        policy = SharePolicy(class_quotas={EVERY_ACCOUNT: {LeaseClass.INTERACTIVE: Quota(leases=16)}})
        self._state = TrackerState(boot=1, limits=limits, policy=policy)
        self._asks: dict[str, Ask] = {}
        self._clients: set[str] = set()
        self._tick_sec = math.inf
        """Time of the next tick that is planned."""
        self._idle_count, self._counted_sec = 0, 0.0
        """Number of idle boards that are held for sets, and the time since when."""
        offers = tuple(_offer(board, model) for board, model in simulation.boards.items())
        self._apply(ev.AgentAttached("lab", "here:1", offers), 0.0)
        self._show_demand()

    def ask(self, ask: Ask, now: float) -> None:
        account = ask.arrival.account
        if account not in self._clients:
            self._clients.add(account)
            self._apply(ev.ClientConnected(account, account), now)
        request_id = str(ask.number)
        self._asks[request_id] = ask
        terms = _terms(ask.arrival.selectors, ask.arrival.lease_class)
        self._apply(ev.Acquire(account, request_id, terms, ask.continues), now)

    def end(self, ask: Ask, now: float) -> None:
        self._apply(ev.Release(ask.arrival.account, ask.lease_name), now)

    def is_reserved(self, board: str) -> bool:
        return f"devices/{board}" in self._state.sets.held

    def _show_demand(self) -> None:
        """Request a board with each selector once, and give it back: the tracker has run before this week."""
        client = "before"
        self._state.apply(ev.ClientConnected(client, client), EPOCH_SEC)
        for name in MODELS:
            terms = LeaseTerms(selector=_selector(name), ttl_sec=_TTL_SEC)
            for effect in self._state.apply(ev.Acquire(client, name, terms), EPOCH_SEC):
                if isinstance(effect, ev.Granted):
                    self._state.apply(ev.Release(client, effect.lease.name), EPOCH_SEC)
        self._state.take_changes()

    def _apply(self, event: ev.Event, now: float) -> None:
        if self._idle_count:
            self._simulation.outcome.held_idle_sec += self._idle_count * (now - self._counted_sec)
        effects = self._state.apply(event, EPOCH_SEC + now)
        self._state.used_accounts.clear()  # no journal stores their use
        self._state.take_changes()
        boards_of: dict[str, list[tuple[str, str]]] = {}
        for effect in effects:
            if isinstance(effect, ev.Granted):
                lease = effect.lease
                board = lease.device_name.removeprefix("devices/")
                if effect.set_id:
                    boards_of.setdefault(effect.set_id, []).append((board, lease.name))
                else:
                    ask = self._asks.pop(lease.request_id)
                    self._simulation.granted(ask, board, now, lease.name)
                    self._renew_later(ask, now, now)
            elif isinstance(effect, ev.YieldWanted):
                lease = self._state.leases[effect.wanted.lease_name]
                self._simulation.must_yield(lease.device_name.removeprefix("devices/"), now)
        for set_id, boards in boards_of.items():
            for member in self._simulation.granted_set(self._asks.pop(set_id), boards, now):
                self._renew_later(member, now, now)
        sets, self._counted_sec = self._state.sets, now
        self._idle_count = sum(self._state.devices[name].lease is None for name in sets.held) if sets.held else 0
        if sets.entries or sets.offered:
            self._plan_tick()

    def _renew_later(self, ask: Ask, granted_sec: float, now: float) -> None:
        self._simulation.at(now + _RENEWAL_SEC, partial(self._renew, ask, granted_sec))

    def _renew(self, ask: Ask, granted_sec: float, now: float) -> None:
        """Renew a lease, as clients do."""
        if self._simulation.is_held(ask, granted_sec):
            self._apply(ev.Renew(ask.arrival.account, ask.lease_name), now)
            self._renew_later(ask, granted_sec, now)

    def _plan_tick(self) -> None:
        """Have sets planned in time. Without sets, renewals are frequent enough."""
        next_sec = self._state.next_timer_sec()
        if next_sec is not None and next_sec - EPOCH_SEC < self._tick_sec:
            self._tick_sec = next_sec - EPOCH_SEC
            self._simulation.at(self._tick_sec, self._tick)

    def _tick(self, now: float) -> None:
        if now == self._tick_sec:
            self._tick_sec = math.inf
            self._apply(ev.Tick(), now)


@functools.cache
def _terms(names: tuple[str, ...], lease_class: LeaseClass) -> LeaseTerms:
    selector, *also = map(_selector, names)
    return LeaseTerms(selector=selector, also=tuple(also), lease_class=lease_class, ttl_sec=_TTL_SEC)


def _selector(name: str) -> str:
    return f"model={name}" if name in BOARDS else f"{_FAMILY}{name}=yes"


def _offer(board: str, model: str) -> ev.OfferedDevice:
    families = {f"{_FAMILY}{name}": "yes" for name, models in MODELS.items() if name not in BOARDS and model in models}
    labels = device_labels(f"devices/{board}", "cpu", {"model": model, **families})
    return ev.OfferedDevice(name=f"devices/{board}", kind="cpu", labels=labels, description=b"")


@dataclass(slots=True, eq=False)
class _Assembly:
    """A set that keeps each of its boards from the moment on that it can have it."""

    ask: Ask
    key: float
    """Order of the set, smallest first."""
    boards: list[str]
    """Board for each selector; empty for those that it lacks."""

    def take(self, board: str, model: str) -> bool:
        """Keep a board for a selector that lacks one; return False if there is none for it."""
        for index, selector in enumerate(self.ask.arrival.selectors):
            if not self.boards[index] and model in MODELS[selector]:
                self.boards[index] = board
                return True
        return False


class FirstCome:
    """First come first served. A set keeps boards until it has all, and gives them to sets that go before it."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._free: dict[str, deque[str]] = defaultdict(deque)
        for board, model in simulation.boards.items():
            self._free[model].append(board)
        self._waiting: dict[str, list[tuple[float, int, Ask]]] = {selector: [] for selector in MODELS}
        """Heaps of requests as (key, number, request), by selector."""
        self._sets = SortedList()
        """Waiting sets as (key, number, set)."""
        self._kept: set[str] = set()
        """Boards that they keep."""
        self._selectors = {model: [name for name, models in MODELS.items() if model in models] for model in BOARDS}

    def key(self, ask: Ask) -> float:
        """Return the order of a request, smallest first."""
        return ask.at_sec

    def ask(self, ask: Ask, now: float) -> None:
        if ask.arrival.also:
            self._assemble(ask, now)
            return
        free = [model for model in MODELS[ask.arrival.selector] if self._free[model]]
        if free:
            model = max(free, key=lambda each: len(self._free[each]))
            self._grant(ask, self._free[model].popleft(), now)
        else:
            heapq.heappush(self._waiting[ask.arrival.selector], (self.key(ask), ask.number, ask))

    def end(self, ask: Ask, now: float) -> None:
        model = self._simulation.boards[ask.board]
        heads = [(*self._waiting[name][0][:2], name) for name in self._selectors[model] if self._waiting[name]]
        *first, name = min(heads, default=(math.inf, 0, ""))
        for key, number, assembly in self._sets:
            if [key, number] > first:
                break
            if assembly.take(ask.board, model):
                self._kept.add(ask.board)
                self._grant_whole(assembly, now)
                return
        if name:
            *_, following = heapq.heappop(self._waiting[name])
            self._grant(following, ask.board, now)
        else:
            self._free[model].append(ask.board)

    def is_reserved(self, board: str) -> bool:
        return board in self._kept

    def _assemble(self, ask: Ask, now: float) -> None:
        """Take free boards for a set, and those of later sets."""
        assembly = _Assembly(ask, self.key(ask), [""] * len(ask.arrival.selectors))
        entry = (assembly.key, ask.number, assembly)
        for index, selector in enumerate(ask.arrival.selectors):
            free = [model for model in MODELS[selector] if self._free[model]]
            if free:
                model = max(free, key=lambda each: len(self._free[each]))
                board = assembly.boards[index] = self._free[model].popleft()
                self._kept.add(board)
        for _, _, later in self._sets[self._sets.bisect_left(entry[:2]) :]:
            for index, board in enumerate(later.boards):
                if board and assembly.take(board, self._simulation.boards[board]):
                    later.boards[index] = ""
        self._sets.add(entry)
        self._grant_whole(assembly, now)

    def _grant_whole(self, assembly: _Assembly, now: float) -> None:
        """Grant a set if it has all its boards."""
        ask = assembly.ask
        if all(assembly.boards):
            self._sets.remove((assembly.key, ask.number, assembly))
            self._kept.difference_update(assembly.boards)
            self._simulation.granted_set(ask, [(board, "") for board in assembly.boards], now)

    def _grant(self, ask: Ask, board: str, now: float) -> None:
        self._simulation.granted(ask, board, now)


class SumOfFactors(FirstCome):
    """A sum of class, age and the account's use at the request's time, as Slurm's multifactor plugin has."""

    _HEAD_START_SEC: ClassVar[Mapping[LeaseClass, float]] = {
        LeaseClass.INTERACTIVE: 7_200.0,
        LeaseClass.NORMAL: 1_200.0,
        LeaseClass.BATCH: 0.0,
    }
    _HALF_LIFE_SEC = 6 * 3600.0

    def __init__(self, simulation: Simulation) -> None:
        super().__init__(simulation)
        self._use: dict[str, tuple[float, float]] = {}
        """Decayed use of each account, and its moment."""

    def key(self, ask: Ask) -> float:
        at_sec, half_life_sec = ask.at_sec, self._HALF_LIFE_SEC
        uses = [sec * math.exp2((since_sec - at_sec) / half_life_sec) for sec, since_sec in self._use.values()]
        mean_sec = sum(uses) / len(uses) if uses else 1.0
        ratio = max(self._used_sec(ask.arrival.account, ask.at_sec), mean_sec / 16) / max(mean_sec, 1e-9)
        debt_sec = max(-3_600.0, min(10_800.0, 1_800.0 * math.log2(ratio)))
        return ask.at_sec - self._HEAD_START_SEC[ask.arrival.lease_class] + debt_sec

    def end(self, ask: Ask, now: float) -> None:
        account = ask.arrival.account
        self._use[account] = self._used_sec(account, now) + now - ask.granted_sec, now
        super().end(ask, now)

    def _used_sec(self, account: str, now: float) -> float:
        used_sec, at_sec = self._use.get(account, (0.0, now))
        return used_sec * math.exp2((at_sec - now) / self._HALF_LIFE_SEC)
