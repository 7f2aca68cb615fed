"""Plays a lab's week through a scheduler, with a fake clock."""

from __future__ import annotations

import functools
import heapq
import itertools
import math
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

from benchmarks.lab_trace import BOARDS, DAY_SEC, MODELS, Arrival
from fleet.domain.leases import LeaseClass

_MEAN_LEASE_SEC = 1800.0
"""Median length of a tuning job's leases."""
_SHORTEST_SEC = 30.0
_LOOK_SEC = 300.0
_WINDOW_SEC = 4 * 3600.0
"""Fairness is judged in windows of this length."""


@dataclass(slots=True, eq=False)
class Ask:
    """One request, from its arrival to the end of its lease."""

    number: int
    arrival: Arrival
    at_sec: float
    device_sec: float
    job: Job | None = None
    continues: str = ""
    board: str = ""
    granted_sec: float = math.nan
    lease_name: str = ""
    ends_sec: float = math.nan
    """Planned end of the lease."""


@dataclass(slots=True, eq=False)
class Job:
    """Device time that one chain of leases still needs."""

    left_sec: float


class Scheduler(Protocol):
    """Grants boards; the simulation tells it of requests and ends of leases."""

    def ask(self, ask: Ask, now: float) -> None:
        """Take a request."""

    def end(self, ask: Ask, now: float) -> None:
        """Take back the board of an ended lease."""

    def is_reserved(self, board: str) -> bool:
        """Return True if a board is held for a set."""


