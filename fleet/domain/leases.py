"""Leases, and the requests for them, as values."""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypedDict, Unpack

from fleet.base.text import sanitize
from fleet.domain.accounts import account_text, checked_account
from fleet.domain.bookings import booking_name
from fleet.domain.devices import holder_text
from fleet.domain.health import HealthState
from fleet.domain.lease_class import LeaseClass as LeaseClass
from fleet.domain.selectors import Selector, parse_selector, selector_text
from fleet.domain.waits import Forecast, Wait
from fleet.errors import InvalidRequest

LONGEST_SEC = 10 * 365 * 86400
"""Longest lease, wait or time limit that anybody may ask for."""

MOST_SET_DEVICES = 16
"""Largest set of devices that are granted together."""

MOST_PRIORITY = 2**31 - 1
"""Limit of the wire; a tracker allows less."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """Exclusive use of one device by one client until `expires_at_sec`. Times are the tracker's [s since 1970]."""

    name: str
    """ "leases/<id>"."""

    device_name: str
    epoch: int
    """Fencing number: larger than that of every earlier lease of the device."""

    holder: str = ""
    granted_at_sec: float = 0.0
    expires_at_sec: float = 0.0
    """End unless renewed."""

    ends_at_sec: float = 0.0
    """No renewal reaches past this."""

    purpose: str = ""
    holder_note: str = ""
    """Name chosen by the client; empty if it equals the certificate's name."""

    account: str = ""
    """Account that it is charged to; empty if it is the holder's own key."""

    lease_class: LeaseClass | None = None
    """None: an older tracker did not tell."""

    def __repr__(self) -> str:
        holder = f", held by {sanitize(self.held_by)}" if self.holder else ""
        return f"<Lease {self.name} on {self.device_name}, epoch {self.epoch}{holder}>"

    @property
    def held_by(self) -> str:
        """The holder, with its note and account."""
        return _charged_text(holder_text(self.holder, self.holder_note), self.account)


class LeaseEnd(enum.StrEnum):
    """End of a lease. The names are those of fleet.v1.LeaseEnd without their prefix."""

    RELEASED = "RELEASED"
    EXPIRED = "EXPIRED"
    REVOKED = "REVOKED"
    CLIENT_LOST = "CLIENT_LOST"
    YIELDED = "YIELDED"
    UNKNOWN = "UNKNOWN"


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseTerms:
    """The terms of a lease, as a client requests them: the keywords of `Fleet.acquire`.

    One value from the client through the wire, the tracker and its journal to viewers of the queue.
    """

    selector: str
    """Selector of suitable devices, see `fleet.domain.selectors`; canonical once it was checked."""

    lease_class: LeaseClass = LeaseClass.NORMAL
    """A higher class goes first."""

    priority: int = 0
    """Among the requests of one account, a larger one goes first."""

    ttl_sec: float = 30.0
    """The lease ends this long after its holder was last heard of."""

    max_sec: float | None = None
    """The lease ends after this, renewed or not; None: the tracker's maximum."""

    wait_timeout_sec: float | None = None
    """Give up after this wait; None: wait for ever."""

    purpose: str = ""
    """Why, for people."""

    prefer: str = ""
    """Among free devices that will do, take one that also matches this selector, if there is one:
    "bitstream=sha256:...". It never makes anybody wait."""

    bid: float = 0.0
    """Worth of a second of the device, >= 0. It orders the requests of one account with the same priority."""

    account: str = ""
    """Account that the request counts for, such as the submitter of a job; "": the client's own. Others are for keys
    that may ask for others."""

    even_if: HealthState | None = None
    """Take the device that the selector names although it has this mark. For admins; None: no."""

    booking: str = ""
    """Take a device of this booking, "bookings/<id>", which has the selector; "": none."""

    also: tuple[str, ...] = ()
    """Selectors of further devices, of a set: all devices are granted together, each with its own lease."""

    @property
    def selectors(self) -> tuple[str, ...]:
        """The selector of each device: of one, or of a set."""
        return (self.selector, *self.also)

    @property
    def wanted(self) -> str:
        """The selectors as users write them."""
        return " and ".join(map(selector_text, self.selectors))

    def within(self, selector: Selector) -> LeaseTerms:
        """Return the same terms with a selector that also requires another one."""
        return replace(self, selector=str(parse_selector(self.selector) & selector))


class LeaseKeywords(TypedDict, total=False):
    """The fields of `LeaseTerms` beside the selector, for the types of `acquire`."""

    lease_class: LeaseClass
    priority: int
    ttl_sec: float
    max_sec: float | None
    wait_timeout_sec: float | None
    purpose: str
    prefer: str
    bid: float
    account: str
    even_if: HealthState | None
    booking: str


