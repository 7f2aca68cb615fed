"""Batch leases that give way to waiting requests. Pure.

A request of a higher class asks one batch lease on a suitable device for its device. So does a batch request of an
account with less use, once the lease has lasted its slice. A lease granted after starvation keeps its slice. The holder
is notified, and returns the device after the trial under way. At the end of the grace time the lease ends in any case.

So does a mark that closes a device, and a booking. At the moment that the mark states, or at the start of the booking,
a lease of any class ends.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from functools import partial
from itertools import islice

from fleet.domain.health import GOOD
from fleet.domain.leases import LeaseClass, LeaseEnd
from fleet.tracker.core import booked, leases
from fleet.tracker.core import events as ev
from fleet.tracker.core.health import is_served
from fleet.tracker.core.records import DeviceEntry, LeaseEntry, RequestEntry, YieldEntry
from fleet.tracker.core.tables import Tables

_MAX_EXAMINED = 256
"""Number of batch leases examined for one request."""
_PORTION = 32
"""Number of batch leases compared with the queue at once."""
_SWEEP_SEC = 60.0
"""Interval of comparing batch leases with the queue: use changes, and leases outlast their slices."""


def want_for(tables: Tables, request: RequestEntry) -> None:
    """Ask the batch lease with the least costly end to give way to a waiting request of a higher class."""
    if not tables.batch or tables.journal_trouble or request.terms.lease_class is LeaseClass.BATCH:
        return  # the sweep compares batch requests with leases beyond their slice
    if request.key in tables.yields_by_request or request not in tables.waiting:
        return
    if tables.accounts.account(request.account).is_blocked(request.terms.lease_class):
        return
    cheapest = min(_suitable(tables, request), key=partial(cost, tables), default=None)
    if cheapest is not None:
        want(tables, cheapest, request)


def sweep(tables: Tables) -> None:
    """Compare batch leases with the requests that wait for their devices, at intervals, in portions.

    Called with every event: renewals of leases come often enough to keep the interval.
    """
    if not tables.unswept:
        is_early = tables.now_sec < tables.swept_at_sec + _SWEEP_SEC
        if is_early or tables.journal_trouble or not (tables.batch and len(tables.waiting)):
            return
        tables.unswept, tables.swept_at_sec = list(tables.batch), tables.now_sec
    waiting, accounts, matching, now_sec = tables.waiting, tables.accounts, tables.matching, tables.now_sec
    is_any_due, least_level, slice_sec = waiting.waits_above_batch, waiting.least_level, accounts.policy.slice_sec
    following: dict[tuple[Hashable, bool], RequestEntry | None] = {}  # devices of a kind serve the same request next
    portion = tables.unswept[: -_PORTION - 1 : -1]
    del tables.unswept[-_PORTION:]
    for lease in map(tables.batch.get, portion):
        if lease is None or lease.name in tables.yields or is_safe(tables, lease):
            continue
        if not is_any_due:
            is_in_slice = now_sec - lease.granted_at_sec < slice_sec
            if is_in_slice or accounts.by_name[lease.account].level <= least_level:
                continue
        name = lease.device_name
        mark = tables.devices[name].mark
        if name in tables.sets.held or not (mark is GOOD or mark.state.is_open):
            continue
        kind = matching.kind_of(name), name in matching.suspects
        if kind in following:
            request = following[kind]
        else:
            request = waiting.next_among(matching.groups_of(name), now_sec, is_suspect=kind[1])
            following[kind] = request
        if request is None or request.key in tables.yields_by_request or not is_due(tables, lease, request):
            continue
        if booked.fits(tables, name, request.terms):
            want(tables, lease, request)


def tell_again(tables: Tables, client_id: str) -> None:
    """Repeat to a client that connected again which of its leases shall give way."""
    for lease in tables.clients[client_id].leases.values():
        if wanted := tables.yields.get(lease.name):
            tables.effects.append(ev.YieldWanted(client_id, wanted))


def clear(tables: Tables, device: DeviceEntry, extra_sec: float = 0.0) -> None:
    """Ask the lease of a device that its mark closes to give way: a batch lease now, another one if the mark has an
    end.

    Args:
        device: it has the mark.
        extra_sec: longer grace, for holders that are not connected yet.
    """
    lease, mark = device.lease, device.mark
    stop_clearing(tables, device)
    if lease is None or lease.terms.even_if is mark.state:
        return
    ends_sec = [] if mark.until_sec is None else [mark.until_sec]
    if lease.terms.lease_class is LeaseClass.BATCH:
        ends_sec.append(tables.now_sec + tables.accounts.policy.yield_grace_sec + extra_sec)
    if not ends_sec:
        return
    tables.forget_yield(lease.name)
    wanted = YieldEntry(
        lease_name=lease.name,
        request_key=None,
        lease_class=lease.terms.lease_class,
        until_sec=max(min(ends_sec), tables.now_sec),
        reason=f"its device is {mark.state}: {mark.reason}",
    )
    demand(tables, lease, wanted)


def stop_clearing(tables: Tables, device: DeviceEntry) -> None:
    """Withdraw the demand of a device's former mark. Idempotent."""
    lease = device.lease
    wanted = tables.yields.get(lease.name) if lease is not None else None
    if wanted is not None and wanted.request_key is None and not wanted.booking:
        tables.forget_yield(wanted.lease_name)


