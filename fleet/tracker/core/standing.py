"""Position of a request in the queue, and the reason why it waits, as data."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from fleet.domain.leases import LeaseClass
from fleet.tracker.core.accounts import Account
from fleet.tracker.core.records import DeviceEntry, RequestEntry
from fleet.tracker.core.tables import Tables

_EXAMINED_DEVICES = 8
"""Number of matching devices examined for the reason."""


class WaitReason(Enum):
    """Obstacle between a request and its grant."""

    JOURNAL_FAILED = auto()
    """No grants are made; `detail` has the journal's error."""
    NO_DEVICE = auto()
    """All matching devices left the fleet."""
    LEASED = auto()
    """`holder` has had the device for `held_sec`."""
    OFFLINE = auto()
    FAULTED = auto()
    """`detail` has the fault."""
    QUOTA = auto()
    """A quota of its account is used up; `quota` has its limits and their use."""
    QUEUED = auto()
    """The device is free, and other requests come first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaUse:
    """Use of the quota of an account in one class."""

    account: str
    lease_class: LeaseClass
    leases: int
    most_leases: float
    day_sec: float
    most_day_sec: float

    @classmethod
    def of(cls, account: Account, lease_class: LeaseClass) -> QuotaUse:
        """Return the present use."""
        quota = account.quota(lease_class)
        return cls(
            account=account.name,
            lease_class=lease_class,
            leases=account.leases[lease_class],
            most_leases=quota.leases,
            day_sec=account.day_sec[lease_class],
            most_day_sec=quota.device_sec_per_day,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """State of one waiting request at one moment."""

    position: int
    """Number of requests that are served before it."""
    reason: WaitReason
    match_count: int = 0
    """Number of devices that match its selector."""
    device_name: str = ""
    """Device that the reason is about; empty: none."""
    detail: str = ""
    holder: str = ""
    holder_note: str = ""
    held_sec: float = 0.0
    quota: QuotaUse | None = None


def standing_of(tables: Tables, request: RequestEntry) -> Standing:
    """Return the position of a request and the reason why it is not served now."""
    position, selector = tables.positions.of(request, tables.now_sec), request.terms.selector
    if tables.journal_trouble:
        return Standing(position=position, reason=WaitReason.JOURNAL_FAILED, detail=tables.journal_trouble)
    account = tables.accounts.account(request.account)
    if account.is_blocked(request.terms.lease_class):
        quota = QuotaUse.of(account, request.terms.lease_class)
        return Standing(position=position, reason=WaitReason.QUOTA, quota=quota)
    devices = [tables.devices[name] for name in tables.matching.names(selector, _EXAMINED_DEVICES)]
    if not devices:
        return Standing(position=position, reason=WaitReason.NO_DEVICE)
    device = next((device for device in devices if device.lease), devices[0])
    lease, reason = device.lease, _obstacle(device)
    return Standing(
        position=position,
        reason=reason,
        match_count=tables.matching.count(selector),
        device_name=device.name,
        detail=device.reason if reason is WaitReason.FAULTED else "",
        holder=lease.holder if lease else "",
        holder_note=lease.note if lease else "",
        held_sec=max(tables.now_sec - lease.granted_at_sec, 0.0) if lease else 0.0,
    )


def _obstacle(device: DeviceEntry) -> WaitReason:
    if device.lease:
        return WaitReason.LEASED
    if not device.is_attached:
        return WaitReason.OFFLINE
    return WaitReason.QUEUED if device.is_healthy else WaitReason.FAULTED
