"""Sets: several devices for one request, all granted at once or none. Pure.

A set whose turn it is assembles: it holds one device for each selector, chosen so that all are free as early as
possible. It asks batch leases to give way once all devices can be had within the grace. Until then, single requests
may use a free device that is held if their lease ends before all are free (EASY backfilling: Lifka, JSSPP 1995).

A set holds all its devices from one moment on, or none, and waits only for leases, which end. So sets cannot wait for
each other in a cycle. Each round visits the sets in the order of their turns: an earlier one takes devices that a later
one holds.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from operator import itemgetter

from fleet.base.quantities import count_text
from fleet.errors import FleetError, NoMatchingDevice
from fleet.tracker.core import booked, choosing, leases, yielding
from fleet.tracker.core import events as ev
from fleet.tracker.core.admission import no_match_error
from fleet.tracker.core.groups import Group
from fleet.tracker.core.health import is_served
from fleet.tracker.core.records import ClientEntry, DeviceEntry, LeaseEnd, LeaseEntry, RequestEntry
from fleet.tracker.core.set_plan import Choice, Plan, earliest, shortage
from fleet.tracker.core.set_queue import WaitingSet
from fleet.tracker.core.tables import Tables

_LOOK_SEC = 1.0
"""Interval of the rounds that plan all sets anew."""
_STEP_SEC = 1e-3
"""Interval of the steps of a round, so that other events get their turn."""
_VISITED = 1
_OFFERED = 2
"""Numbers of sets and devices in one step."""
_MAX_MATCHED = 10_000
"""Number of devices compared with new selectors in one step: this many take 2 ms."""
_MAX_EXAMINED = 64
"""Number of leased devices examined for one set, beside one of each selector for each member."""
_MAX_HELD = 256
"""Number of held devices examined for one request."""
_LOOK_EACH_SEC = 0.01
"""Rounds of many sets are this far apart for each of them: planning one takes 1 ms."""
_MIN_GAIN_SEC = 1.0
"""Least gain of time for which a set changes its devices."""


def begin(tables: Tables, request: RequestEntry) -> None:
    """Queue a set."""
    tables.sets.add(request)
    _examine(tables, request.key)


def advance(tables: Tables) -> None:
    """Serve devices that are held or were, and plan sets, a few at a time. Called with every event."""
    sets = tables.sets
    if tables.journal_trouble or not (sets.offered or sets.entries):
        return
    for _ in range(min(_OFFERED, len(sets.offered))):
        _serve(tables, sets.offered.popleft())
    if not sets.unvisited and sets.look_sec <= tables.now_sec:
        sets.unvisited = [entry.request.key for entry in reversed(sets.in_order(tables.now_sec))]
        sets.claims, sets.look_sec = set(), tables.now_sec + max(_LOOK_SEC, _LOOK_EACH_SEC * len(sets))
    for _ in range(min(_VISITED, len(sets.unvisited))):
        entry = sets.entries.get(sets.unvisited.pop())
        if entry is not None and entry.is_examined and tables.clients[entry.request.client_id].is_connected:
            _visit(tables, entry)
    if sets.offered or sets.unvisited:
        tables.timers.set(("sets",), tables.now_sec + _STEP_SEC, _wake)
    elif sets.entries:
        tables.timers.set(("sets",), max(sets.look_sec, tables.now_sec + _STEP_SEC), _wake)
    else:
        tables.timers.cancel(("sets",))


def held_for(tables: Tables, request: RequestEntry) -> str | None:
    """Return a free device, held for a set, that a single request may use: its lease ends in time, or its class goes
    before the set. In the latter case the set loses its devices.
    """
    group = tables.matching.group(request.terms.selector)
    for name, entry in islice(tables.sets.held.items(), _MAX_HELD):
        device = tables.devices[name]
        if not device.can_serve or name not in group.devices or not is_served(device.mark.state, request.terms):
            continue
        if not booked.fits(tables, name, request.terms):
            continue
        if _ends_in_time(tables, request, entry):
            return name
        if _outranks(tables, request, entry):
            _give_up(tables, entry)
            return name
    return None


def granted_to(tables: Tables, client: ClientEntry, ids: Sequence[str]) -> list[LeaseEntry]:
    """Return the leases that a repeated request was granted. If a set has lost one since, the others are ended."""
    held = [client.leases[each] for each in ids if each in client.leases]
    if len(held) == len(ids):
        return held
    for lease in held:
        leases.end_and_serve(
            tables, lease, LeaseEnd.RELEASED, "another lease of its set ended before the client had it"
        )
    return []


def _wake() -> None:
    """Do nothing: `advance` runs with every event, that of a timer too."""


def _examine(tables: Tables, key: tuple[str, str]) -> None:
    """Find the devices of a set's selectors, in steps, and refuse a set that can never be had."""
    entry, matched = tables.sets.entries.get(key), 0
    if entry is None:
        return
    for selector in entry.request.terms.selectors[len(entry.groups) :]:
        if not tables.matching.has_group(selector):
            matched += len(tables.devices)
            if matched > max(_MAX_MATCHED, len(tables.devices)):
                tables.timers.set(("set", key), tables.now_sec + _STEP_SEC, partial(_examine, tables, key))
                return
        if not tables.sets.add_group(entry, selector).devices:
            _refuse(tables, entry, no_match_error(selector, tables.devices, tables.matching))
            return
    if short := shortage([list(islice(group.devices, entry.size)) for group in entry.groups]):
        names = set().union(*(entry.groups[member].devices for member in short))
        wanted = ", ".join(repr(entry.request.terms.selectors[member]) for member in short)
        boards = count_text(len(names), "device")
        text = f"the set can never be had: {len(short)} of its selectors match {boards} together: {wanted}"
        _refuse(tables, entry, NoMatchingDevice(f"{text}; there are {', '.join(sorted(names))}"))
        return
    tables.sets.look_sec = tables.now_sec


