"""Count the grants of each device: an observer of the tracker."""

from __future__ import annotations

import logging
from collections import Counter

from fleet.tracker.core.events import Effect, Granted
from fleet.tracker.core.records import Changes
from fleet.tracker.observers import Observer

logger = logging.getLogger(__name__)


class GrantCounter(Observer):
    """Grants by device name, since the start, written to the tracker's log."""

    def __init__(self) -> None:
        self.grants = Counter[str]()

    def on_effect(self, effect: Effect) -> None:
        """Count a grant once, though a client that connects anew may receive it twice."""
        if isinstance(effect, Granted) and not effect.is_repeat:
            device = effect.lease.device_name
            self.grants[device] += 1
            logger.info("grant counted", extra={"device": device, "grants": self.grants[device]})

    def on_change(self, changes: Changes) -> None:
        """Drop the counts of devices that left the fleet, so that memory stays bounded."""
        for name, device in changes.devices.items():
            if device is None:
                self.grants.pop(name, None)
