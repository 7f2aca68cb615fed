"""Shares, classes and quotas as an operator sets them. Plain values."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from fleet.domain.leases import LeaseClass

_HOUR_SEC = 3600.0
EVERY_ACCOUNT = ""
"""Key of the quotas of accounts without their own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """Limits of one account in one class. A used-up one makes requests wait; `longest_sec` cuts leases."""

    leases: float = math.inf
    """Leases at once."""
    device_sec_per_day: float = math.inf
    """Device seconds from midnight to midnight, UTC."""
    longest_sec: float = math.inf
    """Limit on the length of a lease [s]."""


NO_QUOTA = Quota()
_INTERACTIVE = Quota(leases=2, longest_sec=2 * _HOUR_SEC)


@dataclass(frozen=True, slots=True, kw_only=True)
class SharePolicy:
    """Rules of shares for all accounts."""

    half_life_sec: float = 6 * _HOUR_SEC
    """Half-life of used device seconds [s]."""
    starvation_sec: float = 12 * _HOUR_SEC
    """An account that was granted nothing suitable for this long is served next."""
    slice_sec: float = 600.0
    """A batch lease is left alone by other accounts' batch requests for this long."""
    yield_grace_sec: float = 15.0
    """A batch lease that was asked to give way ends after this time."""
    weights: Mapping[str, float] = field(default_factory=dict)
    """Weights of accounts that differ from 1."""
    class_quotas: Mapping[str, Mapping[LeaseClass, Quota]] = field(
        default_factory=lambda: {EVERY_ACCOUNT: {LeaseClass.INTERACTIVE: _INTERACTIVE}}
    )
    """Quotas by account; `EVERY_ACCOUNT` for the others, and for classes that an account's own do not name."""

    @property
    def has_daily_quota(self) -> bool:
        """True if some quota counts device seconds of a day."""
        quotas = (quota for quotas in self.class_quotas.values() for quota in quotas.values())
        return any(quota.device_sec_per_day < math.inf for quota in quotas)

    def weight(self, account: str) -> float:
        """Return the weight of an account."""
        return self.weights.get(account, 1.0)

    def quotas(self, account: str) -> Mapping[LeaseClass, Quota]:
        """Return the quotas of an account, by class."""
        common, own = self.class_quotas.get(EVERY_ACCOUNT, {}), self.class_quotas.get(account)
        return {**common, **own} if own else common
