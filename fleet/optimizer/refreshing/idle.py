"""Rules of a refresh in idle time: the moment at which a batch on a device may begin. Pure: times in, times out."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from fleet.domain.devices import DeviceState
from fleet.domain.health import HealthState
from fleet.domain.selectors import labels_of, parse_selector
from fleet.domain.snapshot import Snapshot
from fleet.errors import InvalidRequest

DAY_SEC = 86400.0
LEAST_SHARE = 0.0001
"""Smallest share: four batches of a day."""

_MINUTE_SEC = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleRules:
    """Limits of a refresh in idle time."""

    share: float
    """Largest share of the last 24 hours of a device: `LEAST_SHARE` to 1."""

    quiet_sec: float = 60.0
    """Time without a request of others before a batch [s]."""

    batch_sec: float = 2.0
    """Longest batch [s]."""

    def may_begin_at(self, wanted_at_sec: float, used: DayUse) -> float:
        """Return the earliest moment at which a batch may begin [s since 1970].

        Args:
            wanted_at_sec: last moment at which others wanted the device [s since 1970].
        """
        room_at_sec = used.room_at(self.share * DAY_SEC - self.batch_sec)
        return max(wanted_at_sec + self.quiet_sec, room_at_sec)


@dataclass(frozen=True, slots=True)
class DayUse:
    """Device time of batches by minute. A minute counts for 24 hours after its end."""

    sec_by_minute: Mapping[int, float] = field(default_factory=dict)
    """Device time [s] by the minute since 1970 in which the batch began."""

    def with_batch(self, began_at_sec: float, sec: float) -> DayUse:
        """Return the use after a batch, without the minutes that count no longer."""
        minute = int(began_at_sec // _MINUTE_SEC)
        kept = {one: used for one, used in self.sec_by_minute.items() if _counts_until(one) > began_at_sec}
        return DayUse({**kept, minute: kept.get(minute, 0.0) + sec})

    def used_sec(self, now_sec: float) -> float:
        """Return the device time of the last 24 hours [s]."""
        return math.fsum(sec for minute, sec in self.sec_by_minute.items() if _counts_until(minute) > now_sec)

    def room_at(self, most_sec: float) -> float:
        """Return the moment from which the use of 24 hours is at most this [s since 1970]; -inf if it always is."""
        used_sec = 0.0
        for minute in sorted(self.sec_by_minute, reverse=True):
            used_sec += self.sec_by_minute[minute]
            if used_sec > most_sec:
                return _counts_until(minute)
        return -math.inf


@dataclass(slots=True, kw_only=True)
class Interest:
    """Requests and leases of others for one device, noted from views of the fleet."""

    device_name: str
    wanted_at_sec: float
    """Last moment at which a request waited for it; at first the moment of the first view [s since 1970]."""

    is_free: bool = field(default=False, init=False)
    """True if it is online, healthy and without a lease."""

    _lease_name: str = field(default="", init=False)
    _leased_at_sec: float = field(default=-math.inf, init=False)

    def note(self, seen: Snapshot, now_sec: float) -> None:
        """Note a view of the fleet."""
        device = next((one for one in seen.devices if one.name == self.device_name), None)
        if device is None:
            self.is_free = False
            return
        self.is_free = device.state is DeviceState.AVAILABLE and device.mark.state is HealthState.GOOD
        labels = labels_of(device)
        if any(matches_any(request.terms.selectors, labels) for request in seen.requests):
            self.wanted_at_sec = now_sec
        if device.lease_name:
            self._lease_name, self._leased_at_sec = device.lease_name, now_sec

    def last_sec(self, own_leases: Collection[str]) -> float:
        """Return the last moment at which others waited for the device, or held it [s since 1970].

        Args:
            own_leases: names of the leases of the refresh itself.
        """
        return self.wanted_at_sec if self._lease_name in own_leases else max(self.wanted_at_sec, self._leased_at_sec)


def matches_any(selectors: Sequence[str], labels: Mapping[str, str]) -> bool:
    """Tell whether a device matches one of these selectors. Those of a newer syntax match every device."""
    return any(_matches(selector, labels) for selector in selectors)


def _matches(selector: str, labels: Mapping[str, str]) -> bool:
    try:
        return parse_selector(selector).matches(labels)
    except InvalidRequest:
        return True


def _counts_until(minute: int) -> float:
    return (minute + 1) * _MINUTE_SEC + DAY_SEC