@dataclass(kw_only=True)
class Outcome:
    """The course of a week."""

    waits_sec: dict[LeaseClass, list[tuple[str, float, float]]] = field(default_factory=lambda: defaultdict(list))
    """Account, arrival and wait of each granted request for one board, by class."""
    set_waits_sec: dict[LeaseClass, list[float]] = field(default_factory=lambda: defaultdict(list))
    """Wait of each granted set, by class."""
    served_sec: dict[int, dict[str, float]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(float)))
    """Device seconds of each account, by window."""
    backlogs: dict[int, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    """Looks at which an account waited, by window."""
    used_sec: float = 0.0
    held_idle_sec: float = 0.0
    """Board seconds that boards held for sets were idle; the scheduler counts them."""
    rare_taken_needlessly: int = 0
    unserved: int = 0
    """Requests older than a day without a grant at the end, of others than the heaviest user."""

    def jain(self) -> float:
        """Return the mean of Jain's index over windows."""
        found = self.jain_by_window().values()
        return sum(found) / len(found) if found else math.nan

    def jain_by_window(self) -> dict[int, float]:
        """Return Jain's index of the accounts that waited for most of a window, where there are at least four."""
        found: dict[int, float] = {}
        for window, counts in self.backlogs.items():
            names = sorted(name for name, looks in counts.items() if looks >= 0.8 * _WINDOW_SEC / _LOOK_SEC)
            shares = [self.served_sec[window][name] for name in names]
            if len(names) >= 4 and any(shares):
                found[window] = sum(shares) ** 2 / (len(shares) * sum(share * share for share in shares))
        return found


class Simulation:
    """One week through one scheduler."""

    def __init__(self, arrivals: Sequence[Arrival], make: Callable[[Simulation], Scheduler], *, days: float) -> None:
        self.outcome = Outcome()
        self.held: dict[str, Ask] = {}
        """Live leases by board."""
        self.waiting: dict[int, Ask] = {}
        self._waits_of: Counter[str] = Counter()
        """Number of waiting requests by account."""
        self._end_sec = days * DAY_SEC
        self._rng = random.Random(7)
        self._arrivals = list(reversed(arrivals))
        """Arrivals to come, the next one last."""
        self._numbers = itertools.count(len(arrivals))
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._idle = {model: {f"{model}-{i}" for i in range(count)} for model, count in BOARDS.items()}
        """Boards without a lease, by model."""
        self._boards = {f"{model}-{i}": model for model, count in BOARDS.items() for i in range(count)}
        self.scheduler = make(self)
        self._at(0.0, self._look)

    @property
    def boards(self) -> Mapping[str, str]:
        """Model of each board."""
        return self._boards

    def run(self) -> Outcome:
        """Play the week."""
        events, arrivals = self._events, self._arrivals
        while (now := events[0][0]) <= self._end_sec:  # there is always a next look
            if arrivals and arrivals[-1].at_sec <= now:
                arrival = arrivals.pop()
                self._arrive(arrival, arrival.at_sec)
            else:
                heapq.heappop(events)[2](now)
        for ask in self.held.values():
            self._note_service(ask.arrival.account, ask.granted_sec, self._end_sec)
        oldest_sec = self._end_sec - DAY_SEC
        self.outcome.unserved = sum(
            ask.at_sec < oldest_sec and ask.arrival.lease_class is not LeaseClass.BATCH for ask in self.waiting.values()
        )
        return self.outcome

    def granted(self, ask: Ask, board: str, now: float, lease_name: str = "") -> None:
        """Begin the lease of a single request; called by the scheduler."""
        self._wait_no_more(ask)
        waits = self.outcome.waits_sec[ask.arrival.lease_class]
        if not ask.continues:
            waits.append((ask.arrival.account, ask.at_sec, now - ask.at_sec))
        self._begin(ask, board, now, lease_name)
        self._note_rare(ask)

    def granted_set(self, ask: Ask, boards: Sequence[tuple[str, str]], now: float) -> list[Ask]:
        """Begin the leases of a set, and return one request for each; called by the scheduler.

        Args:
            boards: board and name of each lease, in the order of the selectors.
        """
        self._wait_no_more(ask)
        self.outcome.set_waits_sec[ask.arrival.lease_class].append(now - ask.at_sec)
        arrivals = [replace(ask.arrival, selector=selector, also=()) for selector in ask.arrival.selectors]
        members = [Ask(next(self._numbers), arrival, ask.at_sec, ask.device_sec) for arrival in arrivals]
        for member, (board, lease_name) in zip(members, boards, strict=True):
            self._begin(member, board, now, lease_name)
        for member in members:
            self._note_rare(member)
        return members

    def at(self, at_sec: float, call: Callable[[float], None]) -> None:
        """Call the scheduler at a moment."""
        self._at(at_sec, call)

    def is_held(self, ask: Ask, granted_sec: float) -> bool:
        """Return True if the lease that a request was granted at a moment lasts."""
        return ask.granted_sec == granted_sec and self.held.get(ask.board) is ask

    def _begin(self, ask: Ask, board: str, now: float, lease_name: str) -> None:
        ask.board, ask.granted_sec, ask.lease_name = board, now, lease_name
        ask.ends_sec = now + ask.device_sec
        self.held[board] = ask
        self._idle[self._boards[board]].discard(board)
        self._at(ask.ends_sec, partial(self._end, ask, now))

    def must_yield(self, board: str, now: float) -> None:
        """Give a board back at the next border of trials, a few seconds later; called by the scheduler."""
        ask = self.held[board]
        self._at(now + 5 * self._rng.random(), partial(self._end, ask, ask.granted_sec, yields=True))

    def _arrive(self, arrival: Arrival, now: float) -> None:
        for _ in range(arrival.count):
            job = Job(arrival.device_sec) if arrival.lease_class is LeaseClass.BATCH else None
            self._ask(arrival, now, job)

    def _ask(self, arrival: Arrival, now: float, job: Job | None, continues: str = "", asked_sec: float = 0.0) -> None:
        device_sec = arrival.device_sec
        if job is not None:
            device_sec = max(_SHORTEST_SEC, min(_MEAN_LEASE_SEC * math.exp(self._rng.gauss(0, 0.9)), job.left_sec))
        ask = Ask(next(self._numbers), arrival, asked_sec if continues else now, device_sec, job, continues)
        self.waiting[ask.number] = ask
        self._waits_of[arrival.account] += 1
        self.scheduler.ask(ask, now)

    def _end(self, ask: Ask, granted: float, now: float, *, yields: bool = False) -> None:
        if not self.is_held(ask, granted):
            return
        ran_sec = now - granted
        self.outcome.used_sec += ran_sec
        self._note_service(ask.arrival.account, granted, now)
        del self.held[ask.board]
        self._idle[self._boards[ask.board]].add(ask.board)
        self.scheduler.end(ask, now)
        if ask.job is not None:
            ask.job.left_sec -= ran_sec
            if ask.job.left_sec > _SHORTEST_SEC:
                self._ask(ask.arrival, now, ask.job, ask.lease_name if yields else "", ask.at_sec)

    def _wait_no_more(self, ask: Ask) -> None:
        del self.waiting[ask.number]
        self._waits_of[ask.arrival.account] -= 1

    def _look(self, now: float) -> None:
        window = int(now // _WINDOW_SEC)
        for account, count in self._waits_of.items():
            if count:
                self.outcome.backlogs[window][account] += 1
        self._at(now + _LOOK_SEC, self._look)

    def _note_service(self, account: str, from_sec: float, to_sec: float) -> None:
        """Add a lease to its account's share of each window that it lay in."""
        while from_sec < to_sec:
            window = int(from_sec // _WINDOW_SEC)
            until_sec = min((window + 1) * _WINDOW_SEC, to_sec)
            self.outcome.served_sec[window][account] += until_sec - from_sec
            from_sec = until_sec

    def _note_rare(self, ask: Ask) -> None:
        """Count a board that was taken although one of a model at least twice as numerous was free."""
        common = _commoner(ask.arrival.selector, self._boards[ask.board])
        idle = (name for model in common for name in self._idle[model])
        self.outcome.rare_taken_needlessly += any(not self.scheduler.is_reserved(name) for name in idle)

    def _at(self, at_sec: float, call: Callable[[float], None]) -> None:
        heapq.heappush(self._events, (at_sec, next(self._numbers), call))


@functools.cache
def _commoner(selector: str, model: str) -> Sequence[str]:
    """Return the models of a selector that are at least twice as numerous as one of them."""
    return [each for each in MODELS[selector] if BOARDS[each] >= 2 * BOARDS[model]]
