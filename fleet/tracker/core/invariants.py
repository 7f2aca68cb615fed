"""Invariants that hold after every event; only tests check them."""

from __future__ import annotations

from collections import Counter, defaultdict

from fleet.domain.health import HealthState
from fleet.domain.leases import LeaseClass
from fleet.tracker.core import yielding
from fleet.tracker.core.health import exempt_name, is_served
from fleet.tracker.core.state import TrackerState


def validate(state: TrackerState) -> None:
    """Check all invariants of the tracker's state exhaustively.

    Raises:
        RuntimeError: one does not hold; the message says which.
    """
    _validate_leases(state)
    _validate_requests(state)
    _validate_devices(state)
    _validate_quotas(state)
    _validate_yields(state)
    _validate_sets(state)
    _validate_bookings(state)
    kept = [group for entry in state.sets.entries.values() for group in entry.groups]
    state.waiting.validate([*kept, *(booking.group for booking in state.bookings.entries.values())])


def _validate_leases(state: TrackerState) -> None:
    by_device = [device.lease for device in state.devices.values() if device.lease]
    _require({lease.name for lease in by_device} == set(state.leases), "leases and devices agree")
    _require(len({lease.device_name for lease in state.leases.values()}) == len(state.leases), "one lease per device")
    by_client = [lease for client in state.clients.values() for lease in client.leases.values()]
    _require({lease.name for lease in by_client} == set(state.leases), "leases and clients agree")
    for lease in state.leases.values():
        device = state.devices[lease.device_name]
        _require(device.lease is lease and device.epoch == lease.epoch, f"{lease.name} is the newest of its device")
        _require(state.now_sec < lease.expires_at_sec <= lease.ends_at_sec, f"{lease.name} is within its time")


def _validate_requests(state: TrackerState) -> None:
    waiting = {request.key for client in state.clients.values() for request in client.requests.values()}
    accounts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for client in state.clients.values():
        for request in client.requests.values():
            accounts[request.account].update(map(state.matching.general, request.terms.selectors))
            _require(request.account == (request.terms.account or client.account), "a request counts for its account")
    _require(accounts == state.waiting_by_account, "requests of each account are counted")
    parked = Counter(request.account for client in state.clients.values() for request in client.parked.values())
    _require(parked == state.parked_by_account, "parked requests of each account are counted")
    singles = list(state.waiting.first(len(state.waiting)))
    queued = singles + [entry.request for entry in state.sets.entries.values()]
    queued += [request for booking in state.bookings.entries.values() for request in booking.requests.values()]
    _require({request.key for request in queued} == waiting and len(queued) == len(waiting), "queue and clients agree")
    for client in state.clients.values():
        _require(client.is_connected or not client.requests, "a client that is gone waits for nothing")
        _require(not client.requests.keys() & client.leases.keys(), "an answered request waits no more")
        _require(not client.requests.keys() & client.parked.keys(), "a request is parked or waits")
        _require(client.is_connected or bool(client.leases or client.parked), "an idle lost client is forgotten")
    for request in queued:
        is_late = request.deadline_sec is not None and request.deadline_sec <= state.now_sec
        _require(not is_late, f"request {request.request_id} is within its deadline")
    for request in singles:
        takes_suspects = is_served(HealthState.SUSPECT, request.terms)
        has_none = not state.matching.has_free(request.terms.selector, takes_suspects=takes_suspects)
        has_none = has_none and exempt_name(state, request) is None
        is_blocked = state.accounts.account(request.account).is_blocked(request.terms.lease_class)
        has_reason = has_none or is_blocked or bool(state.journal_trouble) or state.timers.is_set(("serve",))
        _require(has_reason, f"request {request.request_id} waits for a reason")


def _validate_quotas(state: TrackerState) -> None:
    held = Counter((lease.account, lease.terms.lease_class) for lease in state.leases.values())
    counted = {
        (account.name, lease_class): number
        for account in state.accounts.by_name.values()
        for lease_class, number in account.leases.items()
        if number
    }
    _require(counted == held, "leases of each account are counted")


