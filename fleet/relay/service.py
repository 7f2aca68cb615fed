"""fleet.v1.RelayService: agents register, and learn of clients that wait for them."""

from __future__ import annotations

from collections.abc import AsyncIterator

from fleet.relay.agents import Agents
from fleet.relay.counts import RelayCounts
from fleet.v1 import relay_service_pb2 as pb
from fleet.wire.peers import CallContext, caller_of


class RelayServicer:
    """Serves registered agents. The guard has checked that each is a member."""

    def __init__(self, agents: Agents, counts: RelayCounts) -> None:
        self._agents = agents
        self._counts = counts

    async def watch_clients(
        self, request: pb.WatchClientsRequest, context: CallContext
    ) -> AsyncIterator[pb.WatchClientsResponse]:
        """Register the caller, and yield its waiting clients."""
        try:
            with self._agents.registered(caller_of(context).key_id) as registration:
                self._counts.agents = len(self._agents)
                yield pb.WatchClientsResponse()
                async for client in registration.clients():
                    yield pb.WatchClientsResponse(secret=client.secret, first_bytes=client.first_bytes)
        finally:
            self._counts.agents = len(self._agents)
