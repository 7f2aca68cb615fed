"""Life cycle of a request: answered at once, or waiting for a grant, a cancellation or its deadline."""

from __future__ import annotations

import contextlib
from collections import Counter
from dataclasses import replace
from functools import partial

from fleet.domain.accounts import account_text
from fleet.errors import Cancelled, DiskFull, InvalidRequest, NotFound, QueueFull, WaitTimeout
from fleet.tracker.core import bidding, booked, bookings, health, leases, sets, yielding
from fleet.tracker.core import events as ev
from fleet.tracker.core.admission import (
    check_account,
    checked_bid,
    checked_preference,
    checked_selector,
    make_request,
    no_match_error,
    preferred_selector,
)
from fleet.tracker.core.booking_admission import check_booking, with_booked_terms
from fleet.tracker.core.records import ClientEntry, RequestEntry, member_ids
from fleet.tracker.core.tables import Tables

_NO_REQUESTS: Counter[str] = Counter()


def acquire(tables: Tables, event: ev.Acquire) -> None:
    """Answer a request, which may be a client's repetition."""
    client = tables.clients.get(event.client_id)
    if client is None or not client.is_connected:
        return
    if waiting := client.requests.get(event.request_id):
        tables.effects.append(ev.Queued(client.client_id, waiting))
    elif held := sets.granted_to(tables, client, member_ids(event.request_id, event.terms)):
        set_id = event.request_id if event.terms.also else ""
        for number, lease in enumerate(held):
            granted = ev.Granted(client.client_id, lease, is_repeat=True, set_id=set_id, member=number)
            tables.effects.append(granted)
    elif parked := client.parked.get(event.request_id):
        _take_up(tables, client, parked, event)
    else:
        _take_in(tables, client, event)


def cancel(tables: Tables, event: ev.Cancel) -> None:
    """Remove a request from the queue."""
    client = tables.clients.get(event.client_id)
    if client is None or not client.is_connected:
        return
    if request := client.requests.get(event.request_id):
        tables.remove_request(request)
    elif request := client.parked.get(event.request_id):
        tables.unpark(request)
    else:
        return
    message = f"request {event.request_id!r} was cancelled{' ' if event.reason else ''}{event.reason}"
    tables.refuse(client.client_id, event.request_id, Cancelled, message)


def _take_up(tables: Tables, client: ClientEntry, parked: RequestEntry, event: ev.Acquire) -> None:
    """Resume a request from before the client's stream or the tracker was new."""
    tables.unpark(parked)
    if parked.deadline_sec is not None and parked.deadline_sec <= tables.now_sec:
        _refuse_late(tables, parked)
        return
    try:  # an older tracker may have admitted the selector, and the client may have lost a right
        selector, *also = map(checked_selector, parked.terms.selectors)
        parked.terms = replace(parked.terms, selector=selector, also=tuple(also))
        check_account(parked.terms.account, client)
        health.check_even_if(parked.terms, client)
        check_booking(tables, parked)
    except (InvalidRequest, NotFound) as error:
        tables.refuse(client.client_id, parked.request_id, type(error), str(error))
        return
    with contextlib.suppress(InvalidRequest):  # it was valid when the request was admitted
        prefer, bid = checked_preference(event.terms.prefer), checked_bid(event.terms.bid)
        parked.terms = replace(parked.terms, prefer=prefer, bid=bid)
    parked.holder, parked.note = client.holder, client.note
    _serve_or_wait(tables, client, parked)


def _take_in(tables: Tables, client: ClientEntry, event: ev.Acquire) -> None:
    tables.arrivals += 1
    try:
        event = with_booked_terms(tables, event)
        quota = tables.accounts.quota(event.terms.account or client.account, event.terms.lease_class)
        request = make_request(event, client, tables.now_sec, tables.arrivals, tables.limits, quota)
        health.check_even_if(request.terms, client)
        check_booking(tables, request)
    except (InvalidRequest, NotFound) as error:
        tables.refuse(client.client_id, event.request_id, type(error), str(error))
        return
    if not (request.terms.also or request.terms.booking) and not tables.matching.count(request.terms.selector):
        refusal = no_match_error(event.terms.selector, tables.devices, tables.matching)
        tables.refuse(client.client_id, request.request_id, type(refusal), str(refusal))
        return
    _keep_age(tables, event, request)
    _serve_or_wait(tables, client, request)


def _keep_age(tables: Tables, event: ev.Acquire, request: RequestEntry) -> None:
    """Make a request as old as the one of a lease that gave way, which it continues."""
    client_id, asked_at_sec = tables.gave_way.get(event.continues, ("", 0.0))
    if client_id == event.client_id:
        request.asked_at_sec = min(request.asked_at_sec, asked_at_sec)
        del tables.gave_way[event.continues]


