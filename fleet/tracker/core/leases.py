"""Life cycle of a lease: grant, renewal, end; and the next request for a freed device."""

from __future__ import annotations

from functools import partial

from fleet.domain.leases import LeaseClass
from fleet.tracker.core import bidding, booked, health
from fleet.tracker.core import events as ev
from fleet.tracker.core.accounts import Account
from fleet.tracker.core.records import DeviceEntry, LeaseEnd, LeaseEntry, RequestEntry
from fleet.tracker.core.tables import Tables

_OFFERED = 4
"""Number of free devices of a selector that are offered at once; the end of a lease makes room for one."""
_UNKNOWN = (LeaseEnd.UNKNOWN, "the tracker does not know this lease (any more); acquire a new one")


def serve(tables: Tables, device: DeviceEntry) -> None:
    """Grant a device that may have become free to the first matching request."""
    if not device.is_ready:
        tables.matching.set_busy(device.name)
        return
    if device.name in tables.sets.held:
        tables.matching.set_busy(device.name)
        tables.sets.offered.append(device.name)
        return
    request = None if tables.journal_trouble else next_request(tables, device)
    if request is None:
        if device.can_serve and booked.is_open(tables, device.name):
            tables.matching.set_free(device.name)
        else:
            tables.matching.set_busy(device.name)
        return
    grant_waiting(tables, device, request)


def serve_account(tables: Tables, name: str) -> None:
    """Grant free devices to an account after a quota of it got room again."""
    if tables.journal_trouble:
        return
    for group in tables.waiting.groups_of(name):
        for device_name in tables.matching.offered(group, _OFFERED):
            serve(tables, tables.devices[device_name])


def next_request(tables: Tables, device: DeviceEntry) -> RequestEntry | None:
    """Return the next request, dropping those of lost clients."""
    while (request := _next_for(tables, device)) is not None:
        if tables.clients[request.client_id].is_connected:
            return request
        tables.remove_request(request)
    return None


def _next_for(tables: Tables, device: DeviceEntry) -> RequestEntry | None:
    if device.can_serve:
        if device.name in tables.bookings.by_device:
            return booked.next_for(tables, device.name)
        return tables.waiting.next_for(device.name, tables.now_sec)
    return health.next_exempt(tables, device)


def grant_waiting(tables: Tables, device: DeviceEntry, request: RequestEntry) -> None:
    """Grant a free device to a single request that waits."""
    has_starved = tables.waiting.starves(request, tables.now_sec)
    tables.remove_request(request)
    grant(tables, device, request, has_starved=has_starved)


def grant(
    tables: Tables,
    device: DeviceEntry,
    request: RequestEntry,
    *,
    set_id: str = "",
    member: int = 0,
    has_starved: bool = False,
) -> None:
    """Grant a free device to a request, or to a member of a set."""
    now_sec = tables.now_sec
    tables.matching.set_busy(device.name)
    tables.last_epoch += 1
    tables.grant_count += 1
    epoch = max(tables.last_epoch, device.epoch + 1)
    terms = request.terms
    ends_at_sec = now_sec + (terms.max_sec or tables.limits.max_duration_sec)
    if terms.booking:
        ends_at_sec = min(ends_at_sec, tables.bookings.entries[terms.booking].entry.ends_at_sec)
    lease = LeaseEntry(
        name=f"leases/{tables.nonce}-{tables.grant_count}",
        device_name=device.name,
        epoch=epoch,
        client_id=request.client_id,
        request_id=request.request_id,
        holder=request.holder,
        terms=terms,
        granted_at_sec=now_sec,
        expires_at_sec=min(now_sec + terms.ttl_sec, ends_at_sec),
        ends_at_sec=ends_at_sec,
        asked_at_sec=request.asked_at_sec,
        account=request.account,
        note=request.note,
        has_starved=has_starved,
    )
    account = tables.accounts.account(lease.account)
    account.leases[terms.lease_class] += 1
    _charge(tables, lease, min(account.expected_sec(terms.lease_class), ends_at_sec - now_sec))
    tables.waiting.note_grant(lease.account, device.name, now_sec)
    device.epoch, device.lease = lease.epoch, lease
    _note_grant(tables, device)
    tables.leases[lease.name] = lease
    tables.bookings.note_grant(lease)
    if terms.lease_class is LeaseClass.BATCH:
        tables.batch[lease.name] = lease
    tables.clients[lease.client_id].leases[lease.request_id] = lease
    tables.changes.leases[device.name] = device
    tables.timers.set(("lease", lease.name), lease.expires_at_sec, partial(expire, tables, lease.name))
    tables.effects.append(ev.Granted(lease.client_id, lease, set_id=set_id, member=member))
    bidding.tell_lease(tables, lease)


def _note_grant(tables: Tables, device: DeviceEntry) -> None:
    """Count the lease for a row of faults; a lease before it that ended without one ends the row."""
    was_used, device.is_used = device.is_used, True
    if device.fault_count:
        device.fault_count = 0 if was_used else device.fault_count
        tables.changes.health[device.name] = tables.health_of(device.name)


