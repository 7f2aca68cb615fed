"""Clients come, get lost and come back; leases and requests live on for a while without them."""

from __future__ import annotations

from functools import partial

from fleet.tracker.core import events as ev
from fleet.tracker.core import leases
from fleet.tracker.core.book import Book
from fleet.tracker.core.entries import ClientEntry, LeaseEnd


def connect(book: Book, event: ev.ClientConnected) -> None:
    """Welcome a client and tell it which of its leases are live."""
    client = book.clients.setdefault(event.client_id, ClientEntry(client_id=event.client_id, holder=event.holder))
    if client.is_connected:
        _park_requests(book, client)
    client.holder, client.is_connected = event.holder, True
    book.effects.append(ev.Welcomed(client.client_id, tuple(client.leases.values())))


def lose(book: Book, event: ev.ClientLost) -> None:
    """Drop what a lost client waits for; its leases live on for the time of grace."""
    client = book.clients.get(event.client_id)
    if client is None or not client.is_connected:
        return
    book.version += 1
    client.is_connected = False
    book.queue.discard_many(client.requests.values())
    book.changes.requests |= dict.fromkeys(request.key for request in client.requests.values())
    client.requests.clear()
    for request in list(client.parked.values()):
        book.unpark(request)
    if not client.leases:
        del book.clients[client.client_id]
        return
    start_grace(book, client)


def start_grace(book: Book, client: ClientEntry) -> None:
    """Give a client time to come back, or to repeat its requests."""
    client.lost_until_sec = book.now_sec + book.limits.grace_sec
    book.timers.add(client.lost_until_sec, partial(_end_grace, book, client.client_id))


def _park_requests(book: Book, client: ClientEntry) -> None:
    """Set aside what a client waits for whose stream was replaced by a newer one: it repeats that soon."""
    book.queue.discard_many(client.requests.values())
    client.parked |= client.requests
    client.requests.clear()
    start_grace(book, client)


def _end_grace(book: Book, client_id: str) -> None:
    client = book.clients.get(client_id)
    if client is None or client.lost_until_sec > book.now_sec:
        return
    for request in list(client.parked.values()):
        book.unpark(request)
    if client.is_connected:
        return
    message = f"its holder was gone for more than {book.limits.grace_sec:g} s"
    for lease in list(client.leases.values()):
        leases.end_and_serve(book, lease, LeaseEnd.CLIENT_LOST, message)
    book.clients.pop(client_id, None)
