"""Checks a run's logs for violations of guarantees, and returns them with the log lines that show them. Pure.

Proven from the log that each device wrote itself:

- OVERLAP: no run begins while another one has the device;
- EPOCH: the epochs of runs, and of a client's grants, never go back, and no two leases have one epoch of a device;
- STRANGER: nothing runs but under a lease that a client was granted;

and of the rest:

- DRAINED: no grant of a device that an admin has drained, until it resumes or the journal was set back;
- HALF: the devices of a set are granted together, all or none;
- QUOTA: no account has more leases of a class at once than its quota;
- REACHED: no lease is granted on a booked device that would reach into the booking, except batch leases;
- YIELD: no request waits on while a lease that had to give way to it lives far beyond its grace;
- LOST: every record that the library acknowledged is in it at the end;
- STARVED: when faults have stopped, every client that waits has a measurement within a bound;
- LEAKED: no process grows from calm to calm, and nothing is left when all were stopped;
- ENDED: no process ends without having been killed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import groupby, pairwise

from tests.chaos.history import Event, What

_MIB = 1024.0 * 1024


class Wrong(StrEnum):
    """Kinds of violations."""

    OVERLAP = "overlap"
    EPOCH = "epoch"
    STRANGER = "stranger"
    DRAINED = "drained"
    HALF = "half"
    QUOTA = "quota"
    REACHED = "reached"
    YIELD = "yield"
    LOST = "lost"
    STARVED = "starved"
    LEAKED = "leaked"
    ENDED = "ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One violation."""

    wrong: Wrong
    text: str
    events: tuple[Event, ...] = ()
    """The log lines that show it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Limits for correct behaviour."""

    served_sec: float = 60.0
    """From the last fault until every waiting client is served."""

    plan_sec: float = 1.0
    """Age of a booking's plan from which on it binds: a turn of the tracker logs its plans before its grants."""

    yield_sec: float = 30.0
    """From a demand to give way until the lease has ended: the grace, and stops of the tracker."""

    leases: Mapping[str, int] = field(default_factory=lambda: {"interactive": 2})
    """Quota of leases at once of each account, by class."""

    growth: Mapping[str, float] = field(default_factory=lambda: {"files": 40.0, "bytes": 64 * _MIB, "threads": 40.0})
    """Allowed growth of a process's resources over its first census."""


def check(history: Sequence[Event], bounds: Bounds | None = None) -> list[Finding]:
    """Return the violations. Events of one log are in order; logs may be merged in any order."""
    bounds = bounds or Bounds()
    return [
        *_overlaps(history),
        *_epochs_of_runs(history),
        *_epochs_of_grants(history),
        *_strangers(history),
        *_grants_of_drained_devices(history),
        *_half_sets(history),
        *_quota_overruns(history, bounds.leases),
        *_reached_bookings(history, bounds.plan_sec),
        *_lost_yields(history, bounds.yield_sec),
        *_lost_records(history),
        *_starved(history, bounds.served_sec),
        *_growth(history, bounds.growth),
        *(
            Finding(wrong=Wrong.LEAKED, text=f"left behind: {', '.join(event.names)}", events=(event,))
            for event in history
            if event.what is What.LEFT and event.names
        ),
        *(
            Finding(wrong=Wrong.ENDED, text=f"{event.who} ended by itself: {event.text}", events=(event,))
            for event in history
            if event.what is What.ENDED
        ),
    ]


def _overlaps(history: Iterable[Event]) -> Iterator[Finding]:
    for device, events in _by_device(history, What.BEGIN, What.END).items():
        running: dict[str, Event] = {}
        ended = {event.run for event in events if event.what is What.END}
        for event in events:
            if event.what is What.END:
                running.pop(event.run, None)
                continue
            # A run without an end was interrupted: the free lock shows that its process is gone.
            alive = [other for other in running.values() if other.run in ended or not event.is_alone]
            if alive or not event.is_alone:
                holders = {other.lease for other in (*alive, event)}
                text = f"{device} ran for {' and '.join(sorted(holders)) or 'a tuner'} at once"
                yield Finding(wrong=Wrong.OVERLAP, text=text, events=(*alive, event))
            running = {other.run: other for other in (*alive, event)}


