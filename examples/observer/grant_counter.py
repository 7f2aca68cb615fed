"""Count the grants of each device: an observer of the tracker.

python grant_counter.py    # serves this account's tracker, and logs the counts every minute
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter

from fleet.tracker.core.events import Effect, Granted
from fleet.tracker.core.records import Changes
from fleet.tracker.observers import Observer
from fleet.tracker.options import TrackerOptions
from fleet.tracker.server import Tracker

logger = logging.getLogger(__name__)


class GrantCounter(Observer):
    """Grants by device name, since the start."""

    def __init__(self) -> None:
        self.grants = Counter[str]()

    def on_effect(self, effect: Effect) -> None:
        """Count a grant once, though a client that connects anew may receive it twice."""
        if isinstance(effect, Granted) and not effect.is_repeat:
            self.grants[effect.lease.device_name] += 1

    def on_change(self, changes: Changes) -> None:
        """Drop the counts of devices that left the fleet, so that memory stays bounded."""
        for name, device in changes.devices.items():
            if device is None:
                self.grants.pop(name, None)


async def main() -> None:
    """Serve until interrupted."""
    counter = GrantCounter()
    async with Tracker(TrackerOptions(), observers=(counter,)):
        while True:
            await asyncio.sleep(60)
            logger.info("grants", extra={"by_device": dict(counter.grants)})


if __name__ == "__main__":
    asyncio.run(main())
