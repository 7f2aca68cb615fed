"""The raw protocol of a client, for tests that check the tracker's answers exactly."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from fleet.identity.credentials import Proof
from fleet.testing.identity import account_proof
from fleet.testing.stream import TrackerStream
from fleet.testing.waiting import eventually
from fleet.v1 import lease_pb2, lease_service_pb2
from fleet.wire import rpc
from fleet.wire.stubs import lease_service_stub
from fleet.wire.times import duration


class LeaseStream(TrackerStream):
    """One `OpenLeases` stream that records every answer: `async with LeaseStream(address, "client-1") as stream`."""

    def __init__(
        self, tracker_address: str, client_id: str, *, holder: str = "tester@here", proof: Proof | None = None
    ) -> None:
        """Args:
        proof: its identity; None: this account.
        """
        super().__init__()
        self._proof = proof
        self.welcome: lease_service_pb2.Welcome | None = None
        self.granted: dict[str, lease_pb2.Granted] = {}
        """The newest grant by request_id."""
        self.queued: dict[str, lease_pb2.PendingRequest] = {}
        self.refused: dict[str, lease_service_pb2.Refused] = {}
        self.renewed: dict[str, lease_service_pb2.Renewed] = {}
        """Newest renewal by lease name."""
        self.ended: dict[str, lease_service_pb2.LeaseEnded] = {}
        self._tracker_address = tracker_address
        self._hello = lease_service_pb2.ClientHello(client_id=client_id, holder=holder)
        self._outgoing: asyncio.Queue[lease_service_pb2.OpenLeasesRequest] = asyncio.Queue()

    def say(self, *events: lease_service_pb2.ClientEvent) -> None:
        """Send events in one message."""
        self._outgoing.put_nowait(lease_service_pb2.OpenLeasesRequest(events=events))

    def acquire(
        self,
        request_id: str,
        selector: str,
        *,
        ttl_sec: float = 30.0,
        wait_timeout_sec: float = 0.0,
        priority: int = 0,
        bid: float = 0.0,
        lease_class: lease_pb2.LeaseClass = lease_pb2.LEASE_CLASS_UNSPECIFIED,
        account: str = "",
    ) -> None:
        """Request a device."""
        acquire = lease_pb2.Acquire(
            request_id=request_id,
            selector=selector,
            ttl=duration(ttl_sec),
            wait_timeout=duration(wait_timeout_sec),
            priority=priority,
            bid=bid,
            lease_class=lease_class,
            account=account,
        )
        self.say(lease_service_pb2.ClientEvent(acquire=acquire))

    async def grant(self, request_id: str, selector: str, **options: float | str) -> lease_pb2.Granted:
        """Request a device and wait for the grant."""
        self.acquire(request_id, selector, **options)  # type: ignore[arg-type]
        return await eventually(lambda: self.granted.get(request_id))

    def release(self, lease_name: str) -> None:
        """Release a lease."""
        release = lease_service_pb2.Release(lease_name=lease_name)
        self.say(lease_service_pb2.ClientEvent(release=release))

    def renew(self, lease_name: str) -> None:
        """Renew a lease."""
        self.say(lease_service_pb2.ClientEvent(renew=lease_service_pb2.Renew(lease_name=lease_name)))

    @property
    def _is_open(self) -> bool:
        return self.welcome is not None

    async def _exchange(self) -> None:
        proof = self._proof or account_proof(self._tracker_address)
        async with rpc.make_channel(self._tracker_address, proof) as channel:
            async for response in lease_service_stub(channel).open_leases(self._messages()):
                for event in response.events:
                    self._take(event)

    async def _messages(self) -> AsyncIterator[lease_service_pb2.OpenLeasesRequest]:
        yield lease_service_pb2.OpenLeasesRequest(hello=self._hello)
        while True:
            yield await self._outgoing.get()

    def _take(self, event: lease_service_pb2.TrackerEvent) -> None:
        match event.WhichOneof("kind"):
            case "welcome":
                self.welcome = event.welcome
            case "granted":
                self.granted[event.granted.request_id] = event.granted
            case "queued":
                self.queued[event.queued.request_id] = event.queued
            case "refused":
                self.refused[event.refused.request_id] = event.refused
            case "renewed":
                self.renewed[event.renewed.lease.name] = event.renewed
            case "lease_ended":
                self.ended[event.lease_ended.lease_name] = event.lease_ended
