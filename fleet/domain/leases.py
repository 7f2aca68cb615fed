"""Leases, and requests that wait for one, as values."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass, replace
from typing import TypedDict, Unpack

from fleet.base.text import sanitize
from fleet.domain.devices import holder_text
from fleet.domain.selectors import Selector, parse_selector
from fleet.errors import InvalidRequest

LONGEST_SEC = 10 * 365 * 86400
"""Longest lease, wait or time limit that anybody may ask for."""

MOST_PRIORITY = 2**31 - 1
"""What the wire carries; a tracker allows less."""


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
    """When it ends unless renewed."""

    ends_at_sec: float = 0.0
    """No renewal reaches past this."""

    purpose: str = ""
    holder_note: str = ""
    """Name chosen by the client; empty if it equals the certificate's name."""

    def __repr__(self) -> str:
        holder = f", held by {sanitize(self.held_by)}" if self.holder else ""
        return f"<Lease {self.name} on {self.device_name}, epoch {self.epoch}{holder}>"

    @property
    def held_by(self) -> str:
        """The holder, with its note."""
        return holder_text(self.holder, self.holder_note)


class LeaseEnd(enum.StrEnum):
    """How a lease ended. The names are those of fleet.v1.LeaseEnd without their prefix."""

    RELEASED = "RELEASED"
    EXPIRED = "EXPIRED"
    REVOKED = "REVOKED"
    CLIENT_LOST = "CLIENT_LOST"
    UNKNOWN = "UNKNOWN"


class _PlainTerms(TypedDict, total=False):
    priority: int
    """Larger goes first; 0 when left out."""

    ttl_sec: float
    """The lease ends this long after its holder was last heard of; 30 s when left out."""

    max_sec: float | None
    """The lease ends after this, renewed or not; None: the tracker's maximum."""

    wait_timeout_sec: float | None
    """Give up after this wait; None: wait for ever."""

    purpose: str
    """Why, for people."""


class LeaseTerms(_PlainTerms, total=False):
    """The keywords of `Fleet.acquire`: everything a request may say beside the selector."""

    prefer: str
    """Among free devices that will do, take one that also matches this selector, if there is one:
    "bitstream=sha256:...". It never makes anybody wait."""

    bid: float
    """Worth of a second of the device, >= 0, default 0. It orders the requests of one key only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseWish:
    """What a client asks the tracker for; the fields are those of `LeaseTerms`, read and checked."""

    selector: Selector
    priority: int = 0
    ttl_sec: float = 30.0
    max_sec: float | None = None
    wait_timeout_sec: float | None = None
    purpose: str = ""
    prefer: Selector | None = None
    bid: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.bid < math.inf:
            raise InvalidRequest(f"the bid of a request is a number of at least zero, not {self.bid}")
        for name, sec in (("ttl_sec", self.ttl_sec), ("max_sec", self.max_sec)):
            if sec is not None and not 0 < sec <= LONGEST_SEC:
                raise InvalidRequest(f"{name}={sec:g}: a lease lasts longer than 0 and at most {LONGEST_SEC} s")
        if self.wait_timeout_sec is not None and not 0 <= self.wait_timeout_sec <= LONGEST_SEC:
            raise InvalidRequest(f"wait_timeout_sec={self.wait_timeout_sec:g}: a wait takes 0 to {LONGEST_SEC} s")
        if abs(self.priority) > MOST_PRIORITY:
            raise InvalidRequest(f"priority={self.priority}: it lies between {-MOST_PRIORITY} and {MOST_PRIORITY}")


def make_wish(selector: str | LeaseWish, **terms: Unpack[LeaseTerms]) -> LeaseWish:
    """Make a wish from what a caller asks for. Terms given beside a wish replace its own.

    Raises:
        InvalidRequest: the selector is malformed, or a length of time or the priority is out of bounds.
    """
    wish = selector if isinstance(selector, LeaseWish) else LeaseWish(selector=parse_selector(selector))
    prefer, bid = terms.pop("prefer", None), terms.pop("bid", None)
    if prefer is not None:
        wish = replace(wish, prefer=parse_selector(prefer) if prefer else None)
    if bid is not None:
        wish = replace(wish, bid=bid)
    plain: _PlainTerms = terms
    return replace(wish, **plain)


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingRequest:
    """A wait for a device, as others see it."""

    request_id: str
    holder: str = ""
    selector: str = ""
    priority: int = 0
    asked_at_sec: float = 0.0
    position: int = 0
    """Number of requests that are served before this one."""

    reason: str = ""
    """Why it waits, in a sentence."""

    purpose: str = ""
    holder_note: str = ""
    """Name chosen by the client; empty if it equals the certificate's name."""

    @property
    def asked_by(self) -> str:
        """The holder, with its note."""
        return holder_text(self.holder, self.holder_note)

    def __repr__(self) -> str:
        said = sanitize(f"for {self.selector} by {self.asked_by}, {self.position} before it: {self.reason}")
        return f"<PendingRequest {said}>"
