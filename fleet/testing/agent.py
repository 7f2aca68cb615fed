"""An agent that only attaches: devices for tests and load, without a data path."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from fleet.testing.identity import agent_credentials
from fleet.testing.stream import TrackerStream
from fleet.v1 import agent_service_pb2, device_pb2
from fleet.wire import rpc
from fleet.wire.stubs import agent_service_stub

_HEARTBEAT_SEC = 5.0


class SimulatedAgent(TrackerStream):
    """Implements `Attach` and records the tracker's messages.

    Use it as `async with SimulatedAgent(tracker_address, ["devices/sim-0"]) as agent`.
    """

    def __init__(
        self,
        tracker_address: str,
        device_names: Sequence[str],
        *,
        agent_id: str = "simulated",
        kind: str = "simulated",
        labels: Mapping[str, str] | None = None,
        address: str = "127.0.0.1:1",
        key_pem: bytes | None = None,
    ) -> None:
        """Args: key_pem: the agent's key; None: the key shared by all fakes of this process."""
        super().__init__()
        self.agent_id = agent_id
        self.fences: dict[str, int] = {}
        """Newest fence of each device."""
        self.resets: dict[str, int] = {}
        """New epochs after resets, by device."""
        self.poison: list[str] = []
        """Digests of the tracker's poison, as they came."""
        self.forgotten_poison: list[str] = []
        """Digests that an admin had forgotten, as they came."""
        self.public_key = b""
        self.tracker_time: list[float] = []
        self._tracker_address = tracker_address
        self._key_pem = key_pem
        inventory = device_pb2.Inventory(kind=kind, labels=labels, is_simulated=True, device_model="simulated")
        devices = [device_pb2.Device(name=name, inventory=inventory) for name in device_names]
        self._hello = agent_service_pb2.AgentHello(agent_id=agent_id, address=address, devices=devices, version="0")
        self._outgoing: asyncio.Queue[agent_service_pb2.AttachRequest] = asyncio.Queue()
        self._is_attached = asyncio.Event()

    def report(
        self,
        device_name: str,
        *,
        is_healthy: bool,
        reason: str = "",
        bitstream_digest: str = "",
        highest_epoch: int = 0,
        **telemetry: Any,
    ) -> None:
        """Report a device's state."""
        readings = device_pb2.Telemetry(**telemetry)
        report = agent_service_pb2.DeviceReport(
            device_name=device_name,
            is_healthy=is_healthy,
            reason=reason,
            telemetry=readings,
            bitstream_digest=bitstream_digest,
            highest_epoch=highest_epoch,
        )
        self._outgoing.put_nowait(agent_service_pb2.AttachRequest(reports=[report]))

    def find_poison(self, *digests: str, device_name: str) -> None:
        """Report programs that killed a device."""
        found = [agent_service_pb2.FoundPoison(digest=digest, device_name=device_name) for digest in digests]
        self._outgoing.put_nowait(agent_service_pb2.AttachRequest(found_poison=found))

    def report_all(self, **telemetry: Any) -> None:
        """Report, in one message, that all devices are well, as agents do every few seconds."""
        readings = device_pb2.Telemetry(**telemetry)
        reports = [
            agent_service_pb2.DeviceReport(device_name=device.name, is_healthy=True, telemetry=readings)
            for device in self._hello.devices
        ]
        self._outgoing.put_nowait(agent_service_pb2.AttachRequest(reports=reports))

    @property
    def _is_open(self) -> bool:
        return self._is_attached.is_set()

    async def _exchange(self) -> None:
        proof = await agent_credentials(self._tracker_address, self._key_pem)
        async with rpc.make_channel(self._tracker_address, proof) as channel:
            async for response in agent_service_stub(channel).attach(self._messages()):
                self._take(response)

    async def _messages(self) -> AsyncIterator[agent_service_pb2.AttachRequest]:
        yield agent_service_pb2.AttachRequest(hello=self._hello)
        while True:
            try:
                async with asyncio.timeout(_HEARTBEAT_SEC):
                    message = await self._outgoing.get()
            except TimeoutError:
                message = agent_service_pb2.AttachRequest()
            yield message

    def _take(self, response: agent_service_pb2.AttachResponse) -> None:
        self.public_key = response.public_key or self.public_key
        self.tracker_time.append(response.tracker_time.seconds + response.tracker_time.nanos / 1e9)
        self.poison += [poison.digest for poison in response.poison]
        self.forgotten_poison += response.forgotten_poison
        for fence in response.fences:
            self.fences[fence.device_name] = max(fence.epoch, self.fences.get(fence.device_name, 0))
            if fence.is_reset:
                self.resets[fence.device_name] = fence.epoch
        self._is_attached.set()