def renew(tables: Tables, event: ev.Renew) -> None:
    """Extend a live lease; an ended one stays ended."""
    lease = tables.leases.get(event.lease_name)
    if lease is None or lease.client_id != event.client_id:
        _tell_end(tables, event.client_id, event.lease_name)
        return
    lease.expires_at_sec = max(lease.expires_at_sec, min(tables.now_sec + lease.terms.ttl_sec, lease.ends_at_sec))
    if (over_sec := tables.now_sec - lease.granted_at_sec - lease.charged_sec) > 0:
        _charge(tables, lease, over_sec + lease.terms.ttl_sec)
    tables.changes.leases[lease.device_name] = tables.devices[lease.device_name]
    tables.effects.append(ev.Renewed(event.client_id, lease))


def release(tables: Tables, event: ev.Release) -> None:
    """End a lease that its holder releases."""
    lease = tables.leases.get(event.lease_name)
    if lease is None or lease.client_id != event.client_id:
        _tell_end(tables, event.client_id, event.lease_name)
        return
    end_and_serve(tables, lease, LeaseEnd.RELEASED, "released by its holder")


def revoke(tables: Tables, event: ev.Revoke) -> None:
    """End a lease that an operator revokes."""
    lease = tables.leases.get(event.lease_name)
    if lease is None:
        return
    reason = event.reason or "no reason given"
    end_and_serve(tables, lease, LeaseEnd.REVOKED, f"taken away by an operator: {reason}")
    tables.effects.append(ev.Revoked(lease))


def expire(tables: Tables, name: str) -> None:
    """End an expired lease; check a renewed one again later."""
    lease = tables.leases.get(name)
    if lease is None:
        return
    if lease.expires_at_sec > tables.now_sec:
        tables.timers.set(("lease", name), lease.expires_at_sec, partial(expire, tables, name))
        return
    at_most = lease.expires_at_sec >= lease.ends_at_sec
    why = "it reached its maximum length" if at_most else f"not renewed within its ttl of {lease.terms.ttl_sec:g} s"
    end_and_serve(tables, lease, LeaseEnd.EXPIRED, f"{lease.name} expired: {why}")


def end_and_serve(tables: Tables, lease: LeaseEntry, how: LeaseEnd, message: str) -> None:
    """End a lease and grant its device to the next request."""
    was_blocked = tables.accounts.account(lease.account).is_blocked(lease.terms.lease_class)
    end(tables, lease, how, message)
    serve(tables, tables.devices[lease.device_name])
    if was_blocked:
        serve_account(tables, lease.account)


def end(tables: Tables, lease: LeaseEntry, how: LeaseEnd, message: str, *, is_told: bool = True) -> None:
    """End a lease, fence its device, and notify the holder."""
    device, client = tables.devices[lease.device_name], tables.clients[lease.client_id]
    device.lease = None
    del tables.leases[lease.name]
    tables.batch.pop(lease.name, None)
    if tables.forget_yield(lease.name) is not None:
        tables.gave_way[lease.name] = lease.client_id, lease.asked_at_sec
        if len(tables.gave_way) > tables.limits.remembered_ends:
            tables.gave_way.popitem(last=False)
    if (booking := tables.bookings.note_end(lease, tables.now_sec)) is not None:
        tables.changes.bookings[booking.name] = booking
    _settle(tables, lease)
    tables.timers.cancel(("lease", lease.name))
    del client.leases[lease.request_id]
    tables.changes.leases[device.name] = device
    tables.ends[lease.name] = (how, message)
    if len(tables.ends) > tables.limits.remembered_ends:
        tables.ends.popitem(last=False)
    if device.is_attached:
        tables.effects.append(ev.Fence(device.agent_id, device.name, lease.epoch))
    if is_told:
        tables.effects.append(ev.LeaseEnded(client.client_id, lease.name, how, message, lease))
    if not (client.is_connected or client.leases or client.parked or client.requests):
        tables.forget_client(client)


def _charge(tables: Tables, lease: LeaseEntry, sec: float) -> None:
    """Charge a lease's account for device seconds to come."""
    account = tables.accounts.account(lease.account)
    tables.accounts.charge(account, lease.terms.lease_class, sec, tables.now_sec)
    lease.charged_sec, lease.charged_at_sec = lease.charged_sec + sec, tables.now_sec
    _note_use(tables, account)


def _settle(tables: Tables, lease: LeaseEntry) -> None:
    """Charge an ended lease for its length instead of the expected one."""
    account, lease_class = tables.accounts.account(lease.account), lease.terms.lease_class
    used_sec = max(tables.now_sec - lease.granted_at_sec, 0.0)
    account.leases[lease_class] -= 1
    account.observe(lease_class, used_sec)
    tables.accounts.charge(account, lease_class, used_sec - lease.charged_sec, lease.charged_at_sec)
    _note_use(tables, account)


def _note_use(tables: Tables, account: Account) -> None:
    tables.used_accounts[account.name] = None
    tables.waiting.note_use(account.name)


def _tell_end(tables: Tables, client_id: str, lease_name: str) -> None:
    how, message = tables.ends.get(lease_name, _UNKNOWN)
    tables.effects.append(ev.LeaseEnded(client_id, lease_name, how, message))