def _epochs_of_runs(history: Iterable[Event]) -> Iterator[Finding]:
    for device, events in _by_device(filter(_is_named, history), What.BEGIN).items():
        newest: Event | None = None
        for event in events:
            if newest is not None and event.epoch < newest.epoch:
                text = f"{device} ran for epoch {event.epoch} after {newest.epoch}"
                yield Finding(wrong=Wrong.EPOCH, text=text, events=(newest, event))
            if newest is None or event.epoch > newest.epoch:
                newest = event


def _epochs_of_grants(history: Iterable[Event]) -> Iterator[Finding]:
    owner: dict[tuple[str, int], Event] = {}
    last: dict[tuple[str, str], Event] = {}
    for event in history:
        if event.what is not What.GRANT:
            continue
        first = owner.setdefault((event.device, event.epoch), event)
        if first.lease != event.lease:
            text = f"{first.lease} and {event.lease} have the same epoch {event.epoch} of {event.device}"
            yield Finding(wrong=Wrong.EPOCH, text=text, events=(first, event))
        before = last.get((event.who, event.device))
        if before is not None and before.lease != event.lease and event.epoch <= before.epoch:
            text = f"{event.who} was granted epoch {event.epoch} of {event.device} after {before.epoch}"
            yield Finding(wrong=Wrong.EPOCH, text=text, events=(before, event))
        last[event.who, event.device] = event


def _strangers(history: Iterable[Event]) -> Iterator[Finding]:
    history = list(history)
    granted = {(event.device, event.lease, event.epoch) for event in history if event.what is What.GRANT}
    for event in history:
        if event.what is What.BEGIN and _is_named(event) and (event.device, event.lease, event.epoch) not in granted:
            text = f"{event.device} ran for {event.lease}, which no client was granted"
            yield Finding(wrong=Wrong.STRANGER, text=text, events=(event,))


def _grants_of_drained_devices(history: Sequence[Event]) -> Iterator[Finding]:
    """A client may read a grant late, so its epoch counts: it exceeds that of the drain."""
    for device, events in _by_device(history, What.DRAINED, What.RESUMING, What.GRANT).items():
        drain: Event | None = None
        for event in sorted(events, key=lambda event: event.at_sec):
            if event.what is not What.GRANT:
                drain = event if event.what is What.DRAINED else None
            elif drain is not None and event.epoch > drain.epoch:
                text = f"{device} was granted to {event.who} while it was drained"
                yield Finding(wrong=Wrong.DRAINED, text=text, events=(drain, event))


def _half_sets(history: Sequence[Event]) -> Iterator[Finding]:
    """Find sets without all of their devices. A set's log lines are consecutive; a kill may cut off the last ones."""
    runs = [(name, list(events)) for name, events in groupby(_of_tracker(history), key=lambda event: event.of_set)]
    for (name, members), (_, following) in pairwise([*runs, ("", [])]):
        devices = {member.device for member in members}
        is_cut_off = bool(following) and following[0].what is What.OPENED
        if name and len(devices) != members[0].number and not is_cut_off:
            text = f"a set of {members[0].number} devices was granted {', '.join(sorted(devices))}"
            yield Finding(wrong=Wrong.HALF, text=text, events=tuple(members))


def _quota_overruns(history: Sequence[Event], most: Mapping[str, int]) -> Iterator[Finding]:
    """A lease from before a restart counts only if its end is logged later: the journal may have been set back."""
    events = _of_tracker(history)
    last = {event.lease: index for index, event in enumerate(events) if event.what is What.OVER}
    live: dict[str, Event] = {}
    for index, event in enumerate(events):
        if event.what is What.OPENED:
            live = {name: lease for name, lease in live.items() if last.get(name, -1) > index}
        elif event.what is What.OVER:
            live.pop(event.lease, None)
        elif event.what is What.GRANTED:
            live[event.lease] = event
            alike = [each for each in live.values() if each.account == event.account]
            alike = [each for each in alike if each.lease_class == event.lease_class]
            if len(alike) > most.get(event.lease_class, len(alike)):
                text = f"{event.account!r} had {len(alike)} {event.lease_class} leases at once"
                yield Finding(wrong=Wrong.QUOTA, text=text, events=tuple(alike))