def _validate_yields(state: TrackerState) -> None:
    batch = {lease.name for lease in state.leases.values() if lease.terms.lease_class is LeaseClass.BATCH}
    _require(state.batch.keys() == batch, "batch leases are listed")
    by_request = {wanted.request_key: name for name, wanted in state.yields.items() if wanted.request_key is not None}
    _require(set(by_request.values()) <= batch, "only live batch leases give way to requests")
    cleared = {name for name, wanted in state.yields.items() if wanted.request_key is None}
    closed = {device.lease.name for device in state.devices.values() if device.lease and not device.mark.state.is_open}
    booked = {name for name in cleared if state.yields[name].booking}
    _require(cleared - booked <= closed, "only leases of closed devices end by a mark")
    planned = {
        (booking.name, name) for booking in state.bookings.entries.values() for name in booking.entry.device_names
    }
    asked = {(state.yields[name].booking, state.leases[name].device_name) for name in booked}
    _require(asked <= planned, "only leases of booked devices end by a booking")
    owing = {name for name in closed & batch if state.leases[name].terms.even_if is None}
    _require(owing <= cleared, "batch leases of closed devices give way")
    _require(by_request == state.yields_by_request, "requests know the leases that they asked")
    waiting = {request.key for request in state.waiting.first(len(state.waiting))}
    for entry in state.sets.entries.values():
        waiting |= {(entry.request.client_id, member_id) for member_id in entry.request.member_ids}
    _require(by_request.keys() <= waiting, "only waiting requests ask leases to give way")
    for name in by_request.values():
        _require(not yielding.is_safe(state, state.leases[name]), f"{name} keeps its slice")
    for name, wanted in state.yields.items():
        _require(
            state.timers.is_set(("yield", name)) and wanted.until_sec >= state.now_sec, f"{name} gives way in time"
        )


def _validate_sets(state: TrackerState) -> None:
    sets = state.sets
    held = {name: entry for entry in sets.entries.values() for name in entry.devices}
    _require(sets.held == held, "each device is held by one set")
    for entry in sets.entries.values():
        _require(len(entry.devices) in (0, entry.size), "a set holds all its devices or none")
        _require(len(set(entry.devices)) == len(entry.devices), "the devices of a set are distinct")
        is_planned = state.timers.is_set(("sets",)) or bool(state.journal_trouble)
        _require(is_planned or not entry.is_examined, "a set is planned again")


def _validate_bookings(state: TrackerState) -> None:
    table = state.bookings
    table.validate(state.leases)
    for booking in table.entries.values():
        is_visited = state.timers.is_set(("bookings",)) or bool(state.journal_trouble)
        _require(is_visited, f"{booking.name} is visited in time")
        for request in booking.requests.values():
            _require(request.account == booking.entry.account, f"requests of {booking.name} are of its account")
    for name, slots in table.by_device.items():
        device = state.devices.get(name)
        lease = device.lease if device is not None else None
        if device is None or lease is None or not device.mark.state.is_open:
            continue
        for slot in slots:
            starts_at_sec = slot.booking.entry.starts_at_sec
            is_in_time = lease.ends_at_sec <= starts_at_sec or lease.terms.lease_class is LeaseClass.BATCH
            is_older = lease.granted_at_sec <= slot.planned_at_sec
            is_own = lease.terms.booking == slot.booking.name
            _require(is_in_time or is_older or is_own, f"{lease.name} does not reach into {slot.booking.name}")


def _validate_devices(state: TrackerState) -> None:
    marks = {name: device.mark for name, device in state.devices.items() if device.mark.at_sec}
    _require(marks == {name: mark for name, mark in state.marks.items() if name in state.devices}, "devices are marked")
    suspects = {name for name, mark in marks.items() if mark.state is HealthState.SUSPECT}
    _require(state.matching.suspects == suspects, "suspects are known")
    can_serve = {device.name for device in state.devices.values() if device.can_serve}
    can_serve -= state.sets.held.keys() | state.bookings.held.keys()
    free = set(state.matching.free_devices())
    _require(free <= can_serve, "free devices are those that can serve")
    _require(can_serve - free <= set(state.sets.offered), "free devices are those that can serve and are not offered")
    served = [(agent_id, name) for agent_id, names in state.devices_by_agent.items() for name in names]
    attached = [(device.agent_id, device.name) for device in state.devices.values() if device.is_attached]
    _require(sorted(served) == sorted(attached), "an attached device is one of its agent's")
    size_bytes = sum(len(device.description) for device in state.devices.values())
    _require(state.inventory_bytes == size_bytes, "what devices say of themselves is counted")
    leaving = state.devices_by_agent.keys() - state.streams.keys()
    _require(all(state.timers.is_set(("detach", agent_id)) for agent_id in leaving), "devices leave with their agent")
    for device in state.devices.values():
        _require(device.is_attached is (device.detached_at_sec is None), f"{device.name} is attached or not")


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise RuntimeError(f"invariant broken: {what}")
