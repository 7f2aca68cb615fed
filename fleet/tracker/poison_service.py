"""Serves the list of programs that killed a device: fleet.v1.PoisonService."""

from __future__ import annotations

import logging

from fleet.domain.poison import MAX_POISON, checked_digest
from fleet.errors import DiskFull, NotFound
from fleet.tracker.core import events as ev
from fleet.tracker.engine import Engine
from fleet.tracker.pace import Pace, portions
from fleet.v1 import poison_service_pb2 as pb
from fleet.wire.peers import CallContext, caller_of
from fleet.wire.poison import poison_to_proto

logger = logging.getLogger(__name__)

_PORTION = 128
"""Programs converted at once: 3 us for each."""


class PoisonServicer:
    """fleet.v1.PoisonService."""

    def __init__(self, engine: Engine, pace: Pace) -> None:
        self._engine = engine
        self._queries = engine.queries
        self._pace = pace

    async def list_poison(self, _: pb.ListPoisonRequest, __: object) -> pb.ListPoisonResponse:
        listed: list[pb.PoisonedProgram] = []
        for portion in portions(self._queries.newest_poison(MAX_POISON)[::-1], _PORTION):
            await self._pace.turn()
            listed += map(poison_to_proto, portion)
        return pb.ListPoisonResponse(programs=listed)

    async def forget_poison(self, request: pb.ForgetPoisonRequest, context: CallContext) -> pb.ForgetPoisonResponse:
        digest = checked_digest(request.digest)
        effects = await self._engine.ask(ev.ForgetPoison(digest))
        found = next((effect.found for effect in effects if isinstance(effect, ev.PoisonForgotten)), None)
        if found is None:
            raise NotFound(f"no agent refuses {digest}; 'fleet poison list' lists those that agents refuse")
        if trouble := self._queries.journal_trouble:
            raise DiskFull(f"{trouble}; agents run {digest} again until a restart of the tracker: repeat it then")
        logger.info("poison forgotten", extra={"digest": digest, "by": caller_of(context).name})
        return pb.ForgetPoisonResponse(program=poison_to_proto(found))