def _refuse(tables: Tables, entry: WaitingSet, error: FleetError) -> None:
    request = entry.request
    tables.remove_request(request)
    tables.refuse(request.client_id, request.request_id, type(error), str(error))


def _visit(tables: Tables, entry: WaitingSet) -> None:
    """Plan a set, and grant it if all its devices are free."""
    _plan(tables, entry)
    if not _complete(tables, entry) and not entry.is_told:
        entry.is_told = True
        tables.effects.append(ev.Queued(entry.request.client_id, entry.request))


def _plan(tables: Tables, entry: WaitingSet) -> None:
    """Hold the devices with which a set is granted soonest, if it is its turn."""
    sets, plan = tables.sets, None
    if not entry.is_blocked:
        choices = _choices(tables, entry)
        plan = _plan_beside_others(tables, entry, choices)
        if plan is None and earliest(choices):
            sets.claims.update(entry.groups)
    if plan is None:
        _give_up(tables, entry)
        return
    if entry.devices:
        held = zip(entry.devices, entry.groups, strict=True)
        free_sec = [_free_sec(tables, entry, group, tables.devices.get(name)) for name, group in held]
        if not _fits(tables, entry):
            free_sec.append(math.inf)
        entry.at_sec = max(free_sec)
        if entry.at_sec > plan.at_sec + _MIN_GAIN_SEC:
            _give_up(tables, entry)
    if not entry.devices:
        if not _is_its_turn(tables, entry, plan):
            return
        for loser in sets.hold(entry, plan):
            tables.forget_yields_for(loser.request)
    if entry.at_sec <= tables.now_sec + tables.accounts.policy.yield_grace_sec:
        _want_all(tables, entry)