def _serve_or_wait(tables: Tables, client: ClientEntry, request: RequestEntry) -> None:
    if tables.journal_trouble:
        tables.refuse(client.client_id, request.request_id, DiskFull, tables.journal_trouble)
        return
    if (name := _device_for(tables, request)) is not None:
        leases.grant(tables, tables.devices[name], request)
        return
    if message := _too_many(tables, client, request):
        tables.refuse(client.client_id, request.request_id, QueueFull, message)
        return
    client.requests[request.request_id] = request
    tables.count_waiting([request], 1)
    tables.changes.requests[request.key] = request
    if request.deadline_sec is not None:
        tables.timers.set(("wait", request.key), request.deadline_sec, partial(_end_wait, tables, request.key))
    if request.terms.also:
        sets.begin(tables, request)
        return
    if request.terms.booking:
        bookings.begin(tables, request)
        return
    tables.waiting.push(request)
    tables.effects.append(ev.Queued(client.client_id, request))
    yielding.want_for(tables, request)
    bidding.tell_of_request(tables, request)


def _device_for(tables: Tables, request: RequestEntry) -> str | None:
    """Return a free device for a single request, if a quota of its account leaves room for it."""
    if request.terms.also or request.terms.booking:
        return None
    name = booked.take_free(tables, request, preferred_selector(request.terms))
    if tables.accounts.account(request.account).is_blocked(request.terms.lease_class):
        return None
    held = name or booked.held_for(tables, request) or sets.held_for(tables, request)
    return held or health.exempt_name(tables, request)


def _too_many(tables: Tables, client: ClientEntry, request: RequestEntry) -> str:
    """Return an error text if this client, the request's account or everybody has too many waiting requests; empty if
    not.
    """
    limits, counts = tables.limits, tables.waiting_by_account.get(request.account, _NO_REQUESTS)
    owner = client.holder if request.account == client.account else f"the account {account_text(request.account)}"
    of_client = len(client.requests) + len(client.parked)
    of_account, of_all = counts.total(), len(tables.waiting) + len(tables.sets)
    if parked := tables.parked_by_account:
        of_account, of_all = of_account + parked[request.account], of_all + parked.total()
    if of_client >= limits.max_waiting_per_client:
        return f"{of_client} requests of this client wait already; wait for some of them, or cancel some"
    if of_account >= limits.max_waiting_per_account:
        return f"{of_account} requests of {owner} wait already; wait for some of them, or cancel some"
    if of_all >= limits.max_waiting:
        return f"{of_all} requests wait already; try again later"
    if request.terms.also and (message := _too_many_sets(tables, request, owner)):
        return message
    generals = {general for general in map(tables.matching.general, request.terms.selectors) if general}
    if more := generals - counts.keys():
        own = len(counts.keys() - {""})
        if own + len(more) > limits.max_selectors_per_account:
            return f"{owner} waits with {own} different selectors already; use one of them, or cancel some"
        unknown = sum(1 for general in more if not tables.waiting.waits_for(general))
        if unknown and tables.matching.kept_count + unknown > limits.max_selectors:
            return f"requests with {limits.max_selectors} different selectors wait already; try again later"
    return ""


def _too_many_sets(tables: Tables, request: RequestEntry, owner: str) -> str:
    """Return an error text if this account or everybody has too many waiting sets; empty if not."""
    limits, waiting = tables.limits, tables.sets.entries.values()
    of_account = sum(1 for entry in waiting if entry.request.account == request.account)
    if of_account >= limits.max_sets_per_account:
        return f"{of_account} sets of {owner} wait already; wait for some of them, or cancel some"
    if len(waiting) >= limits.max_sets:
        return f"{len(waiting)} sets wait already; try again later"
    return ""


def _end_wait(tables: Tables, key: tuple[str, str]) -> None:
    client = tables.clients.get(key[0])
    request = client.requests.get(key[1]) if client else None
    if request is None or request.deadline_sec is None or request.deadline_sec > tables.now_sec:
        return
    tables.remove_request(request)
    _refuse_late(tables, request)


def _refuse_late(tables: Tables, request: RequestEntry) -> None:
    waited_sec = tables.now_sec - request.asked_at_sec
    message = f"no device matching {request.terms.selector!r} became free within {waited_sec:.3g} s"
    if request.terms.also:
        message = f"the devices matching {request.terms.wanted!r} were not all free within {waited_sec:.3g} s"
    tables.refuse(request.client_id, request.request_id, WaitTimeout, message)
