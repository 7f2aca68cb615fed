"""Judgements of devices by admins: from the request to marks in the journal, a portion at a time."""

from __future__ import annotations

import logging

from fleet.domain.health import HealthMark, checked_mark_reason, checked_until
from fleet.errors import DiskFull
from fleet.tracker.core import events as ev
from fleet.tracker.engine import Engine
from fleet.tracker.pace import Pace, portions

logger = logging.getLogger(__name__)

_PORTION = 8
"""Devices marked at once: each may end a lease, and be granted again."""


async def set_health(engine: Engine, pace: Pace, selector: str, mark: HealthMark) -> list[str]:
    """Mark the devices that a selector matches, and return their sorted names.

    Raises:
        InvalidRequest: the selector, reason or time is not valid.
        NoMatchingDevice: no device matches.
        DiskFull: the journal cannot be written now.
    """
    checked_mark_reason(mark.reason)
    checked_until(mark.until_sec, mark.state, mark.at_sec)
    names = sorted(engine.queries.markable_names(selector))
    for portion in portions(names, _PORTION):
        await pace.turn()
        await engine.ask(ev.MarkHealth(tuple(portion), mark))
        if trouble := engine.queries.journal_trouble:
            raise DiskFull(f"{trouble}; a restart of the tracker may lose this mark: set it again")
    shown = {"devices": len(names), "state": mark.state, "by": mark.by, "reason": mark.reason}
    logger.info("health set", extra=shown)
    return names
