"""The way to a device's agent: directly, else by its relay."""

from __future__ import annotations

import asyncio
import logging

import grpc

from fleet.domain.devices import DeviceStatus
from fleet.identity.credentials import PlainSecret, Proof, agent_name
from fleet.wire.rpc import Channel, make_channel

logger = logging.getLogger(__name__)

_DIRECT_SEC = 1.0
"""Time limit of the direct way, TLS included."""


class AgentWay:
    """The channel to a device's agent, chosen when it is first needed."""

    def __init__(self, device: DeviceStatus, proof: Proof) -> None:
        """Store the arguments. Connects to nothing."""
        # A relay finds the agent by its name in TLS.
        self._relay = "" if isinstance(proof, PlainSecret) else device.relay_address
        self._device = device
        self._proof = proof
        self._choice = asyncio.Lock()
        self._channel: Channel | None = None

    @property
    def address(self) -> str:
        """The agent's address, and its relay's, for people."""
        return f"{self._device.address} or by the relay {self._relay}" if self._relay else self._device.address

    async def channel(self) -> Channel:
        """Return the direct channel if it is ready within a second, else one by the relay, if there is one."""
        async with self._choice:
            if self._channel is None:
                self._channel = await self._chosen()
            return self._channel

    async def close(self) -> None:
        """Close the channel. Idempotent."""
        if self._channel is not None:
            await self._channel.close()

    async def _chosen(self) -> Channel:
        direct, is_ready = self._to(self._device.address), False
        if not self._relay:
            return direct
        try:
            is_ready = await _is_ready(direct)
        finally:
            if not is_ready:
                await direct.close()
        if is_ready:
            return direct
        logger.info("using a relay", extra={"device": self._device.name, "relay": self._relay})
        return self._to(self._relay)

    def _to(self, address: str) -> Channel:
        return make_channel(address, self._proof, agent_name(self._device.agent_key_id))


async def _is_ready(channel: Channel) -> bool:
    """Wait until a channel is connected; return False if it fails or takes too long."""
    try:
        async with asyncio.timeout(_DIRECT_SEC):
            state = channel.calls.get_state(try_to_connect=True)
            while state not in (grpc.ChannelConnectivity.READY, grpc.ChannelConnectivity.TRANSIENT_FAILURE):
                await channel.calls.wait_for_state_change(state)
                state = channel.calls.get_state(try_to_connect=True)
            return state is grpc.ChannelConnectivity.READY
    except TimeoutError:
        return False
