"""A model of the lease and fencing protocol that is small enough to visit every state.

One device, its agent, its tracker, and the holders of all leases ever granted. Tokens never expire and are never given
up in this model, so it covers stolen tokens, too. Any loss can occur: the tracker or the agent is killed, the journal
is wiped or replaced by an older copy, the clock is set back, the agent's ledger is gone. A breadth-first search visits
all states and finds the shortest way to each fault.

`Remedies` can be switched off one by one: a checker that then found no fault would prove nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Flag, auto
from typing import NamedTuple

_EPOCHS_PER_BOOT = 10
_COARSE = 5
"""Steps of the fine clock in one of the coarse clock that boot numbers once came from."""
_BACK = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedies:
    """Measures of the protocol that keep an old holder out."""

    fine_clock: bool = True
    """Each boot number is at least the clock's; without: only the first, and the clock is coarse."""
    reports: bool = True
    """Agents report the epochs that they have seen, and the tracker counts on from there."""
    nonce: bool = True
    """Agents honour tokens of the tracker's present start, and the token of the lease that its fence keeps."""


class Loss(Flag):
    """Losses so far."""

    NOTHING = 0
    JOURNAL = auto()
    CLOCK = auto()
    LEDGER = auto()


class Grant(NamedTuple):
    """A lease, and its token."""

    number: int
    """The grant's true number; no process in the protocol sees it."""
    epoch: int
    nonce: int


class Journal(NamedTuple):
    """The tracker's state on disk."""

    boot: int = 0
    """0: no journal exists."""
    floor: int = 0
    lease: Grant | None = None


class Tracker(NamedTuple):
    """A running tracker."""

    nonce: int
    last_epoch: int
    is_attached: bool = False


class Agent(NamedTuple):
    """State of the agent."""

    is_up: bool = True
    admitted: int = 0
    fenced: int = 0
    nonce: int = 0
    """Nonce in the latest fence; 0: it has not met its tracker since it started."""
    live: Grant | None = None
    """The lease that goes on according to the tracker."""


class State(NamedTuple):
    """All of it."""

    clock: int = 20
    journal: Journal = Journal()
    copy: Journal = Journal()
    tracker: Tracker | None = None
    agent: Agent = Agent()
    grants: tuple[Grant, ...] = ()
    starts: int = 0
    newest: Grant | None = None
    """The lease that ran on the device last."""
    went_back: bool = False
    """True if the device ran another lease with an epoch that was no larger."""
    lost: Loss = Loss.NOTHING


