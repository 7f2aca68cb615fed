"""Health marks of devices: the requests that a marked device serves. Pure.

A device that is draining, quarantined, in maintenance or retired serves nobody, except an admin who names it and its
mark. A suspect device serves no batch request that does not name it.
"""

from __future__ import annotations

from collections import Counter

from fleet.domain.health import HealthState
from fleet.domain.leases import LeaseClass, LeaseTerms
from fleet.domain.selectors import parse_selector
from fleet.errors import InvalidRequest, NotAllowed
from fleet.tracker.core.records import ClientEntry, DeviceEntry, RequestEntry
from fleet.tracker.core.tables import Tables


def check_even_if(terms: LeaseTerms, client: ClientEntry) -> None:
    """Refuse a request for a marked device, unless it names the device and comes from an admin.

    Raises:
        NotAllowed: the client is no admin.
        InvalidRequest: the selector names no device.
    """
    if terms.even_if is None:
        return
    if not client.is_admin:
        raise NotAllowed(f"leasing a device that is {terms.even_if} takes the role admin")
    if terms.also or not _is_named(terms):
        raise InvalidRequest(f"a device that is {terms.even_if} is leased by its name; write the selector name=...")


def exempt_name(tables: Tables, request: RequestEntry) -> str | None:
    """Return the marked device that a request names and may have now; None: there is none."""
    if request.terms.even_if is None:
        return None
    names = tables.matching.names(request.terms.selector, 1)
    device = tables.devices[names[0]] if names else None
    return device.name if device is not None and _is_exempt(device, request.terms) else None


def next_exempt(tables: Tables, device: DeviceEntry) -> RequestEntry | None:
    """Return the first waiting request that may have a marked device; None: there is none."""
    for request in tables.waiting.exempt.values():
        if device.name in tables.matching.names(request.terms.selector, 1) and _is_exempt(device, request.terms):
            return request
    return None


def closed_states(tables: Tables, request: RequestEntry) -> Counter[HealthState]:
    """Return the number of devices that suit a request, by their state, if all are marked so that it waits.

    Empty if one of them is not.
    """
    devices = tables.matching.group(request.terms.selector).devices
    if len(devices) > len(tables.marks):
        return Counter()
    states = Counter[HealthState]()
    for name in devices:
        found = tables.devices[name].mark.state
        if is_served(found, request.terms):
            return Counter()
        states[found] += 1
    return states


def is_served(state: HealthState, terms: LeaseTerms, *, is_named: bool | None = None) -> bool:
    """Return True if a device in this state serves a request with these terms.

    Args:
        is_named: whether the member of a set that the device is for names it; None: a single request.
    """
    if state is HealthState.SUSPECT:
        return terms.lease_class is not LeaseClass.BATCH or (_is_named(terms) if is_named is None else is_named)
    return state.is_open or terms.even_if is state


def _is_exempt(device: DeviceEntry, terms: LeaseTerms) -> bool:
    return device.is_ready and terms.even_if is device.mark.state


def _is_named(terms: LeaseTerms) -> bool:
    return parse_selector(terms.selector).exact_value("name") is not None