def _choices(tables: Tables, entry: WaitingSet) -> list[list[Choice]]:
    """Return for each selector the devices with the time when each is free, those of the least cost first."""
    by_group = dict.fromkeys(entry.groups)
    limit = max(_MAX_EXAMINED // len(by_group), entry.size)
    found = {group: _of_group(tables, entry, group, limit) for group in by_group}
    return [found[group] for group in entry.groups]


def _of_group(tables: Tables, entry: WaitingSet, group: Group, limit: int) -> list[Choice]:
    held = [name for name in entry.devices if name in group.devices and tables.devices[name].can_serve]
    names = choosing.free_in_order(tables.matching, group, entry.size, tables.now_sec, held)
    others = [name for name in islice(group.devices, limit) if name not in group.free and name not in held]
    later = _timed(tables, entry, group, others)
    later.sort(key=lambda choice: (choice[0], _cost(tables, choice[1])))
    return sorted(_timed(tables, entry, group, names) + later, key=itemgetter(0))


def _timed(tables: Tables, entry: WaitingSet, group: Group, names: Iterable[str]) -> list[Choice]:
    """Return devices that a member of a set can have, with the time when each is free."""
    timed = ((_free_sec(tables, entry, group, tables.devices[name]), name) for name in names)
    return [choice for choice in timed if choice[0] < math.inf]


def _plan_beside_others(tables: Tables, entry: WaitingSet, choices: Sequence[Sequence[Choice]]) -> Plan | None:
    """Return the best plan without devices that earlier sets hold, or that suit claims."""
    held, claims, unvisited = tables.sets.held, tables.sets.claims, set(tables.sets.unvisited)

    def is_left(name: str) -> bool:
        holder = held.get(name)
        if holder is not None and holder is not entry and holder.request.key not in unvisited:
            return False
        return not claims or not any(name in group.devices for group in claims)

    if held or claims:
        choices = [[choice for choice in of_one if is_left(choice[1])] for of_one in choices]
    return earliest(choices)


def _cost(tables: Tables, name: str) -> tuple[bool, float, float]:
    """Return the cost of ending the batch lease of a device; zero for others."""
    lease = tables.devices[name].lease
    return yielding.cost(tables, lease) if lease and lease.name in tables.batch else (False, -math.inf, 0.0)


def _free_sec(tables: Tables, entry: WaitingSet, group: Group, device: DeviceEntry | None) -> float:
    """Return the moment when a device is free for a member of a set, at the latest; infinite if that is not known.

    Args:
        group: the member's.
    """
    if device is None or not (device.is_attached and device.is_healthy and _serves(entry, group, device)):
        return math.inf
    free_sec = _end_sec(tables, entry, device.lease)
    is_left = booked.fits(tables, device.name, entry.request.terms, max(free_sec, tables.now_sec))
    return free_sec if is_left else math.inf


def _end_sec(tables: Tables, entry: WaitingSet, lease: LeaseEntry | None) -> float:
    """Return the moment when a device's lease ends for a set, at the latest; infinite if that is not known."""
    if lease is None:
        return tables.now_sec
    if wanted := tables.yields.get(lease.name):
        is_own = wanted.request_key in entry.member_keys
        return wanted.until_sec if is_own else math.inf
    if lease.name in tables.batch and yielding.is_due(tables, lease, entry.request):
        return min(tables.now_sec + tables.accounts.policy.yield_grace_sec, lease.ends_at_sec)
    return lease.ends_at_sec


def _serves(entry: WaitingSet, group: Group, device: DeviceEntry) -> bool:
    """Return True if the mark of a device allows it to serve a member of a set."""
    return is_served(device.mark.state, entry.request.terms, is_named=group.exact_name is not None)


def _is_its_turn(tables: Tables, entry: WaitingSet, plan: Plan) -> bool:
    """Return True if no single request that the planned devices may serve goes before a set."""
    suspects = tables.matching.suspects
    for groups, is_suspect in {(tuple(tables.matching.groups_of(name)), name in suspects) for name in plan.devices}:
        single = tables.waiting.next_among(groups, tables.now_sec, is_suspect=is_suspect)
        if single is not None and not tables.sets.goes_before(entry, single, tables.now_sec):
            return False
    return True


def _want_all(tables: Tables, entry: WaitingSet) -> None:
    """Ask all batch leases on a set's devices to give way."""
    for member_id, name in zip(entry.request.member_ids, entry.devices, strict=True):
        lease = tables.devices[name].lease
        if lease is None or lease.name not in tables.batch or lease.name in tables.yields:
            continue
        if not yielding.is_safe(tables, lease):
            yielding.want(tables, lease, entry.request, member_id)


def _fits(tables: Tables, entry: WaitingSet) -> bool:
    """Return True if all held devices still match their selectors."""
    return all(name in group.devices for name, group in zip(entry.devices, entry.groups, strict=True))


def _complete(tables: Tables, entry: WaitingSet) -> bool:
    """Grant a set if all its devices are free."""
    request, devices = entry.request, [tables.devices.get(name) for name in entry.devices]
    terms = request.terms
    free = [device for device in devices if device and device.can_serve and booked.fits(tables, device.name, terms)]
    if not free or len(free) < entry.size or entry.is_blocked or not _fits(tables, entry):
        return False
    if not all(_serves(entry, group, device) for device, group in zip(free, entry.groups, strict=True)):
        return False  # one became suspect; the next round holds another
    if not tables.clients[request.client_id].is_connected:
        return False
    chosen = [tables.devices[name] for name in _commonest(tables, entry)]
    has_starved = tables.sets.starves(entry, tables.now_sec)
    tables.remove_request(request)
    parts = zip(chosen, request.terms.selectors, request.member_ids, strict=True)
    for number, (device, selector, member_id) in enumerate(parts):
        own_terms = replace(terms, selector=selector, also=())
        part = replace(request, request_id=member_id, terms=own_terms)
        leases.grant(tables, device, part, set_id=request.request_id, member=number, has_starved=has_starved)
    return True


def _commonest(tables: Tables, entry: WaitingSet) -> list[str]:
    """Return held devices of a set, or more common ones that came free since they were chosen."""
    found: list[str] = []
    for name, group in zip(entry.devices, entry.groups, strict=True):
        commoner = choosing.commoner_free(tables.matching, group, name, tables.now_sec)
        others = (each for each in commoner if each not in found)
        suitable = (each for each in others if _free_sec(tables, entry, group, tables.devices[each]) <= tables.now_sec)
        found.append(next(suitable, name))
    return found


def _serve(tables: Tables, name: str) -> None:
    """Serve a device that is held, or was."""
    device, entry = tables.devices.get(name), tables.sets.held.get(name)
    if device is None:
        return
    if entry is None:
        leases.serve(tables, device)
        return
    if not device.can_serve or _complete(tables, entry):
        return
    _fill_in(tables, device, entry)


def _fill_in(tables: Tables, device: DeviceEntry, entry: WaitingSet) -> None:
    """Grant a free device that is held to a single request that ends in time or has a higher class."""
    first = leases.next_request(tables, device)
    if first is None:
        return
    if not _ends_in_time(tables, first, entry):
        if _outranks(tables, first, entry):
            _give_up(tables, entry)
        else:
            first = _next_within(tables, device, entry.at_sec - tables.now_sec)
    if first is not None:
        leases.grant_waiting(tables, device, first)


def _next_within(tables: Tables, device: DeviceEntry, longest_sec: float) -> RequestEntry | None:
    """Return the next single request with a lease of limited length; None if all is free within the grace anyway."""
    longest_sec = min(longest_sec, tables.bookings.limit_sec(device.name) - tables.now_sec)
    if longest_sec <= tables.accounts.policy.yield_grace_sec:
        return None
    return tables.waiting.next_within(device.name, longest_sec, tables.limits.max_duration_sec)


def _ends_in_time(tables: Tables, request: RequestEntry, entry: WaitingSet) -> bool:
    return tables.now_sec + (request.terms.max_sec or tables.limits.max_duration_sec) <= entry.at_sec


def _outranks(tables: Tables, request: RequestEntry, entry: WaitingSet) -> bool:
    is_higher = request.terms.lease_class.rank < entry.request.terms.lease_class.rank
    return is_higher and not tables.sets.starves(entry, tables.now_sec)


def _give_up(tables: Tables, entry: WaitingSet) -> None:
    """Have a set hold nothing until the next round. Idempotent."""
    if entry.devices:
        tables.sets.let_go(entry)
        tables.forget_yields_for(entry.request)
