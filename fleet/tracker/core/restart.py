"""State restored from a journal: devices without their agents, leases and requests without their clients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from fleet.domain.leases import LeaseClass
from fleet.tracker.core import bookings, clients, devices, leases, marking, poisons
from fleet.tracker.core.records import ClientEntry, DeviceEntry, Durable, RequestEntry
from fleet.tracker.core.tables import Tables


def restore(tables: Tables, durable: Durable, grace_sec: float | None = None) -> None:
    """Fill empty tables from the journal.

    Args:
        grace_sec: time that clients have to come back; the usual one if None.
    """
    for device in durable.devices:
        _restore_device(tables, device, grace_sec)
    marking.restore(tables, durable.health)
    poisons.restore(tables, durable.poison)
    bookings.restore(tables, durable.bookings)
    for use in durable.uses:
        account = tables.accounts.restore(use, tables.now_sec)
        if tables.use_of(account) is None and not account.leases:  # long ago
            tables.accounts.forget(account)
            tables.changes.uses[account.name] = None
    for request in sorted(_asked_by(tables.now_sec, durable.requests), key=lambda request: request.arrival):
        _restore_request(tables, request, grace_sec)


def _asked_by(now_sec: float, requests: Sequence[RequestEntry]) -> Sequence[RequestEntry]:
    """Return requests with times shifted so that none is in the future, preserving their order and distances.

    The clock may have been set back while the tracker was down. New requests would be served before them until it has
    caught up.
    """
    ahead_sec = max((request.asked_at_sec for request in requests), default=now_sec) - now_sec
    if ahead_sec <= 0:
        return requests
    return [
        replace(
            request,
            asked_at_sec=request.asked_at_sec - ahead_sec,
            deadline_sec=None if request.deadline_sec is None else request.deadline_sec - ahead_sec,
        )
        for request in requests
    ]


def _restore_device(tables: Tables, device: DeviceEntry, grace_sec: float | None) -> None:
    tables.devices[device.name] = device
    tables.inventory_bytes += len(device.description)
    device.is_attached = False
    if device.detached_at_sec is None:
        device.detached_at_sec = tables.now_sec
    tables.matching.add_device(device.name, device.labels)
    forget_at_sec = device.detached_at_sec + tables.limits.forget_device_sec
    tables.timers.set(("device", device.name), forget_at_sec, partial(devices.forget_if_long_gone, tables, device.name))
    lease = device.lease
    if lease is None:
        return
    tables.leases[lease.name] = lease
    device.is_used = True
    lease.asked_at_sec = lease.granted_at_sec
    if lease.terms.lease_class is LeaseClass.BATCH:
        tables.batch[lease.name] = lease
    lease.account = lease.account or lease.holder
    lease.granted_at_sec = min(lease.granted_at_sec, tables.now_sec)  # the clock may have been set back
    lease.charged_at_sec = min(lease.charged_at_sec, tables.now_sec)
    tables.accounts.account(lease.account).leases[lease.terms.lease_class] += 1
    _client(tables, lease.client_id, lease.holder, grace_sec).leases[lease.request_id] = lease
    tables.timers.set(("lease", lease.name), lease.expires_at_sec, partial(leases.expire, tables, lease.name))


def _restore_request(tables: Tables, request: RequestEntry, grace_sec: float | None) -> None:
    request.account = request.terms.account
    tables.park(_client(tables, request.client_id, request.holder, grace_sec), {request.request_id: request})
    tables.arrivals = max(tables.arrivals, request.arrival)


def _client(tables: Tables, client_id: str, holder: str, grace_sec: float | None) -> ClientEntry:
    client = tables.clients.get(client_id)
    if client is None:
        client = tables.clients[client_id] = ClientEntry(client_id=client_id, holder=holder)
        clients.start_grace(tables, client, grace_sec)
    return client