class Model:
    """All moves that a state allows, and the invariants of states."""

    def __init__(self, remedies: Remedies, *, most_grants: int = 3, most_starts: int = 3) -> None:
        self._remedies = remedies
        self._most_grants = most_grants
        self._most_starts = most_starts

    def moves(self, state: State) -> Iterator[tuple[str, State]]:
        """Yield all possible next moves."""
        tracker = state.tracker
        if tracker is None:
            yield from self._starts(state)
        else:
            yield "tracker killed", state._replace(tracker=None)
            if state.journal != state.copy:
                yield "journal copied", state._replace(copy=state.journal)
            if state.agent.is_up and not tracker.is_attached:
                yield "agent attaches", self._attach(state, tracker)
            if state.journal.lease is None and tracker.is_attached and len(state.grants) < self._most_grants:
                yield "granted", self._grant(state, tracker)
            if state.journal.lease is not None:
                yield "lease ends", self._end(state, tracker)
        if state.agent.is_up:
            yield "agent killed", self._without_agent(state, state.agent)
            if not state.lost & Loss.LEDGER:
                lost = state._replace(lost=state.lost | Loss.LEDGER)
                yield "agent killed, its ledger is gone", self._without_agent(lost, Agent())
        else:
            yield "agent starts", state._replace(agent=state.agent._replace(is_up=True))
        for grant in state.grants:
            if grant != state.newest and self.accepts(state, grant):
                yield f"token {grant.number} is used", self._use(state, grant)

    def faults(self, state: State) -> Iterator[str]:
        """Yield violated invariants."""
        live, tracker = state.journal.lease, state.tracker
        if tracker is not None and tracker.is_attached:
            for grant in state.grants:
                if grant != live and self.accepts(state, grant):
                    yield "whoever does not hold the device can use it"
            if live is not None and not self.accepts(state, live):
                yield "whoever holds the device is refused"
        if state.went_back and Loss.JOURNAL | Loss.LEDGER not in state.lost:
            yield "an epoch was repeated or went back"

    def accepts(self, state: State, grant: Grant) -> bool:
        """Tell whether the agent lets a token in."""
        agent = state.agent
        if not agent.is_up or not agent.nonce:
            return False
        if self._remedies.nonce and grant.nonce != agent.nonce and grant != agent.live:
            return False
        return grant.epoch > agent.fenced and grant.epoch >= agent.admitted

    def _starts(self, state: State) -> Iterator[tuple[str, State]]:
        if state.starts == self._most_starts:
            return
        clocks = [("", state.clock + 1, state.lost)]
        if not state.lost & Loss.CLOCK:
            clocks.append((", its clock set back", state.clock - _BACK, state.lost | Loss.CLOCK))
        for word, clock, lost in clocks:
            journals = [("", state.journal, lost)]
            if state.journal.boot and not state.lost & Loss.JOURNAL:
                journals.append((" on a wiped journal", Journal(), lost | Loss.JOURNAL))
                if state.copy.boot and state.copy != state.journal:
                    journals.append((" on a copy", state.copy, lost | Loss.JOURNAL))
            for where, journal, all_lost in journals:
                boot = self._boot(journal, clock)
                started = Tracker(nonce=state.starts + 1, last_epoch=boot * _EPOCHS_PER_BOOT)
                yield (
                    f"tracker starts{where}{word}",
                    state._replace(
                        clock=clock,
                        journal=journal._replace(boot=boot),
                        tracker=started,
                        starts=state.starts + 1,
                        lost=all_lost,
                    ),
                )

    def _boot(self, journal: Journal, clock: int) -> int:
        if self._remedies.fine_clock:
            return max(journal.boot + 1, clock)
        return journal.boot + 1 if journal.boot else clock // _COARSE

    def _attach(self, state: State, tracker: Tracker) -> State:
        agent, journal = state.agent, state.journal
        if self._remedies.reports:
            seen = max(agent.admitted, agent.fenced)
            lease = journal.lease
            if lease is not None and (lease.epoch < seen or lease.epoch <= agent.fenced):
                lease = None
            if seen > max(journal.floor, 0 if lease else tracker.last_epoch):
                journal = journal._replace(floor=seen)
            journal = journal._replace(lease=lease)
        over = journal.lease.epoch - 1 if journal.lease else max(tracker.last_epoch, journal.floor)
        agent = agent._replace(nonce=tracker.nonce, live=journal.lease, fenced=max(agent.fenced, over))
        return state._replace(agent=agent, journal=journal, tracker=tracker._replace(is_attached=True))

    def _grant(self, state: State, tracker: Tracker) -> State:
        last_epoch = tracker.last_epoch + 1
        epoch = max(last_epoch, state.journal.floor + 1)
        grant = Grant(number=len(state.grants), epoch=epoch, nonce=tracker.nonce)
        return state._replace(
            tracker=tracker._replace(last_epoch=last_epoch),
            journal=state.journal._replace(floor=epoch, lease=grant),
            grants=(*state.grants, grant),
        )

    def _end(self, state: State, tracker: Tracker) -> State:
        lease, agent = state.journal.lease, state.agent
        if lease is not None and tracker.is_attached:
            agent = agent._replace(fenced=max(agent.fenced, lease.epoch))
        return state._replace(journal=state.journal._replace(lease=None), agent=agent)

    def _use(self, state: State, grant: Grant) -> State:
        newest = state.newest
        return state._replace(
            agent=state.agent._replace(admitted=max(state.agent.admitted, grant.epoch)),
            newest=grant,
            went_back=state.went_back or (newest is not None and grant.epoch <= newest.epoch),
        )

    def _without_agent(self, state: State, kept: Agent) -> State:
        tracker = state.tracker and state.tracker._replace(is_attached=False)
        return state._replace(tracker=tracker, agent=kept._replace(is_up=False, nonce=0, live=None))


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Result of a search."""

    states: int
    faults: dict[str, tuple[str, ...]]
    """The shortest way to each kind of fault."""


def search(model: Model, *, most_moves: int) -> Found:
    """Visit every state within this many moves."""
    ways: dict[State, tuple[State, str] | None] = {State(): None}
    faults: dict[str, tuple[str, ...]] = {}
    waiting = deque([(State(), 0)])
    while waiting:
        state, depth = waiting.popleft()
        for fault in model.faults(state):
            faults.setdefault(fault, _way(ways, state))
        if depth == most_moves:
            continue
        for move, after in model.moves(state):
            if after not in ways:
                ways[after] = (state, move)
                waiting.append((after, depth + 1))
    return Found(states=len(ways), faults=faults)


def _way(ways: dict[State, tuple[State, str] | None], state: State) -> tuple[str, ...]:
    moves = []
    while (step := ways[state]) is not None:
        state, move = step
        moves.append(move)
    return tuple(reversed(moves))
