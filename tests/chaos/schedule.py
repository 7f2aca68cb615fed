"""The schedule of faults, from a seed alone. Pure."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

TRACKER = "tracker"
STANDBY = "standby"
WAY = ">"
"""Between two programs, in the target of a cut."""
LIBRARY = "library"
DAY_SEC = 86400.0


class Kind(StrEnum):
    """Faults of a process, its disk, its clock, or the connections to it."""

    KILL = "kill"
    """kill -9, and started again after `for_sec`."""
    STOP = "stop"
    """SIGSTOP, and SIGCONT after `for_sec`."""
    CUT = "cut"
    """All connections to it are reset, and none is accepted for `for_sec`."""
    HOLD = "hold"
    """Nothing comes through to it for `for_sec`, and no connection is reset."""
    DELAY = "delay"
    """Each chunk of data to and from it waits up to `amount` seconds: connections overtake each other."""
    FILL = "fill"
    """Its disk is full for `for_sec`."""
    STEP = "step"
    """Its wall clock is set to the true time plus `amount` seconds."""
    TEAR = "tear"
    """kill -9, the last page of its journal is torn, and it is started again."""
    WORKERS = "workers"
    """SIGSTOP for `for_sec` of all that it has started."""
    DRAIN = "drain"
    """An admin drains the device, and resumes it after `for_sec`."""
    BOOK = "book"
    """Somebody books a device of this kind for seconds later, uses it, and cancels the booking after `for_sec`."""


class PairKind(StrEnum):
    """Faults of a fleet with a standby."""

    FALL = "fall"
    """kill -9 of the tracker that grants. It is started again after `for_sec`: time for a takeover."""
    FREEZE = "freeze"
    """SIGSTOP of the tracker that grants, and SIGCONT after `for_sec`."""
    SPLIT = "split"
    """Nothing comes through between the tracker that grants and the other one, or most agents, for `for_sec`."""
    PART = "part"
    """Nothing comes through from one program to another for `for_sec`. If `amount` is 1, connections are reset."""


_WEIGHTS = {
    Kind.KILL: 6,
    Kind.STOP: 3,
    Kind.CUT: 3,
    Kind.HOLD: 2,
    Kind.DELAY: 2,
    Kind.FILL: 2,
    Kind.STEP: 2,
    Kind.TEAR: 1,
    Kind.WORKERS: 1,
}
_LONGEST_SEC = {Kind.KILL: 2.0, Kind.STOP: 9.0, Kind.HOLD: 9.0, Kind.TEAR: 1.0}
_STEPS_SEC = (1.0, 30.0, 3600.0, DAY_SEC, 20 * DAY_SEC)
_MOST_DELAY_SEC = 0.4
_PAUSE_SEC = 1.2
"""Mean time from one fault to the next."""
_DRAIN_PAUSE_SEC = 7.0
"""Mean time from one drain to the next."""
_BOOK_PAUSE_SEC = 4.0
"""Mean time from one booking to the next."""
_TAKEOVERS = (PairKind.FALL, PairKind.FREEZE, PairKind.SPLIT)
_TAKEOVER_SEC = (14.0, 20.0)
"""Least and most time for a takeover, which begins after six seconds."""
_PART_PAUSE_SEC = 4.0
"""Mean time from one cut between two programs to the next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault."""

    number: int
    at_sec: float
    """After the beginning of the storm."""
    kind: Kind | PairKind
    target: str
    for_sec: float
    amount: float = 0.0

    def __str__(self) -> str:
        amount = f" {self.amount:+.3g}" if self.amount else ""
        return f"#{self.number} {self.kind} {self.target}{amount} for {self.for_sec:.1f} s"


def make_storm(
    seed: int,
    storm: int,
    *,
    first: int,
    length_sec: float,
    agents: Sequence[str],
    clients: Sequence[str],
    devices: Sequence[str],
    kinds: Sequence[str],
) -> list[Fault]:
    """Return the faults of storm number `storm`, in time.

    Args:
        first: number of its first fault.
    """
    rng = random.Random(f"{seed}:{storm}")
    faults: list[Fault] = []
    at_sec = rng.expovariate(1 / _PAUSE_SEC)
    while at_sec < length_sec:
        kind = rng.choices(list(_WEIGHTS), list(_WEIGHTS.values()))[0]
        fault = Fault(
            number=first + len(faults),
            at_sec=at_sec,
            kind=kind,
            target=rng.choice(_targets(kind, agents, clients)),
            for_sec=rng.uniform(0.05, _LONGEST_SEC.get(kind, 5.0)),
            amount=_amount(kind, rng),
        )
        faults.append(fault)
        at_sec += rng.expovariate(1 / _PAUSE_SEC)
    faults += _commands(Kind.DRAIN, _DRAIN_PAUSE_SEC, random.Random(f"{seed}:{storm}:drains"), length_sec, devices)
    faults += _commands(Kind.BOOK, _BOOK_PAUSE_SEC, random.Random(f"{seed}:{storm}:books"), length_sec, kinds)
    return _in_time(faults, first)


def make_storm_of_pair(
    seed: int, storm: int, faults: Sequence[Fault], *, first: int, length_sec: float, callers: Sequence[str]
) -> list[Fault]:
    """Add a takeover and cuts to the faults of storm number `storm`, for a tracker with a standby.

    Kinds of takeovers take turns. Torn journals are left out, since they lose leases.

    Args:
        faults: those of the storm without a standby.
        first: number of its first fault.
        callers: programs that call both trackers.
    """
    rng = random.Random(f"{seed}:{storm}:pair")
    kind = _TAKEOVERS[(seed + storm) % len(_TAKEOVERS)]
    kept = [fault for fault in faults if fault.kind is not Kind.TEAR]
    return _in_time([*kept, *_takeovers(kind, rng, length_sec), *_cuts(rng, length_sec, callers)], first)


def _in_time(faults: Sequence[Fault], first: int) -> list[Fault]:
    in_time = sorted(faults, key=lambda fault: fault.at_sec)
    return [replace(fault, number=number) for number, fault in enumerate(in_time, first)]


def _takeovers(kind: PairKind, rng: random.Random, length_sec: float) -> Iterator[Fault]:
    at_sec, for_sec = rng.uniform(0.5, 5.0), rng.uniform(*_TAKEOVER_SEC)
    if at_sec < length_sec:
        yield Fault(number=0, at_sec=at_sec, kind=kind, target=TRACKER, for_sec=for_sec)


def _cuts(rng: random.Random, length_sec: float, callers: Sequence[str]) -> Iterator[Fault]:
    ways = [(TRACKER, STANDBY), *((caller, tracker) for caller in callers for tracker in (TRACKER, STANDBY))]
    at_sec = rng.expovariate(1 / _PART_PAUSE_SEC)
    while at_sec < length_sec:
        target, for_sec, amount = WAY.join(rng.choice(ways)), rng.uniform(1.0, 9.0), float(rng.randrange(2))
        yield Fault(number=0, at_sec=at_sec, kind=PairKind.PART, target=target, for_sec=for_sec, amount=amount)
        at_sec += rng.expovariate(1 / _PART_PAUSE_SEC)


def _commands(
    kind: Kind, pause_sec: float, rng: random.Random, length_sec: float, targets: Sequence[str]
) -> Iterator[Fault]:
    at_sec = rng.expovariate(1 / pause_sec)
    while at_sec < length_sec:
        yield Fault(number=0, at_sec=at_sec, kind=kind, target=rng.choice(targets), for_sec=rng.uniform(1.0, 6.0))
        at_sec += rng.expovariate(1 / pause_sec)


def _targets(kind: Kind, agents: Sequence[str], clients: Sequence[str]) -> Sequence[str]:
    servers = [TRACKER, TRACKER, *agents]  # there is one tracker, and everything depends on it
    match kind:
        case Kind.TEAR:
            return [TRACKER]
        case Kind.WORKERS:
            return agents
        case Kind.FILL:
            return [*servers, LIBRARY]
        case Kind.KILL | Kind.STOP | Kind.STEP:
            return [*servers, *clients]
        case _:
            return servers


def _amount(kind: Kind, rng: random.Random) -> float:
    if kind is Kind.STEP:
        return rng.choice((-1, 1)) * rng.choice(_STEPS_SEC)
    return rng.uniform(0.02, _MOST_DELAY_SEC) if kind is Kind.DELAY else 0.0