def _reached_bookings(history: Sequence[Event], plan_sec: float) -> Iterator[Finding]:
    """Plans from before a restart do not count: the journal may have been set back."""
    plans: dict[str, Event] = {}
    for event in _of_tracker(history):
        match event.what:
            case What.OPENED:
                plans.clear()
            case What.BOOKED:
                plans[event.booking] = event
            case What.GRANTED if event.lease_class != "batch":
                for plan in plans.values():
                    is_planned = event.device in plan.names and event.booking != plan.booking
                    overlaps = event.starts_at_sec < plan.ends_at_sec and plan.starts_at_sec < event.ends_at_sec
                    if is_planned and overlaps and event.at_sec - plan.at_sec > plan_sec:
                        text = f"{event.lease} was granted {event.device}, and reaches into {plan.booking}"
                        yield Finding(wrong=Wrong.REACHED, text=text, events=(plan, event))


def _lost_yields(history: Sequence[Event], bound_sec: float) -> Iterator[Finding]:
    """A request withdraws its demand when it leaves the queue, and so does a mark of the device that replaces it."""
    demands: dict[str, Event] = {}
    for event in _of_tracker(history):
        match event.what:
            case What.OPENED:
                demands.clear()
            case What.QUEUED:
                demands.pop(event.run, None)
            case What.DEMANDED:
                demands = {run: other for run, other in demands.items() if other.lease != event.lease}
                if event.run:
                    demands[event.run] = event
            case What.OVER:
                demands = {
                    run: other
                    for run, other in demands.items()
                    if other.lease != event.lease or event.at_sec - other.at_sec > bound_sec
                }
            case What.GRANTED:
                demand = demands.pop(event.run, None)
                if demand is not None and not event.of_set and event.at_sec - demand.at_sec > bound_sec:
                    waited_sec = event.at_sec - demand.at_sec
                    text = f"{demand.lease} had to give way, and the request was granted {waited_sec:.0f} s later"
                    yield Finding(wrong=Wrong.YIELD, text=text, events=(demand, event))


def _lost_records(history: Iterable[Event]) -> Iterator[Finding]:
    history = list(history)
    kept = {name for event in history if event.what is What.KEPT for name in event.names}
    for event in history:
        if event.what is What.RECORDED and event.run not in kept:
            text = f"record {event.run} was acknowledged and is not in the library"
            yield Finding(wrong=Wrong.LOST, text=text, events=(event,))


def _starved(history: Sequence[Event], bound_sec: float) -> Iterator[Finding]:
    served = defaultdict(list)
    for event in history:
        if event.what is What.SERVED:
            served[event.who].append(event.at_sec)
    for calm in history:
        if calm.what is not What.CALM:
            continue
        for client in calm.names:
            if not any(0 <= at_sec - calm.at_sec <= bound_sec for at_sec in served[client]):
                text = f"{client} was not served within {bound_sec:g} s after the last fault"
                last = [event for event in history if event.who == client and event.at_sec <= calm.at_sec + bound_sec]
                yield Finding(wrong=Wrong.STARVED, text=text, events=(calm, *last[-3:]))


def _growth(history: Iterable[Event], growth: Mapping[str, float]) -> Iterator[Finding]:
    first: dict[tuple[str, int], Event] = {}
    told: set[tuple[str, int, str]] = set()
    for event in history:
        if event.what is not What.CENSUS:
            continue
        life = (event.who, event.number)
        before = first.setdefault(life, event)
        for name, allowed in growth.items():
            grown = event.counts.get(name, 0.0) - before.counts.get(name, 0.0)
            if grown > allowed and (*life, name) not in told:
                told.add((*life, name))
                text = f"{event.who} (process {event.number}) grew by {grown:g} {name}, of {allowed:g} allowed"
                yield Finding(wrong=Wrong.LEAKED, text=text, events=(before, event))


def _is_named(event: Event) -> bool:
    """Tell whether a run's id contains its lease. A tuner chooses its own ids, which show overlaps only."""
    return bool(event.lease)


def _of_tracker(history: Iterable[Event]) -> list[Event]:
    """Return the lines of the tracker's log, in order."""
    kinds = (What.OPENED, What.GRANTED, What.OVER, What.DEMANDED, What.QUEUED, What.BOOKED)
    return [event for event in history if event.what in kinds]


def _by_device(history: Iterable[Event], *kinds: What) -> dict[str, list[Event]]:
    found: dict[str, list[Event]] = defaultdict(list)
    for event in history:
        if event.what in kinds:
            found[event.device].append(event)
    return found
