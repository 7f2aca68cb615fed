"""What a start on a journal brings back: devices without their agents, leases and requests without their clients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from fleet.tracker.core import clients, devices, leases
from fleet.tracker.core.book import Book
from fleet.tracker.core.entries import ClientEntry, DeviceEntry, Durable, RequestEntry


def restore(book: Book, durable: Durable) -> None:
    """Fill an empty book from the journal."""
    for device in durable.devices:
        _restore_device(book, device)
    for request in sorted(_asked_by(book.now_sec, durable.requests), key=lambda request: request.order):
        _restore_request(book, request)


def _asked_by(now_sec: float, requests: Sequence[RequestEntry]) -> Sequence[RequestEntry]:
    """Return requests of which none was asked after now, in the same order, each as long before the next.

    The clock may have been set back while the tracker was down. Everybody who asks now would be served before them
    until it has caught up.
    """
    ahead_sec = max((request.asked_at_sec for request in requests), default=now_sec) - now_sec
    if ahead_sec <= 0:
        return requests
    return [
        replace(
            request,
            asked_at_sec=request.asked_at_sec - ahead_sec,
            deadline_sec=None if request.deadline_sec is None else request.deadline_sec - ahead_sec,
            order=(request.order[0] - ahead_sec, request.order[1]),
        )
        for request in requests
    ]


def _restore_device(book: Book, device: DeviceEntry) -> None:
    book.devices[device.name] = device
    book.inventory_bytes += len(device.description)
    device.is_attached = False
    if device.detached_at_sec is None:
        device.detached_at_sec = book.now_sec
    book.queue.add_device(device.name, device.labels)
    forget_at_sec = device.detached_at_sec + book.limits.forget_device_sec
    book.timers.set(("device", device.name), forget_at_sec, partial(devices.forget_if_long_gone, book, device.name))
    lease = device.lease
    if lease is None:
        return
    book.leases[lease.name] = lease
    _client(book, lease.client_id, lease.holder).leases[lease.request_id] = lease
    book.timers.set(("lease", lease.name), lease.expires_at_sec, partial(leases.expire, book, lease.name))


def _restore_request(book: Book, request: RequestEntry) -> None:
    book.park(_client(book, request.client_id, request.holder), {request.request_id: request})
    book.arrivals = max(book.arrivals, request.order[1])


def _client(book: Book, client_id: str, holder: str) -> ClientEntry:
    client = book.clients.get(client_id)
    if client is None:
        client = book.clients[client_id] = ClientEntry(client_id=client_id, holder=holder)
        clients.start_grace(book, client)
    return client
