"""Admission of requests, and the errors of refused ones. Pure."""

from __future__ import annotations

import functools
import heapq
import math
from collections.abc import Mapping
from dataclasses import replace

from fleet.base.text import sanitize
from fleet.domain.accounts import checked_account
from fleet.domain.leases import LeaseTerms, check_set
from fleet.domain.narrowing import narrowing_text
from fleet.domain.selectors import parse_selector
from fleet.errors import FleetError, InvalidRequest, NoMatchingDevice, NotAllowed
from fleet.tracker.core.events import Acquire
from fleet.tracker.core.matching import Matching
from fleet.tracker.core.records import (
    BITSTREAM_LABEL,
    SET_SEPARATOR,
    ClientEntry,
    DeviceEntry,
    RequestEntry,
    TrackerLimits,
)
from fleet.tracker.core.share_policy import NO_QUOTA, Quota

MAX_SHOWN_CHARS = 500
"""Maximum length of clients' names and reasons, which are stored and shown to everyone."""
_MAX_SELECTOR_CHARS = 1_000
_MAX_CLAUSES = 32
"""Clauses of a selector: in a fleet of 10,000 different devices, each takes 4 ms of the tracker's only thread."""
_MAX_REQUEST_ID_CHARS = 128
_TOO_MUCH = (
    f"the request says too much; at most {_MAX_REQUEST_ID_CHARS} characters of request_id and {_MAX_SELECTOR_CHARS} of "
    "selector are taken"
)
_LISTED_DEVICES = 10
"""Number of existing devices that a refusal lists."""


def make_request(
    event: Acquire, client: ClientEntry, now: float, arrival: int, limits: TrackerLimits, quota: Quota
) -> RequestEntry:
    """Return the request of an event, within the tracker's limits and its account's. `arrival` counts all requests.

    Raises:
        InvalidRequest: no id, a malformed selector, a priority or bid out of bounds, or texts that are too long.
        NotAllowed: it names an account that the client may not ask for.
    """
    if not event.request_id:
        raise InvalidRequest("the request has no request_id; choose one that is unique in the stream")
    if len(event.request_id) > _MAX_REQUEST_ID_CHARS:
        raise InvalidRequest(_TOO_MUCH)
    if SET_SEPARATOR in event.request_id:
        raise InvalidRequest("the request_id has a control character in it; choose another")
    check_account(event.terms.account, client)
    terms = admit_terms(event.terms, limits, quota)
    wait_sec = terms.wait_timeout_sec
    return RequestEntry(
        client_id=event.client_id,
        request_id=event.request_id,
        holder=client.holder,
        terms=terms,
        deadline_sec=now + wait_sec if wait_sec is not None and wait_sec > 0 else None,
        asked_at_sec=now,
        arrival=arrival,
        account=terms.account or client.account,
        note=client.note,
    )


def check_account(account: str, client: ClientEntry) -> None:
    """Refuse a request for an account other than the client's own, unless the client may ask for others.

    Raises:
        NotAllowed: it may not.
    """
    if account and account != client.account and not client.may_ask_for_others:
        raise NotAllowed(
            f"{client.holder} may not ask for the account {sanitize(account, MAX_SHOWN_CHARS)!r}; leave the account "
            "out, or join with a token for it: fleet tracker token create --for-others"
        )


@functools.lru_cache(maxsize=1024)  # clients ask many times with equal terms
def admit_terms(terms: LeaseTerms, limits: TrackerLimits, quota: Quota = NO_QUOTA) -> LeaseTerms:
    """Return a client's terms, canonical and within the tracker's limits.

    Raises:
        InvalidRequest: see `make_request`.
    """
    check_set(terms)
    if len(terms.selectors) > quota.leases:
        raise InvalidRequest(
            f"a set of {len(terms.selectors)} devices exceeds the {quota.leases:g} leases at once of the class "
            f"{terms.lease_class}; choose fewer, or another class"
        )
    selector = checked_selector(terms.selector)
    _check_priority(terms.priority, limits)
    ttl_sec = terms.ttl_sec if terms.ttl_sec > 0 else limits.default_ttl_sec
    longest_sec = min(limits.max_duration_sec, quota.longest_sec)
    max_sec = longest_sec if terms.max_sec is None or terms.max_sec <= 0 else min(terms.max_sec, longest_sec)
    return replace(
        terms,
        selector=selector,
        ttl_sec=min(max(ttl_sec, limits.min_ttl_sec), limits.max_ttl_sec),
        max_sec=None if max_sec >= limits.max_duration_sec else max_sec,
        purpose=sanitize(terms.purpose, MAX_SHOWN_CHARS),
        prefer=checked_preference(terms.prefer),
        bid=checked_bid(terms.bid),
        account=checked_account(terms.account),
        also=tuple(map(checked_selector, terms.also)),
    )


