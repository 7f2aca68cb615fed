"""Connection, loss and return of clients; their leases and requests survive for a grace period."""

from __future__ import annotations

from functools import partial
from itertools import islice

from fleet.tracker.core import events as ev
from fleet.tracker.core import leases, yielding
from fleet.tracker.core.records import ClientEntry, LeaseEnd
from fleet.tracker.core.tables import Tables

_PORTION = 32
"""Number of requests dropped at once; other tasks get their turn before the next ones."""
_PORTION_OF_LEASES = 4
"""Number of leases ended at once: each notifies its agent and holder, and its device is granted again."""


def connect(tables: Tables, event: ev.ClientConnected) -> None:
    """Welcome a client and list its live leases."""
    client = tables.clients.setdefault(event.client_id, ClientEntry(client_id=event.client_id, holder=event.holder))
    if client.requests:
        _park_requests(tables, client)
    client.is_connected = True
    _name(tables, client, event.holder, event.note)
    _belong_to(tables, client, event.account or event.holder)
    client.may_ask_for_others, client.is_admin = event.may_ask_for_others, event.is_admin
    held = tuple(client.leases.values())
    tables.effects.append(ev.Welcomed(client.client_id, held, client.account, client.may_ask_for_others))
    yielding.tell_again(tables, client.client_id)


def lose(tables: Tables, event: ev.ClientLost) -> None:
    """Drop a lost client's requests; its leases live on for the grace period."""
    client = tables.clients.get(event.client_id)
    if client is None or not client.is_connected:
        return
    tables.version += 1
    client.is_connected = False
    start_grace(tables, client)
    _leave_queue(tables, client.client_id)


def _leave_queue(tables: Tables, client_id: str) -> None:
    """Drop a lost client's requests in portions; none of them is granted any more."""
    client = tables.clients.get(client_id)
    if client is None or client.is_connected:
        return
    waiting = list(islice(client.requests.values(), _PORTION))
    for request in waiting:
        tables.remove_request(request)
    for request in list(islice(client.parked.values(), _PORTION - len(waiting))):
        tables.unpark(request)
    if client.requests or client.parked:
        tables.timers.set(("leave", client_id), tables.now_sec, partial(_leave_queue, tables, client_id))
    elif not client.leases:
        tables.forget_client(client)


def _name(tables: Tables, client: ClientEntry, holder: str, note: str) -> None:
    """Set the names of a client and of its leases. Until then, leases from before a restart have the journal's
    names.
    """
    client.holder, client.note = holder, note
    for lease in client.leases.values():
        if (lease.holder, lease.note) != (holder, note):
            lease.holder, lease.note = holder, note
            tables.changes.leases[lease.device_name] = tables.devices[lease.device_name]
            tables.version += 1


def _belong_to(tables: Tables, client: ClientEntry, account: str) -> None:
    """Count the requests that a client's stream is expected to repeat in its account's share, which is not in the
    journal.
    """
    tables.count_parked(client.parked.values(), -1)
    client.account = account
    for request in client.parked.values():
        request.account = request.terms.account or account
    tables.count_parked(client.parked.values(), 1)


def start_grace(tables: Tables, client: ClientEntry, grace_sec: float | None = None) -> None:
    """Start the grace period in which a client may return or repeat its requests.

    Args:
        grace_sec: its length; the usual one if None.
    """
    client.lost_until_sec = tables.now_sec + (tables.limits.grace_sec if grace_sec is None else grace_sec)
    tables.timers.set(("grace", client.client_id), client.lost_until_sec, partial(_end_grace, tables, client.client_id))


def _park_requests(tables: Tables, client: ClientEntry) -> None:
    """Park the requests of a client with a newer stream, which will repeat them soon."""
    tables.count_waiting(client.requests.values(), -1)
    tables.waiting.discard_many(client.requests.values())
    for request in client.requests.values():
        tables.sets.discard(request)
        tables.bookings.discard(request)
        tables.forget_yields_for(request)
    tables.park(client, client.requests)
    client.requests.clear()
    start_grace(tables, client)


def _end_grace(tables: Tables, client_id: str) -> None:
    client = tables.clients.get(client_id)
    if client is None or client.lost_until_sec > tables.now_sec:
        return
    for request in list(islice(client.parked.values(), _PORTION)):
        tables.unpark(request)
    if client.is_connected and not client.parked:
        return
    if not client.is_connected:
        message = f"its holder was gone for more than {tables.limits.grace_sec:g} s"
        for lease in list(islice(client.leases.values(), _PORTION_OF_LEASES)):
            leases.end_and_serve(tables, lease, LeaseEnd.CLIENT_LOST, message)
    if client.parked or client.leases:
        tables.timers.set(("grace", client_id), tables.now_sec, partial(_end_grace, tables, client_id))
    elif not client.requests:
        tables.forget_client(client)
