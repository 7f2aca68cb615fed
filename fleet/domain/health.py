"""Health of devices as people and the tracker judge it, beside the state that agents report."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from fleet.domain.reasons import checked_reason
from fleet.errors import InvalidRequest

LONGEST_NOTICE_SEC = 30 * 86_400.0
"""Longest time from a mark until leases that outlast it are revoked."""


class HealthState(enum.StrEnum):
    """Judgement of a device. The names are those of fleet.v1.HealthState without their prefix."""

    GOOD = "good"
    SUSPECT = "suspect"
    """Slower than devices like it. Serves no batch requests, except those that name it."""
    DRAINING = "draining"
    """Its leases end, and no new one begins."""
    QUARANTINED = "quarantined"
    """Not trustworthy. Only an admin leases it, by name."""
    MAINTENANCE = "maintenance"
    """A person works on it."""
    RETIRED = "retired"
    """Not meant to come back."""

    @property
    def is_open(self) -> bool:
        """True if ordinary requests are granted the device."""
        return self is HealthState.GOOD or self is HealthState.SUSPECT


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthMark:
    """A judgement with its author, time and reason."""

    state: HealthState = HealthState.GOOD
    by: str = ""
    """Name of the admin; empty if the tracker set it."""
    at_sec: float = 0.0
    """Time of the mark [s since 1970, the tracker's clock]; 0 for a device that was never marked."""
    reason: str = ""
    until_sec: float | None = None
    """Leases that outlast this moment are revoked then [s since 1970]; None: they may go on."""

    @property
    def set_by(self) -> str:
        """The author for people."""
        return self.by or "the tracker"

    def __str__(self) -> str:
        return f"{self.state} by {self.set_by}: {self.reason}" if self.at_sec else self.state


GOOD = HealthMark()
"""Mark of a device that nobody judged yet."""


def checked_mark_reason(reason: str) -> str:
    """Return the reason for a mark.

    Raises:
        InvalidRequest: it is empty or too long, or has control characters in it.
    """
    if not reason.strip():
        raise InvalidRequest("a mark of a device's health has a reason; say why in a few words")
    return checked_reason(reason)


def checked_until(until_sec: float | None, state: HealthState, now_sec: float) -> float | None:
    """Return the moment at which a mark revokes leases.

    Raises:
        InvalidRequest: it has passed, is far away, or belongs to a mark that ends no leases.
    """
    if until_sec is None:
        return None
    if state.is_open:
        raise InvalidRequest(f"a device that is {state} keeps its lease; leave the time out")
    if not now_sec < until_sec <= now_sec + LONGEST_NOTICE_SEC:
        raise InvalidRequest("the time at which leases end lies in the next 30 days; choose one of those")
    return until_sec
