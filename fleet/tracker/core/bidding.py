"""Bids of waiting batch requests, told to the leases of their own account. Pure.

Only the holder of a lease knows the worth of its next batch, and where the border before it is. So it is told the bid
of a request that waits for its device, and decides. Leases and requests of other accounts never meet here.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import nsmallest
from itertools import islice

from fleet.domain.leases import LeaseClass
from fleet.tracker.core import events as ev
from fleet.tracker.core.records import LeaseEntry, RequestEntry
from fleet.tracker.core.tables import Tables

_MAX_EXAMINED = 256
"""Number of devices examined for one request."""

_MOST_TOLD = 4
"""Number of leases told of one request. Bids fall from batch to batch, so the board of least value may not be that with
the lowest bid at its grant."""


def tell_of_request(tables: Tables, request: RequestEntry) -> None:
    """Tell a new request's bid to the leases with the lowest bids on suitable devices."""
    if request.terms.bid and request.terms.lease_class is LeaseClass.BATCH and request in tables.waiting:
        lowest = nsmallest(_MOST_TOLD, _own(tables, request), key=lambda lease: (lease.terms.bid, lease.granted_at_sec))
        tables.effects.extend(ev.Outbid(lease.client_id, lease.name, request.terms.bid) for lease in lowest)


def tell_lease(tables: Tables, lease: LeaseEntry) -> None:
    """Tell a new lease the highest bid that waits for its device."""
    if lease.terms.bid and lease.name in tables.batch:
        groups = tables.matching.groups_of(lease.device_name)
        bid = tables.waiting.highest_bid(lease.account, groups, lease.terms.priority)
        if bid:
            tables.effects.append(ev.Outbid(lease.client_id, lease.name, bid))


def _own(tables: Tables, request: RequestEntry) -> Iterator[LeaseEntry]:
    """Yield batch leases of the request's account, with no higher priority, on suitable devices."""
    for name in islice(tables.matching.group(request.terms.selector).devices, _MAX_EXAMINED):
        lease = tables.devices[name].lease
        if lease is None or lease.name not in tables.batch or lease.name in tables.yields:
            continue
        if lease.account == request.account and lease.terms.priority <= request.terms.priority:
            yield lease
