"""Poison between agents and the tracker: reports of programs that killed a device, and the list that all agents get."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from fleet.domain.poison import DIGEST, MAX_POISON
from fleet.errors import InvalidRequest, LimitReached
from fleet.tracker.core import events as ev
from fleet.tracker.engine import Engine
from fleet.v1 import agent_service_pb2
from fleet.wire.times import timestamp

logger = logging.getLogger(__name__)


class PoisonFeed:
    """Programs that one agent still has to be sent."""

    def __init__(self, engine: Engine) -> None:
        self._queries = engine.queries
        self._sent_count = 0

    def news(self) -> list[agent_service_pb2.Poison]:
        """Return the programs found since the last call, all at the first one."""
        count = self._queries.poison_count
        newest = self._queries.newest_poison(min(count - self._sent_count, MAX_POISON))
        self._sent_count = count
        return [agent_service_pb2.Poison(digest=found.digest, expires=timestamp(found.expires_sec)) for found in newest]


def note_found(engine: Engine, agent_id: str, found: Iterable[agent_service_pb2.FoundPoison]) -> None:
    """Keep the programs that an agent reports, those of its own devices.

    Raises:
        InvalidRequest: a digest is malformed.
        LimitReached: there are too many.
    """
    reported = list(found)
    if len(reported) > MAX_POISON:
        raise LimitReached(f"{len(reported)} programs in one message; a fleet remembers {MAX_POISON}")
    if bad := [each.digest for each in reported if not DIGEST.fullmatch(each.digest)]:
        raise InvalidRequest(f"the digest {bad[0][:80]!r} is malformed; write it like 'sha256:' and 64 digits")
    for each in reported:
        device = engine.queries.device(each.device_name)
        if device is None or device.agent_id != agent_id or engine.queries.is_poison(each.digest):
            continue
        logger.warning("a program killed a device", extra={"device": device.name, "digest": each.digest})
        engine.submit(ev.PoisonFound(agent_id, device.name, each.digest))
