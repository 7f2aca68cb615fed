"""Poison between agents and the tracker: reports of programs that killed a device, and the list that all agents get."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from fleet.domain.poison import MAX_POISON, checked_digest
from fleet.errors import LimitReached
from fleet.tracker.core import events as ev
from fleet.tracker.engine import Engine
from fleet.v1 import agent_service_pb2
from fleet.wire.times import timestamp

logger = logging.getLogger(__name__)


class PoisonFeed:
    """One agent's reports, and the changes of the list that it still has to be sent."""

    def __init__(self, engine: Engine, agent_id: str, reported_by: str) -> None:
        """Args:
        agent_id: the agent, as the state knows it.
        reported_by: its name for people.
        """
        self._engine = engine
        self._queries = engine.queries
        self._agent_id = agent_id
        self._reported_by = reported_by
        self._sent_count = 0
        self._forgotten_count = engine.queries.forgotten_poison_count

    def news(self) -> list[agent_service_pb2.Poison]:
        """Return the programs found since the last call, all at the first one."""
        count = self._queries.poison_count
        newest = self._queries.newest_poison(min(count - self._sent_count, MAX_POISON))
        self._sent_count = count
        return [agent_service_pb2.Poison(digest=found.digest, expires=timestamp(found.expires_sec)) for found in newest]

    def forgotten(self) -> list[str]:
        """Return the digests that were forgotten since the last call."""
        count = self._queries.forgotten_poison_count
        newest = self._queries.newest_forgotten_poison(count - self._forgotten_count)
        self._forgotten_count = count
        return newest

    def note(self, found: Iterable[agent_service_pb2.FoundPoison]) -> None:
        """Keep the programs that the agent reports, those of its own devices.

        Raises:
            InvalidRequest: a digest is malformed.
            LimitReached: there are too many.
        """
        reported = list(found)
        if len(reported) > MAX_POISON:
            raise LimitReached(f"{len(reported)} programs in one message; a fleet remembers {MAX_POISON}")
        for each in reported:
            checked_digest(each.digest)
        for each in reported:
            device = self._queries.device(each.device_name)
            if device is None or device.agent_id != self._agent_id or self._queries.is_poison(each.digest):
                continue
            logger.warning("a program killed a device", extra={"device": device.name, "digest": each.digest})
            self._engine.submit(ev.PoisonFound(self._agent_id, device.name, each.digest, self._reported_by))