def _suitable(tables: Tables, request: RequestEntry) -> Iterator[LeaseEntry]:
    """Yield batch leases that may give way to a request; not all if there are very many."""
    names, devices, terms = tables.matching.group(request.terms.selector).devices, tables.devices, request.terms
    leased: Iterable[LeaseEntry | None] = (devices[name].lease for name in names)
    if len(names) > _MAX_EXAMINED:
        leased = (lease for lease in islice(tables.batch.values(), _MAX_EXAMINED) if lease.device_name in names)
    batch, yields, held, bookings = tables.batch, tables.yields, tables.sets.held, tables.bookings.by_device
    for lease in leased:
        if lease is None or lease.name not in batch or lease.name in yields or (name := lease.device_name) in held:
            continue
        if is_safe(tables, lease):
            continue
        mark = devices[name].mark
        if mark is not GOOD and not is_served(mark.state, terms):
            continue
        if name not in bookings or booked.fits(tables, name, terms):
            yield lease


def is_due(tables: Tables, lease: LeaseEntry, request: RequestEntry) -> bool:
    """Return True if a batch lease has to give way to a request, and was not asked to yet."""
    if lease.name in tables.yields or is_safe(tables, lease):
        return False
    if request.terms.lease_class is not LeaseClass.BATCH:
        return True
    accounts = tables.accounts
    has_less = accounts.account(request.account).level < accounts.account(lease.account).level
    return has_less and not _is_in_slice(tables, lease)


def is_safe(tables: Tables, lease: LeaseEntry) -> bool:
    """Return True if a batch lease gives way to no request yet, since its account starved before the grant."""
    return lease.has_starved and _is_in_slice(tables, lease)


def _is_in_slice(tables: Tables, lease: LeaseEntry) -> bool:
    return tables.now_sec - lease.granted_at_sec < tables.accounts.policy.slice_sec


def cost(tables: Tables, lease: LeaseEntry) -> tuple[bool, float, float]:
    """Return the cost of ending a lease: first those beyond their slice, then by the account's use, then by age."""
    accounts, granted_at_sec = tables.accounts, lease.granted_at_sec
    is_in_slice = tables.now_sec - granted_at_sec < accounts.policy.slice_sec
    return is_in_slice, -accounts.by_name[lease.account].level, granted_at_sec


def want(tables: Tables, lease: LeaseEntry, request: RequestEntry, member_id: str = "") -> None:
    """Ask a lease to give way to a request, or to a member of a set."""
    key = (request.client_id, member_id or request.request_id)
    until_sec = tables.now_sec + tables.accounts.policy.yield_grace_sec
    wanted = YieldEntry(
        lease_name=lease.name, request_key=key, lease_class=request.terms.lease_class, until_sec=until_sec
    )
    tables.yields_by_request[key] = lease.name
    demand(tables, lease, wanted)


def demand(tables: Tables, lease: LeaseEntry, wanted: YieldEntry) -> None:
    """Ask a lease to end, and end it at the moment that the demand states."""
    tables.yields[lease.name] = wanted
    tables.timers.set(("yield", lease.name), wanted.until_sec, partial(_end, tables, lease.name))
    tables.effects.append(ev.YieldWanted(lease.client_id, wanted))


def _end(tables: Tables, lease_name: str) -> None:
    """End a lease that was asked to give way and did not."""
    lease, wanted = tables.leases.get(lease_name), tables.yields.get(lease_name)
    if lease is not None and wanted is not None:
        message = wanted.reason or f"its device was needed for a request of the class {wanted.lease_class}"
        is_batch = lease.terms.lease_class is LeaseClass.BATCH
        leases.end_and_serve(tables, lease, LeaseEnd.YIELDED if is_batch else LeaseEnd.REVOKED, message)
