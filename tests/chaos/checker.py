"""Checks a run's logs for violations of guarantees, and returns them with the log lines that show them. Pure.

Proven from the log that each device wrote itself:

- OVERLAP: no run begins while another one has the device;
- EPOCH: the epochs of runs, and of a client's grants, never go back, and no two leases have one epoch of a device;
- STRANGER: nothing runs but under a lease that a client was granted;

and of the rest:

- DRAINED: no grant of a device that an admin has drained, until it resumes or the journal was set back;
- TERM: no two trackers grant in one term, no device runs for a lease of an earlier term than before, and a tracker ends
  to grant soon after another one has taken over;
- DROPPED: a lease that was granted while a standby kept up goes on at the standby that takes over, until it ends;
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

from fleet.domain.leases import LeaseEnd
from tests.chaos.history import Event, What

_JITTER_SEC = 1.0
"""Difference of two machines' clocks."""
_MIB = 1024.0 * 1024


class Wrong(StrEnum):
    """Kinds of violations."""

    OVERLAP = "overlap"
    EPOCH = "epoch"
    STRANGER = "stranger"
    DRAINED = "drained"
    TERM = "term"
    DROPPED = "dropped"
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

    superseded_sec: float = 60.0
    """From a takeover until the former tracker, which may be cut off, grants nothing more."""

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
        *_terms_of_trackers(history, bounds.superseded_sec),
        *_terms_of_runs(history),
        *_dropped_leases(history),
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
    """A client may read a grant late, so its epoch counts: it exceeds that of the drain.

    Drains from before a takeover do not count: a lagging standby may lack them. Nor do drains at an epoch of the
    former tracker: it may have answered them, or go on granting until it learns of the takeover.
    """
    starts = [after for _, after in takeovers(history)]
    leases = {(event.device, event.epoch): event.lease for event in history if event.what is What.GRANTED}
    terms = _terms_of_leases(history)
    for device, events in _by_device(history, What.DRAINED, What.RESUMING, What.GRANT).items():
        drain: Event | None = None
        for event in sorted(events, key=lambda event: event.at_sec):
            if event.what is not What.GRANT:
                drain = event if event.what is What.DRAINED else None
            elif drain is not None and event.epoch > drain.epoch:
                since = [start for start in starts if start.at_sec <= event.at_sec]
                term = terms.get(leases.get((device, drain.epoch), ""), drain.term)
                if any(drain.at_sec < start.at_sec or term < start.term for start in since):
                    continue
                text = f"{device} was granted to {event.who} while it was drained"
                yield Finding(wrong=Wrong.DRAINED, text=text, events=(drain, event))


def _terms_of_trackers(history: Sequence[Event], bound_sec: float) -> Iterator[Finding]:
    owners: dict[int, Event] = {}
    for event in _in_time(history, What.OPENED):
        owner = owners.setdefault(event.term, event)
        if owner.who != event.who:
            text = f"{owner.who} and {event.who} grant in the same term {event.term}"
            yield Finding(wrong=Wrong.TERM, text=text, events=(owner, event))
    current: dict[str, Event] = {}
    for event in _in_time(history, What.OPENED, What.GRANTED):
        if event.what is What.OPENED:
            current[event.who] = event
            continue
        own = current.get(event.who)
        newer = [other for other in current.values() if own is not None and other.term > own.term]
        late = [other for other in newer if event.at_sec - other.at_sec > bound_sec]
        if late:
            text = f"{event.who} granted {event.lease} after {late[0].who} had taken over in the term {late[0].term}"
            yield Finding(wrong=Wrong.TERM, text=text, events=(late[0], event))


def _terms_of_runs(history: Sequence[Event]) -> Iterator[Finding]:
    """Leases whose line a kill cut off are left out: their term is unknown."""
    terms = _terms_of_leases(history)
    for device, events in _by_device(history, What.BEGIN).items():
        newest: Event | None = None
        for event in filter(lambda event: event.lease in terms, events):
            if newest is not None and terms[event.lease] < terms[newest.lease]:
                text = f"{device} ran for {event.lease} of the term {terms[event.lease]} after {terms[newest.lease]}"
                yield Finding(wrong=Wrong.TERM, text=text, events=(newest, event))
            if newest is None or terms[event.lease] > terms[newest.lease]:
                newest = event


def _terms_of_leases(history: Sequence[Event]) -> dict[str, int]:
    found = {}
    for events in _by_tracker(history):
        term = 0
        for event in events:
            if event.what is What.OPENED:
                term = event.term
            elif event.what is What.GRANTED:
                found[event.lease] = term
    return found


