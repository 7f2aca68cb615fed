"""Batch leases that give way to waiting requests. Pure.

A request of a higher class asks one batch lease on a suitable device for its device. So does a batch request of an
account with less use, once the lease has lasted its slice. The holder is told, and gives the device back at its next
batch border. One that has not at the end of the grace loses the lease.

So does a mark that closes a device, and a booking. At the moment that the mark states, or at the start of the booking,
a lease of any class ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from itertools import islice

from fleet.domain.leases import LeaseClass, LeaseEnd
from fleet.tracker.core import booked, leases
from fleet.tracker.core import events as ev
from fleet.tracker.core.groups import Group
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
    due = (lease for lease in _suitable(tables, request) if lease.name not in tables.yields)
    cheapest = min(due, key=partial(cost, tables), default=None)
    if cheapest is not None:
        want(tables, cheapest, request)


def sweep(tables: Tables) -> None:
    """Compare batch leases with the requests that wait for their devices, every now and then, in portions.

    Called with every event: holders renew their leases, so there is one in time.
    """
    if not tables.unswept:
        is_early = tables.now_sec < tables.swept_at_sec + _SWEEP_SEC
        if is_early or tables.journal_trouble or not (tables.batch and len(tables.waiting)):
            return
        tables.unswept, tables.swept_at_sec = list(tables.batch), tables.now_sec
    waiting, accounts, now_sec = tables.waiting, tables.accounts, tables.now_sec
    is_any_due, least_level, slice_sec = waiting.waits_above_batch, waiting.least_level, accounts.policy.slice_sec
    # devices that are alike serve the same request
    following: dict[tuple[tuple[Group, ...], bool], RequestEntry | None] = {}
    for _ in range(min(_PORTION, len(tables.unswept))):
        lease = tables.batch.get(tables.unswept.pop())
        if lease is None or lease.name in tables.yields or lease.device_name in tables.sets.held:
            continue
        if not is_any_due:
            is_in_slice = now_sec - lease.granted_at_sec < slice_sec
            if is_in_slice or accounts.account(lease.account).level <= least_level:
                continue
        if not tables.devices[lease.device_name].mark.state.is_open:
            continue
        is_suspect = lease.device_name in tables.matching.suspects
        groups = tuple(tables.matching.groups_of(lease.device_name))
        if (groups, is_suspect) not in following:
            following[groups, is_suspect] = tables.waiting.next_among(groups, tables.now_sec, is_suspect=is_suspect)
        request = following[groups, is_suspect]
        if request is None or not booked.fits(tables, lease.device_name, request.terms):
            continue
        if request.key not in tables.yields_by_request and is_due(tables, lease, request):
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
    """Yield batch leases on devices that suit a request; not all if there are very many."""
    devices, held_for_sets = tables.matching.group(request.terms.selector).devices, tables.sets.held
    if len(devices) > _MAX_EXAMINED:
        leased = [tables.devices[lease.device_name] for lease in _oldest(tables) if lease.device_name in devices]
    else:
        leased = [tables.devices[name] for name in devices if name not in held_for_sets]
    for device in leased:
        lease = device.lease
        if lease is None or lease.name not in tables.batch or not is_served(device.mark.state, request.terms):
            continue
        if booked.fits(tables, device.name, request.terms):
            yield lease


def _oldest(tables: Tables) -> Iterable[LeaseEntry]:
    """Return the oldest batch leases on devices that no set holds."""
    oldest = islice(tables.batch.values(), _MAX_EXAMINED)
    return (lease for lease in oldest if lease.device_name not in tables.sets.held)


def is_due(tables: Tables, lease: LeaseEntry, request: RequestEntry) -> bool:
    """Return True if a batch lease has to give way to a request, and was not asked to yet."""
    if lease.name in tables.yields:
        return False
    if request.terms.lease_class is not LeaseClass.BATCH:
        return True
    accounts = tables.accounts
    has_less = accounts.account(request.account).level < accounts.account(lease.account).level
    return has_less and not _is_in_slice(tables, lease)


def _is_in_slice(tables: Tables, lease: LeaseEntry) -> bool:
    return tables.now_sec - lease.granted_at_sec < tables.accounts.policy.slice_sec


def cost(tables: Tables, lease: LeaseEntry) -> tuple[bool, float, float]:
    """Return the cost of ending a lease: first those beyond their slice, then by the account's use, then by age."""
    return _is_in_slice(tables, lease), -tables.accounts.account(lease.account).level, lease.granted_at_sec


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
