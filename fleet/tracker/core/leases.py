"""The life of a lease: grant, renewal, end; and who is served when a device becomes free."""

from __future__ import annotations

from functools import partial

from fleet.tracker.core import events as ev
from fleet.tracker.core.book import Book
from fleet.tracker.core.entries import DeviceEntry, LeaseEnd, LeaseEntry, RequestEntry

_UNKNOWN = (LeaseEnd.UNKNOWN, "the tracker does not know this lease (any more); acquire a new one")


def serve(book: Book, device: DeviceEntry) -> None:
    """Give a device that may have become free to whoever is first in line for it."""
    if not device.can_serve:
        book.queue.set_busy(device.name)
        return
    first = None if book.journal_trouble else _first_in_line(book, device)
    if first is None:
        book.queue.set_free(device.name)
        return
    request = book.queue.highest_bid(first, device.name)
    while not book.clients[request.client_id].is_connected:
        book.remove_request(request)
        request = book.queue.highest_bid(first, device.name)
    book.remove_request(request)
    if request is not first:
        book.queue.move(first, request.order)
        book.changes.requests[first.key] = first
    grant(book, device, request)


def _first_in_line(book: Book, device: DeviceEntry) -> RequestEntry | None:
    """Return whose turn it is, dropping those whose client is gone."""
    while (first := book.queue.next_for(device.name)) is not None:
        if book.clients[first.client_id].is_connected:
            return first
        book.remove_request(first)
    return None


def grant(book: Book, device: DeviceEntry, request: RequestEntry) -> None:
    """Answer a request with a device that is free."""
    now_sec = book.now_sec
    book.queue.set_busy(device.name)
    book.last_epoch += 1
    book.grant_count += 1
    epoch = max(book.last_epoch, device.epoch + 1)
    ends_at_sec = now_sec + request.max_duration_sec
    lease = LeaseEntry(
        name=f"leases/{book.nonce}-{book.grant_count}",
        device_name=device.name,
        epoch=epoch,
        client_id=request.client_id,
        request_id=request.request_id,
        holder=request.holder,
        purpose=request.purpose,
        ttl_sec=request.ttl_sec,
        granted_at_sec=now_sec,
        expires_at_sec=min(now_sec + request.ttl_sec, ends_at_sec),
        ends_at_sec=ends_at_sec,
        note=request.note,
    )
    device.epoch, device.lease = lease.epoch, lease
    book.leases[lease.name] = lease
    book.clients[lease.client_id].leases[lease.request_id] = lease
    book.changes.leases[device.name] = device
    book.timers.set(("lease", lease.name), lease.expires_at_sec, partial(expire, book, lease.name))
    book.effects.append(ev.Granted(lease.client_id, lease))


def renew(book: Book, event: ev.Renew) -> None:
    """Let a live lease last longer; an ended one stays ended."""
    lease = book.leases.get(event.lease_name)
    if lease is None or lease.client_id != event.client_id:
        _tell_end(book, event.client_id, event.lease_name)
        return
    lease.expires_at_sec = max(lease.expires_at_sec, min(book.now_sec + lease.ttl_sec, lease.ends_at_sec))
    book.changes.leases[lease.device_name] = book.devices[lease.device_name]
    book.effects.append(ev.Renewed(event.client_id, lease))


def release(book: Book, event: ev.Release) -> None:
    """End a lease that its holder gives back."""
    lease = book.leases.get(event.lease_name)
    if lease is None or lease.client_id != event.client_id:
        _tell_end(book, event.client_id, event.lease_name)
        return
    end_and_serve(book, lease, LeaseEnd.RELEASED, "released by its holder")


def revoke(book: Book, event: ev.Revoke) -> None:
    """End a lease that an operator takes away."""
    lease = book.leases.get(event.lease_name)
    if lease is None:
        return
    reason = event.reason or "no reason given"
    end_and_serve(book, lease, LeaseEnd.REVOKED, f"taken away by an operator: {reason}")
    book.effects.append(ev.Revoked(lease))


def expire(book: Book, name: str) -> None:
    """End a lease whose time is over; look again later at one that was renewed."""
    lease = book.leases.get(name)
    if lease is None:
        return
    if lease.expires_at_sec > book.now_sec:
        book.timers.set(("lease", name), lease.expires_at_sec, partial(expire, book, name))
        return
    at_most = lease.expires_at_sec >= lease.ends_at_sec
    why = "it reached its maximum length" if at_most else f"not renewed within its ttl of {lease.ttl_sec:g} s"
    end_and_serve(book, lease, LeaseEnd.EXPIRED, f"{lease.name} expired: {why}")


def end_and_serve(book: Book, lease: LeaseEntry, how: LeaseEnd, message: str) -> None:
    """End a lease and give its device to the next in line."""
    end(book, lease, how, message)
    serve(book, book.devices[lease.device_name])


def end(book: Book, lease: LeaseEntry, how: LeaseEnd, message: str, *, is_told: bool = True) -> None:
    """End a lease, fence its device, and tell the holder."""
    device, client = book.devices[lease.device_name], book.clients[lease.client_id]
    device.lease = None
    del book.leases[lease.name]
    book.timers.cancel(("lease", lease.name))
    del client.leases[lease.request_id]
    book.changes.leases[device.name] = device
    book.ends[lease.name] = (how, message)
    if len(book.ends) > book.limits.remembered_ends:
        book.ends.popitem(last=False)
    if device.is_attached:
        book.effects.append(ev.Fence(device.agent_id, device.name, lease.epoch))
    if is_told:
        book.effects.append(ev.LeaseEnded(client.client_id, lease.name, how, message))
    if not (client.is_connected or client.leases or client.parked or client.requests):
        book.forget_client(client)


def _tell_end(book: Book, client_id: str, lease_name: str) -> None:
    how, message = book.ends.get(lease_name, _UNKNOWN)
    book.effects.append(ev.LeaseEnded(client_id, lease_name, how, message))
