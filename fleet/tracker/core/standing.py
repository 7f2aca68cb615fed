"""Position of a request in the queue, and the reason why it waits, as data."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from fleet.tracker.core.matching import Matching
from fleet.tracker.core.records import DeviceEntry, RequestEntry
from fleet.tracker.core.tables import Tables
from fleet.tracker.core.waiting import Waiting

_MAX_RIVAL_GROUPS = 64
"""Number of groups with shared devices above which a position counts all requests."""
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
    QUEUED = auto()
    """The device is free, and other requests come first."""


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


def standing_of(tables: Tables, request: RequestEntry) -> Standing:
    """Return the position of a request and the reason why it is not served now."""
    position, selector = position_of(request, tables.waiting, tables.matching), request.terms.selector
    if tables.journal_trouble:
        return Standing(position=position, reason=WaitReason.JOURNAL_FAILED, detail=tables.journal_trouble)
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


def position_of(request: RequestEntry, waiting: Waiting, matching: Matching) -> int:
    """Return the number of requests that are served before this one, without bids, and could take its device.

    If very many selectors compete, all requests count, so the number may be too large, never too small.
    """
    group = matching.group(request.terms.selector)
    rivals = matching.overlapping(group)
    if len(rivals) > _MAX_RIVAL_GROUPS:
        return waiting.count_before(request)
    return waiting.count_before(request, group) + sum(waiting.count_before(request, rival) for rival in rivals)


def _obstacle(device: DeviceEntry) -> WaitReason:
    if device.lease:
        return WaitReason.LEASED
    if not device.is_attached:
        return WaitReason.OFFLINE
    return WaitReason.QUEUED if device.is_healthy else WaitReason.FAULTED
