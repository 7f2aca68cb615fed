"""Schedulers of a simulated lab: the tracker's state, and two rules that other trackers have."""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Mapping
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
_FAMILY = "family."


class Turns:
    """The tracker's own state, with a quota of interactive leases that does not bind: people here ask at random."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        limits = TrackerLimits(max_ttl_sec=_LONG_SEC, max_duration_sec=_LONG_SEC, max_waiting_per_client=100_000)
        policy = SharePolicy(class_quotas={EVERY_ACCOUNT: {LeaseClass.INTERACTIVE: Quota(leases=8)}})
        self._state = TrackerState(boot=1, limits=limits, policy=policy)
        self._asks: dict[str, Ask] = {}
        self._clients: set[str] = set()
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
        selector = _selector(ask.arrival.selector)
        terms = LeaseTerms(selector=selector, lease_class=ask.arrival.lease_class, ttl_sec=_LONG_SEC)
        self._apply(ev.Acquire(account, request_id, terms, ask.continues), now)

    def end(self, ask: Ask, now: float) -> None:
        self._apply(ev.Release(ask.arrival.account, ask.lease_name), now)

    def renew(self, ask: Ask, now: float) -> None:
        self._apply(ev.Renew(ask.arrival.account, ask.lease_name), now)

    def _show_demand(self) -> None:
        """Request a board with each selector once, and give it back: the tracker has run before this week."""
        client = "before"
        self._state.apply(ev.ClientConnected(client, client), EPOCH_SEC)
        for name in MODELS:
            terms = LeaseTerms(selector=_selector(name), ttl_sec=_LONG_SEC)
            for effect in self._state.apply(ev.Acquire(client, name, terms), EPOCH_SEC):
                if isinstance(effect, ev.Granted):
                    self._state.apply(ev.Release(client, effect.lease.name), EPOCH_SEC)
        self._state.take_changes()

    def _apply(self, event: ev.Event, now: float) -> None:
        effects = self._state.apply(event, EPOCH_SEC + now)
        self._state.take_changes()
        for effect in effects:
            if isinstance(effect, ev.Granted):
                lease = effect.lease
                ask = self._asks.pop(lease.request_id)
                self._simulation.granted(ask, lease.device_name.removeprefix("devices/"), now, lease.name)
            elif isinstance(effect, ev.YieldWanted):
                lease = self._state.leases[effect.wanted.lease_name]
                self._simulation.must_yield(lease.device_name.removeprefix("devices/"), now)


def _selector(name: str) -> str:
    return f"model={name}" if name in BOARDS else f"{_FAMILY}{name}=yes"


def _offer(board: str, model: str) -> ev.OfferedDevice:
    families = {f"{_FAMILY}{name}": "yes" for name, models in MODELS.items() if name not in BOARDS and model in models}
    labels = device_labels(f"devices/{board}", "cpu", {"model": model, **families})
    return ev.OfferedDevice(name=f"devices/{board}", kind="cpu", labels=labels, description=b"")


class FirstCome:
    """First come first served."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._free: dict[str, deque[str]] = defaultdict(deque)
        for board, model in simulation.boards.items():
            self._free[model].append(board)
        self._waiting: dict[str, SortedList] = {selector: SortedList() for selector in MODELS}
        """Requests as (key, number, request), by selector."""
        self._selectors = {model: [name for name, models in MODELS.items() if model in models] for model in BOARDS}

    def key(self, ask: Ask) -> float:
        """Return the order of a request, smallest first."""
        return ask.at_sec

    def ask(self, ask: Ask, now: float) -> None:
        free = [model for model in MODELS[ask.arrival.selector] if self._free[model]]
        if free:
            model = max(free, key=lambda each: len(self._free[each]))
            self._grant(ask, self._free[model].popleft(), now)
        else:
            self._waiting[ask.arrival.selector].add((self.key(ask), ask.number, ask))

    def end(self, ask: Ask, now: float) -> None:
        model = self._simulation.boards[ask.board]
        heads = [(self._waiting[name][0], name) for name in self._selectors[model] if self._waiting[name]]
        if heads:
            _, name = min(heads, key=lambda head: head[0][:2])
            *_, following = self._waiting[name].pop(0)
            self._grant(following, ask.board, now)
        else:
            self._free[model].append(ask.board)

    def renew(self, ask: Ask, now: float) -> None:
        """Nothing depends on it."""

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
        uses = [self._used_sec(name, ask.at_sec) for name in self._use]
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
