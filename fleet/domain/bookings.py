"""Bookings: devices kept free for one account at a time in the future."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fleet.base.local_time import span_text
from fleet.base.text import sanitize
from fleet.domain.accounts import account_text
from fleet.domain.selectors import selector_text
from fleet.errors import InvalidRequest

LONGEST_AHEAD_SEC = 30 * 86_400.0
"""A booking starts at most this long after it is made."""
MOST_BOOKED_DEVICES = 64
"""Largest number of devices of one booking."""
UNUSED_SEC = 600.0
"""A device of a booking that has no lease for this long is released."""
NOTICE_SEC = 600.0
"""Holders of interactive and normal leases on a booked device are asked for it this long before the booking."""
_LATE_SEC = 60.0
"""A start this long ago counts as now: the caller's clock may be slow."""
_PREFIX = "bookings/"


@dataclass(frozen=True, slots=True, kw_only=True)
class Booking:
    """Devices that are kept free for an account. Times are the tracker's [s since 1970]."""

    name: str
    """ "bookings/<id>"."""
    selector: str
    device_count: int
    """Number of devices that are still kept: unused ones are released."""
    starts_at_sec: float
    ends_at_sec: float
    holder: str = ""
    """Its author."""
    account: str = ""
    """Account that it serves; empty if it is the holder's own key."""
    booked_at_sec: float = 0.0
    device_names: tuple[str, ...] = ()
    """Devices that are planned for it now. Until it starts, others may take their place."""
    leased_count: int = 0
    """Number of its devices that are leased to its account."""
    missing_device_names: tuple[str, ...] = ()
    """Planned devices that cannot be had now. Missing ones that are gone for good have no name."""

    @property
    def wanted(self) -> str:
        """The selector as users write it."""
        return selector_text(self.selector)

    @property
    def missing_count(self) -> int:
        """Number of devices that cannot be kept for it now."""
        return self.device_count - len(self.device_names)

    @property
    def lacking(self) -> tuple[int, tuple[str, ...]]:
        """Number of devices that cannot be kept, and the names of those that are known."""
        return self.missing_count, self.missing_device_names

    @property
    def booked_by(self) -> str:
        """The holder, with the account."""
        return f"{self.holder} for {account_text(self.account)}" if self.account else self.holder

    def __repr__(self) -> str:
        kept = f"{self.device_count} of {self.selector} from {self.starts_at_sec:.0f} to {self.ends_at_sec:.0f}"
        return sanitize(f"<Booking {self.name}: {kept} by {self.booked_by}>")


def notice_text(booking: Booking, now_sec: float) -> str:
    """Return the sentence for the owner of a booking that cannot be kept any more, or can again."""
    shown_id = booking_id(booking.name)
    time = span_text(booking.starts_at_sec, booking.ends_at_sec, now_sec)
    about = f"the booking {shown_id} of {booking.selector}, {time},"
    if booking.missing_count <= 0:
        return sanitize(f"{about} can be kept again, on {_listed(booking.device_names)}")
    lacks = _listed(booking.missing_device_names) or f"{booking.missing_count} of {booking.device_count} devices"
    return sanitize(
        f"{about} cannot be kept: it lacks {lacks}, and no other device will do; wait for it to come back, or cancel "
        f"the booking (fleet bookings cancel {shown_id}) and book another time"
    )


def _listed(device_names: Sequence[str]) -> str:
    return ", ".join(name.removeprefix("devices/") for name in device_names)


def booking_name(text: str) -> str:
    """Return the full name of a booking from its id or name; empty for an empty text."""
    text = text.strip()
    return f"{_PREFIX}{text.removeprefix(_PREFIX)}" if text else ""


def booking_id(name: str) -> str:
    """Return the id of a booking, as people type it."""
    return name.removeprefix(_PREFIX)


def checked_start(starts_at_sec: float, now_sec: float) -> float:
    """Return the start of a booking; now, if it was a moment ago [s since 1970].

    Raises:
        InvalidRequest: it has passed, or is more than 30 days ahead.
    """
    if not starts_at_sec >= now_sec - _LATE_SEC:
        raise InvalidRequest("the booking starts in the past; choose a start from now on")
    if not starts_at_sec <= now_sec + LONGEST_AHEAD_SEC:
        raise InvalidRequest("the booking starts in more than 30 days; choose an earlier start")
    return max(starts_at_sec, now_sec)


def check_length(length_sec: float, longest_sec: float) -> None:
    """Check the length of a booking.

    Raises:
        InvalidRequest: it is not positive, or longer than a lease of the account may be.
    """
    if not length_sec > 0:
        raise InvalidRequest(f"a booking lasts longer than {length_sec:g} s; choose a positive length")
    if length_sec > longest_sec:
        raise InvalidRequest(
            f"the booking lasts {length_sec / 3600:g} h, and a lease of its account at most {longest_sec / 3600:g} h; "
            "choose a shorter one"
        )


def check_count(device_count: int) -> None:
    """Check the number of devices of a booking.

    Raises:
        InvalidRequest: it is not in 1 to 64.
    """
    if not 1 <= device_count <= MOST_BOOKED_DEVICES:
        raise InvalidRequest(f"a booking has 1 to {MOST_BOOKED_DEVICES} devices, not {device_count}")