def make_terms(selector: str | LeaseTerms, **keywords: Unpack[LeaseKeywords]) -> LeaseTerms:
    """Return checked terms from the arguments of a caller. Keywords beside terms replace their values.

    Raises:
        InvalidRequest: a selector or account is malformed, the class is unknown, or a length of time, the priority or
            the bid is out of bounds.
    """
    terms = selector if isinstance(selector, LeaseTerms) else LeaseTerms(selector=selector)
    terms = replace(terms, **keywords)
    if terms.lease_class not in tuple(LeaseClass):
        raise InvalidRequest(
            f"class {terms.lease_class} of a request is unknown; choose one of {', '.join(LeaseClass)}"
        )
    if not 0 <= terms.bid < math.inf:
        raise InvalidRequest(f"the bid of a request is a number of at least zero, not {terms.bid}")
    for name, sec in (("ttl_sec", terms.ttl_sec), ("max_sec", terms.max_sec)):
        if sec is not None and not 0 < sec <= LONGEST_SEC:
            raise InvalidRequest(f"{name}={sec:g}: a lease lasts longer than 0 and at most {LONGEST_SEC} s")
    if terms.wait_timeout_sec is not None and not 0 <= terms.wait_timeout_sec <= LONGEST_SEC:
        raise InvalidRequest(f"wait_timeout_sec={terms.wait_timeout_sec:g}: a wait takes 0 to {LONGEST_SEC} s")
    if abs(terms.priority) > MOST_PRIORITY:
        raise InvalidRequest(f"priority={terms.priority}: it lies between {-MOST_PRIORITY} and {MOST_PRIORITY}")
    checked_account(terms.account)
    terms = replace(terms, booking=booking_name(terms.booking))
    check_set(terms)
    prefer = str(parse_selector(terms.prefer)) if terms.prefer else ""
    also = tuple(str(parse_selector(each)) for each in terms.also)
    return replace(terms, selector=str(parse_selector(terms.selector)), also=also, prefer=prefer)


def set_terms(selectors: Sequence[str], **keywords: Unpack[LeaseKeywords]) -> LeaseTerms:
    """Return checked terms of a set.

    Raises:
        InvalidRequest: see `make_terms`; or there are no selectors, or more than 16.
    """
    if not selectors or isinstance(selectors, str):
        raise InvalidRequest(f"a set of devices takes a list of 1 to {MOST_SET_DEVICES} selectors, not {selectors!r}")
    first, *others = selectors
    return make_terms(LeaseTerms(selector=first, also=tuple(others)), **keywords)


def check_set(terms: LeaseTerms) -> None:
    """Refuse a set that is too large, or one with terms for a single device.

    Raises:
        InvalidRequest: it is.
    """
    if len(terms.selectors) > MOST_SET_DEVICES:
        raise InvalidRequest(
            f"a set of {len(terms.selectors)} devices is too large; at most {MOST_SET_DEVICES} go together"
        )
    if terms.also and terms.prefer:
        raise InvalidRequest("a set of devices takes no preference; leave it out, or put it into the selectors")
    if terms.also and terms.booking:
        raise InvalidRequest("a booking gives its devices one by one; ask for each by itself")
    if terms.also and terms.even_if is not None:
        raise InvalidRequest(f"a set has no devices that are {terms.even_if}; lease such a device by itself")


@dataclass(frozen=True, slots=True, kw_only=True)
class YieldWanted:
    """A lease has to end: it gives way to a waiting request, or its device is drained."""

    lease_name: str
    until_sec: float = 0.0
    """The lease ends then [s since 1970, the tracker's clock]."""

    lease_class: LeaseClass = LeaseClass.NORMAL
    """Class of the request."""

    reason: str = ""
    """Why, in words; empty for a request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingRequest:
    """A request that waits for a device, as others see it."""

    request_id: str
    holder: str = ""
    terms: LeaseTerms = LeaseTerms(selector="")
    asked_at_sec: float = 0.0
    position: int = 0
    """Number of requests that are served before this one."""

    reason: str = ""
    """Why it waits, in a sentence."""

    wait: Wait | None = None
    """Why it waits, as data; None from an older tracker."""

    forecast: Forecast | None = None
    """Moments at which it is likely to be served; None: not known."""

    holder_note: str = ""
    """Name chosen by the client; empty if it equals the certificate's name."""

    account: str = ""
    """As `Lease.account`."""

    @property
    def asked_by(self) -> str:
        """The holder, with its note and account."""
        return _charged_text(holder_text(self.holder, self.holder_note), self.account)

    def __repr__(self) -> str:
        said = sanitize(f"for {self.terms.wanted} by {self.asked_by}, {self.position} before it: {self.reason}")
        return f"<PendingRequest {said}>"


def _charged_text(holder: str, account: str) -> str:
    return f"{holder} for {account_text(account)}" if account else holder
