"""The agent's stream to its relay, and its connections for clients that wait there.

An agent behind an address translator cannot be dialled. It registers with a relay, which reports waiting clients. For
each, the agent connects to the relay once more and joins that connection to its own port, where TLS and tokens are
checked as for any other client. A relay that is away costs its clients' connections and nothing else.
"""

from __future__ import annotations

import asyncio
import logging
import random

import grpc.aio

from device_agents.serving.membership import Membership
from device_agents.serving.relay_clients import RelayClients
from fleet.errors import FleetError, TrackerUnavailable
from fleet.v1 import relay_service_pb2 as pb
from fleet.wire.relay_preface import SECRET_BYTES
from fleet.wire.rpc import from_rpc_error, read_next
from fleet.wire.stubs import relay_service_stub

logger = logging.getLogger(__name__)

_FIRST_RETRY_SEC, _LAST_RETRY_SEC = 0.2, 5.0


class RelayLink:
    """Keeps the agent registered with its relay."""

    def __init__(self, relay: str, membership: Membership, own: tuple[str, int]) -> None:
        """Args: relay: "host:port". own: host and port of the agent's data path on this machine."""
        self._relay = relay
        self._membership = membership
        self._clients = RelayClients(relay, own)
        self._is_registered = False

    async def run(self) -> None:
        """Register again and again, until cancelled; then end the clients' connections."""
        retry_sec, last_text = _FIRST_RETRY_SEC, ""
        self._clients.start()
        try:
            while True:
                text = await self._registered()
                if self._is_registered:
                    self._is_registered = False
                    retry_sec, last_text = _FIRST_RETRY_SEC, ""
                if text != last_text:
                    logger.warning("no relay, dialling again", extra={"relay": self._relay, "reason": text})
                    last_text = text
                await asyncio.sleep(retry_sec * random.uniform(0.5, 1.0))
                retry_sec = min(_LAST_RETRY_SEC, retry_sec * 1.6)
        finally:
            await self._clients.close()

    async def _registered(self) -> str:
        """Stay registered as long as the relay serves; return why it ended."""
        try:
            await self._watch()
        except grpc.aio.AioRpcError as error:
            return str(from_rpc_error(error, TrackerUnavailable))
        except FleetError as error:
            return str(error)
        except Exception as error:  # outermost loop of this task: the agent never stops reconnecting
            logger.exception("registration with the relay failed")
            return str(error)
        return "the relay closed the stream"

    async def _watch(self) -> None:
        async with self._membership.relay_channel(self._relay) as channel:
            call = relay_service_stub(channel).watch_clients(pb.WatchClientsRequest())
            try:
                while (client := await read_next(call)) is not None:
                    self._take(client)
            finally:
                call.cancel()

    def _take(self, client: pb.WatchClientsResponse) -> None:
        if not client.secret:
            self._is_registered = True
            logger.info("registered with the relay", extra={"relay": self._relay})
        elif len(client.secret) == SECRET_BYTES:
            self._clients.take(client.secret, client.first_bytes)