def _dropped_leases(history: Sequence[Event]) -> Iterator[Finding]:
    """Find leases that a standby did not know when it took over, or ended before their time."""
    for former, after in takeovers(history):
        standing = _safe_leases(history, former.who, after.at_sec)
        for event in _first_life(history, after):
            lease = standing.pop(event.device, None) if event.what in (What.GRANTED, What.OVER) else None
            if lease is None:
                continue
            if event.lease != lease.lease:
                text = f"{after.who} did not know {lease.lease} of {lease.device}, and granted {event.lease}"
                yield Finding(wrong=Wrong.DROPPED, text=text, events=(lease, after, event))
            elif event.text == LeaseEnd.EXPIRED and event.at_sec - lease.at_sec < lease.lasts_sec - _JITTER_SEC:
                text = f"{after.who} let {lease.lease} expire {event.at_sec - lease.at_sec:.1f} s after its grant"
                yield Finding(wrong=Wrong.DROPPED, text=text, events=(lease, after, event))


def _safe_leases(history: Sequence[Event], tracker: str, at_sec: float) -> dict[str, Event]:
    """Return the live leases, by device, that a tracker granted with its standby, by its lines until a moment."""
    granted: dict[str, Event] = {}
    is_followed = False
    for event in history:
        if event.who != tracker or event.at_sec >= at_sec:
            continue
        match event.what:
            case What.OPENED:
                granted, is_followed = {}, False
            case What.FOLLOWED | What.ALONE:
                is_followed = event.what is What.FOLLOWED
            case What.GRANTED if is_followed:
                granted[event.device] = event
            case What.HOLDS | What.OVER:
                known = granted.get(event.device)
                if known is not None and (known.lease != event.lease or event.what is What.OVER):
                    del granted[event.device]
    return granted


def _first_life(history: Sequence[Event], opened: Event) -> Iterator[Event]:
    """Yield a tracker's lines from its start until the next one."""
    lines = [event for event in history if event.who == opened.who]
    for event in lines[lines.index(opened) + 1 :]:
        if event.what is What.OPENED:
            return
        yield event


def takeovers(history: Sequence[Event]) -> list[tuple[Event, Event]]:
    """Return each takeover: the start of the former tracker, and that of the other one in a larger term."""
    starts = _in_time(history, What.OPENED)[:1]
    for event in _in_time(history, What.OPENED)[1:]:
        if event.term > starts[-1].term:
            starts.append(event)
    return [(former, after) for former, after in pairwise(starts) if former.who != after.who]


def _half_sets(history: Sequence[Event]) -> Iterator[Finding]:
    """Find sets without all of their devices. A set's log lines are consecutive; a kill may cut off the last ones."""
    for events in _by_tracker(history):
        yield from _half_sets_of(events)


def _half_sets_of(lines: Sequence[Event]) -> Iterator[Finding]:
    runs = [(name, list(events)) for name, events in groupby(lines, key=lambda event: event.of_set)]
    for (name, members), (_, following) in pairwise([*runs, ("", [])]):
        devices = {member.device for member in members}
        is_cut_off = bool(following) and following[0].what is What.OPENED
        if name and len(devices) != members[0].number and not is_cut_off:
            text = f"a set of {members[0].number} devices was granted {', '.join(sorted(devices))}"
            yield Finding(wrong=Wrong.HALF, text=text, events=tuple(members))


def _quota_overruns(history: Sequence[Event], most: Mapping[str, int]) -> Iterator[Finding]:
    """A lease from before a restart counts only if its end is logged later: the journal may have been set back."""
    for events in _by_tracker(history):
        yield from _quota_overruns_of(events, most)


def _quota_overruns_of(events: Sequence[Event], most: Mapping[str, int]) -> Iterator[Finding]:
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
    for events in _by_tracker(history):
        yield from _reached_bookings_of(events, plan_sec)


def _reached_bookings_of(events: Sequence[Event], plan_sec: float) -> Iterator[Finding]:
    plans: dict[str, Event] = {}
    for event in events:
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
    for events in _by_tracker(history):
        yield from _lost_yields_of(events, bound_sec)


def _lost_yields_of(events: Sequence[Event], bound_sec: float) -> Iterator[Finding]:
    demands: dict[str, Event] = {}
    for event in events:
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


def _by_tracker(history: Iterable[Event]) -> list[list[Event]]:
    """Return the lines of each tracker's log, in order."""
    kinds = (What.OPENED, What.GRANTED, What.OVER, What.DEMANDED, What.QUEUED, What.BOOKED)
    found: dict[str, list[Event]] = defaultdict(list)
    for event in history:
        if event.what in kinds:
            found[event.who].append(event)
    return list(found.values())


def _in_time(history: Iterable[Event], *kinds: What) -> list[Event]:
    return sorted((event for event in history if event.what in kinds), key=lambda event: event.at_sec)


def _by_device(history: Iterable[Event], *kinds: What) -> dict[str, list[Event]]:
    found: dict[str, list[Event]] = defaultdict(list)
    for event in history:
        if event.what in kinds:
            found[event.device].append(event)
    return found