def _check_priority(priority: int, limits: TrackerLimits) -> None:
    if abs(priority) > limits.max_priority:
        allowed = f"-{limits.max_priority} to {limits.max_priority}"
        raise InvalidRequest(f"priority {priority} is out of bounds; choose one from {allowed}")


def checked_selector(text: str) -> str:
    """Return a client's selector, canonical.

    Raises:
        InvalidRequest: it is malformed, too long, or has control characters in it.
    """
    if sanitize(text) != text:
        raise InvalidRequest("the selector has control characters in it; leave them out")
    return _checked(text)


def checked_bid(bid: float) -> float:
    """Return a finite, comparable bid.

    Raises:
        InvalidRequest: it is negative, infinite or not a number.
    """
    if not 0 <= bid < math.inf:
        raise InvalidRequest(f"the bid of a request is a number of at least zero, not {bid}")
    return bid


def checked_preference(prefer: str) -> str:
    """Return the selector of preferred devices, canonical; empty without a preference.

    Raises:
        InvalidRequest: it is malformed or too long.
    """
    return _checked(prefer) if prefer else ""


def _checked(text: str) -> str:
    """Return a selector, canonical: that text may be longer than its user's."""
    if len(text) > _MAX_SELECTOR_CHARS:
        raise InvalidRequest(_TOO_MUCH)
    selector = parse_selector(text)
    if len(selector.conditions) > _MAX_CLAUSES:
        raise InvalidRequest(f"the selector has {len(selector.conditions)} clauses; at most {_MAX_CLAUSES} are taken")
    canonical = str(selector)
    if len(canonical) > _MAX_SELECTOR_CHARS:
        raise InvalidRequest(_TOO_MUCH)
    return canonical


def preferred_selector(terms: LeaseTerms) -> str:
    """Return the selector of suitable and preferred devices; empty without a preference."""
    return str(parse_selector(terms.selector) & parse_selector(terms.prefer)) if terms.prefer else ""


def no_match_error(selector: str, devices: Mapping[str, DeviceEntry], matching: Matching) -> FleetError:
    """Return the error for a selector that no device can satisfy, with the devices and the remedy.

    It is a NoMatchingDevice; an InvalidRequest if the selector compares a label with a limit of another unit.
    """
    parsed = parse_selector(selector)
    if not devices:
        return NoMatchingDevice(
            f"no device matches {parsed.text!r}: none has joined the fleet yet; start one with 'fleet agent serve'"
        )
    try:
        left = narrowing_text(matching.narrow(selector), len(devices))
    except InvalidRequest as error:
        return error
    names = heapq.nsmallest(_LISTED_DEVICES, devices)  # sorting 20,000 takes longer than a grant may
    listed = ", ".join(f"{name} ({devices[name].kind})" for name in names)
    more = f" and {len(devices) - len(names)} more" if len(devices) > len(names) else ""
    advice = "choose one or start an agent that has it"
    if parsed.kind and f"devices/{parsed.kind}" in devices:
        advice = f"to ask for a device by its name, write name={parsed.kind}"
    if any(condition.key == BITSTREAM_LABEL for condition in parsed.conditions):
        advice = "none holds that bitstream now: ask for the board, prefer the bitstream (--prefer), and program it"
    return NoMatchingDevice(f"no device matches {parsed.text!r} ({left}); there are {listed}{more}; {advice}")
