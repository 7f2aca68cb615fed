"""A small data path and a small tracker for client tests: real gRPC, answers that a test sets."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import grpc
import numpy as np

from fleet import aio
from fleet.base.digests import digest_of
from fleet.client import arrays
from fleet.client.device import Device
from fleet.errors import ArtifactRefused, LeaseExpired, NotProgrammable
from fleet.identity.roles import Role
from fleet.testing.identity import key_id, know_tracker, security
from fleet.v1 import (
    device_pb2,
    fleet_service_pb2,
    lease_pb2,
    lease_service_pb2,
    measurement_pb2,
    session_service_pb2,
)
from fleet.wire.chunks import cut, join
from fleet.wire.measurements import tensor_from_proto, tensor_to_proto
from fleet.wire.options import MAX_MESSAGE_BYTES
from fleet.wire.rpc import add_service, bind, make_server
from fleet.wire.times import timestamp
from fleet.wire.tokens import TOKEN_HEADER


class SmallAgent:
    """Stores artifacts, "measures" 1 us per candidate, doubles arrays."""

    def __init__(self) -> None:
        self.stored: dict[str, bytes] = {}
        self.puts = 0
        self.evaluators: list[measurement_pb2.Evaluator] = []
        self.opened_with: list[bytes] = []
        self.is_closed = False
        self.hold = asyncio.Event()
        self.hold.set()
        self.fail_after: int | None = None
        self.address = ""

    async def open_session(self, request: Any, context: Any) -> session_service_pb2.OpenSessionResponse:
        self.opened_with.append(token_of(context))
        return session_service_pb2.OpenSessionResponse(worker_pid=1)

    async def find_missing(self, request: Any, context: Any) -> session_service_pb2.FindMissingResponse:
        return session_service_pb2.FindMissingResponse(digests=[d for d in request.digests if d not in self.stored])

    async def make_upload_ticket(self, request: Any, context: Any) -> session_service_pb2.MakeUploadTicketResponse:
        return session_service_pb2.MakeUploadTicketResponse(ticket=b"a ticket")

    async def put_artifact(self, requests: Any, context: Any) -> session_service_pb2.PutArtifactResponse:
        contents: dict[str, bytes] = {}
        digest = ""
        async for request in requests:
            digest = request.digest or digest
            contents[digest] = contents.get(digest, b"") + request.chunk
        for digest, content in contents.items():
            if digest != digest_of(content):
                raise ArtifactRefused("wrong hash")
            self.stored[digest] = content
            self.puts += 1
        return session_service_pb2.PutArtifactResponse(digests=contents)

    async def measure(self, requests: Any, context: Any) -> AsyncIterator[measurement_pb2.MeasureResponse]:
        count = 0
        async for request in requests:
            await self.hold.wait()
            if self.fail_after is not None and count >= self.fail_after:
                raise LeaseExpired("the token ran out")
            count += 1
            self.evaluators.append(request.evaluator)
            yield measurement_pb2.MeasureResponse(
                measurement=measurement_pb2.Measurement(candidate_id=request.candidate_id, run_secs=[1e-6])
            )

    async def prove(self, request: Any, context: Any) -> session_service_pb2.ProveResponse:
        """Answer as an agent without support for proofs."""
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, "")
        raise AssertionError("abort raises")

    async def call(self, request: Any, context: Any) -> session_service_pb2.CallResponse:
        if request.function == "crash":
            return session_service_pb2.CallResponse(
                error=measurement_pb2.ERROR_KIND_CRASHED, error_message="it died", signal=11
            )
        tensors = [arg.tensor for arg in request.args if arg.WhichOneof("kind") == "tensor"]
        outputs = [arg.output for arg in request.args if arg.WhichOneof("kind") == "output"]
        doubled = [2 * arrays.array_of(tensor_from_proto(tensor)) for tensor in tensors]
        if outputs:
            doubled = [np.asarray(sum(doubled), dtype=outputs[0].dtype)]
        return session_service_pb2.CallResponse(
            outputs=[tensor_to_proto(arrays.tensor_of(np.asarray(array))) for array in doubled]
        )

    async def call_in_pieces(
        self, requests: Any, context: Any
    ) -> AsyncIterator[session_service_pb2.CallInPiecesResponse]:
        request = session_service_pb2.CallRequest.FromString(bytes(await join(requests, MAX_MESSAGE_BYTES)))
        answer = await self.call(request, context)
        for size_bytes, chunk in cut([answer.SerializeToString()], lambda *fields: fields):
            yield session_service_pb2.CallInPiecesResponse(size_bytes=size_bytes, piece=chunk)

    async def tunnel(
        self, requests: AsyncIterator[session_service_pb2.TunnelRequest], context: Any
    ) -> AsyncIterator[session_service_pb2.TunnelResponse]:
        async for request in requests:
            yield session_service_pb2.TunnelResponse(content=request.content)

    async def prove_in_pieces(
        self, requests: Any, context: Any
    ) -> AsyncIterator[session_service_pb2.ProveInPiecesResponse]:
        request = session_service_pb2.ProveRequest.FromString(bytes(await join(requests, MAX_MESSAGE_BYTES)))
        answer = await self.prove(request, context)
        for size_bytes, chunk in cut([answer.SerializeToString()], lambda *fields: fields):
            yield session_service_pb2.ProveInPiecesResponse(size_bytes=size_bytes, piece=chunk)

    async def program(self, request: Any, context: Any) -> session_service_pb2.ProgramResponse:
        raise NotProgrammable("devices/small has no fabric to program")

    async def watch_logs(self, request: Any, context: Any) -> AsyncIterator[session_service_pb2.WatchLogsResponse]:
        yield session_service_pb2.WatchLogsResponse(text="hello\n")

    async def close_session(self, request: Any, context: Any) -> session_service_pb2.CloseSessionResponse:
        self.is_closed = True
        return session_service_pb2.CloseSessionResponse()


class SmallTracker:
    """Grants its one device to the first client; a test can make it refuse, end leases and delay answers."""

    def __init__(self, agent_address: str) -> None:
        self.device = device_pb2.Device(
            name="devices/small",
            address=agent_address,
            agent_key_id=key_id(Role.AGENT),
            inventory=device_pb2.Inventory(kind="simulated", is_simulated=True, labels={"arch": "x86_64"}),
        )
        self.leases: dict[str, lease_pb2.Lease] = {}
        self.streams: list[asyncio.Queue[lease_service_pb2.TrackerEvent]] = []
        self.seen: list[lease_service_pb2.ClientEvent] = []
        self.grants = True
        self.renews = True
        self.ttl_sec = 30.0
        self.lists_leases: list[lease_pb2.Lease] | None = None
        self._numbers = itertools.count(1)

    async def open_leases(self, requests: Any, context: Any) -> AsyncIterator[lease_service_pb2.OpenLeasesResponse]:
        outgoing: asyncio.Queue[lease_service_pb2.TrackerEvent] = asyncio.Queue()
        self.streams.append(outgoing)
        reader = asyncio.create_task(self._read(requests, outgoing))
        try:
            while True:
                yield lease_service_pb2.OpenLeasesResponse(events=[await outgoing.get()])
        finally:
            reader.cancel()
            self.streams.remove(outgoing)

    async def revoke_lease(self, request: Any, context: Any) -> lease_service_pb2.RevokeLeaseResponse:
        lease = self.leases.pop(request.lease_name)
        self.end(lease.name, lease_service_pb2.LEASE_END_REVOKED, request.reason)
        return lease_service_pb2.RevokeLeaseResponse(lease=lease)

    async def cancel_request(self, request: Any, context: Any) -> lease_service_pb2.CancelRequestResponse:
        return lease_service_pb2.CancelRequestResponse()

    async def explain_request(self, request: Any, context: Any) -> lease_service_pb2.ExplainRequestResponse:
        return lease_service_pb2.ExplainRequestResponse()

    async def reset_epochs(self, request: Any, context: Any) -> lease_service_pb2.ResetEpochsResponse:
        return lease_service_pb2.ResetEpochsResponse()

    async def reload_tracker(self, request: Any, context: Any) -> lease_service_pb2.ReloadTrackerResponse:
        return lease_service_pb2.ReloadTrackerResponse()

    async def set_health(self, request: Any, context: Any) -> lease_service_pb2.SetHealthResponse:
        return lease_service_pb2.SetHealthResponse()

    async def check_selector(self, request: Any, context: Any) -> fleet_service_pb2.CheckSelectorResponse:
        return fleet_service_pb2.CheckSelectorResponse(device_count=1)

    async def get_fleet(self, request: Any, context: Any) -> fleet_service_pb2.GetFleetResponse:
        return fleet_service_pb2.GetFleetResponse(snapshot=fleet_service_pb2.Snapshot(devices=[self.device]))

    async def watch_fleet(self, request: Any, context: Any) -> AsyncIterator[fleet_service_pb2.WatchFleetResponse]:
        yield fleet_service_pb2.WatchFleetResponse(snapshot=fleet_service_pb2.Snapshot(version=1))
        await asyncio.Event().wait()

    async def get_history(self, request: Any, context: Any) -> fleet_service_pb2.GetHistoryResponse:
        return fleet_service_pb2.GetHistoryResponse()

    async def get_usage(self, request: Any, context: Any) -> fleet_service_pb2.GetUsageResponse:
        return fleet_service_pb2.GetUsageResponse()

    def end(self, name: str, how: int, message: str = "") -> None:
        """Tell every client that a lease is over."""
        self.leases.pop(name, None)
        ended = lease_service_pb2.LeaseEnded(lease_name=name, end=how, message=message)  # type: ignore[arg-type]
        for outgoing in self.streams:
            outgoing.put_nowait(lease_service_pb2.TrackerEvent(lease_ended=ended))

    async def _read(self, requests: Any, outgoing: asyncio.Queue[lease_service_pb2.TrackerEvent]) -> None:
        async for request in requests:
            if request.HasField("hello"):
                listed = self.lists_leases if self.lists_leases is not None else list(self.leases.values())
                welcome = lease_service_pb2.Welcome(tracker_id="t", leases=listed)
                outgoing.put_nowait(lease_service_pb2.TrackerEvent(welcome=welcome))
            for event in request.events:
                self.seen.append(event)
                self._answer(event, outgoing)

    def _answer(
        self, event: lease_service_pb2.ClientEvent, outgoing: asyncio.Queue[lease_service_pb2.TrackerEvent]
    ) -> None:
        kind = event.WhichOneof("kind")
        if kind == "acquire" and self.grants:
            outgoing.put_nowait(lease_service_pb2.TrackerEvent(granted=self.grant(event.acquire)))
        elif kind == "acquire":
            queued = lease_pb2.PendingRequest(
                request_id=event.acquire.request_id, position=3, reason="devices/small is held by bob@host"
            )
            outgoing.put_nowait(lease_service_pb2.TrackerEvent(queued=queued))
        elif kind == "renew" and self.renews:
            lease = self.leases.get(event.renew.lease_name)
            if lease is None:
                self.end(event.renew.lease_name, lease_service_pb2.LEASE_END_UNKNOWN)
                return
            renewed = lease_service_pb2.Renewed(lease=lease, token=self._token(lease))
            outgoing.put_nowait(lease_service_pb2.TrackerEvent(renewed=renewed))
        elif kind == "release":
            self.end(event.release.lease_name, lease_service_pb2.LEASE_END_RELEASED)

    def grant(self, acquire: lease_pb2.Acquire) -> lease_pb2.Granted:
        number = next(self._numbers)
        lease = lease_pb2.Lease(name=f"leases/{number}", device_name=self.device.name, epoch=number)
        self.leases[lease.name] = lease
        return lease_pb2.Granted(
            request_id=acquire.request_id, lease=lease, token=self._token(lease), device=self.device
        )

    def _token(self, lease: lease_pb2.Lease) -> lease_pb2.Token:
        now_sec = time.time()
        claims = lease_pb2.LeaseClaims(
            lease_name=lease.name,
            device_name=lease.device_name,
            epoch=lease.epoch,
            issued_at=timestamp(now_sec),
            expires_at=timestamp(now_sec + self.ttl_sec),
        )
        return lease_pb2.Token(claims=claims.SerializeToString(), signature=b"s")

    def kinds(self) -> list[str]:
        """Return the kinds of the clients' events, in order."""
        return [str(event.WhichOneof("kind")) for event in self.seen]


def token_of(context: Any) -> bytes:
    return next(bytes(value) for key, value in context.invocation_metadata() if key == TOKEN_HEADER)


@contextlib.asynccontextmanager
async def serving(port: int = 0, *, role: Role | None = None, **services: object) -> AsyncGenerator[str, None]:
    """Serve some of lease, fleet and session services on 127.0.0.1 and yield the address."""
    modules = {"lease": lease_service_pb2, "fleet": fleet_service_pb2, "session": session_service_pb2}
    server = make_server()
    for name, servicer in services.items():
        add_service(server, modules[name].DESCRIPTOR.services_by_name[f"{name.title()}Service"], servicer)
    try:
        role = role or (Role.AGENT if "session" in services else Role.TRACKER)
        bound = bind(server, "127.0.0.1", port, security(role), what="the test")
        if role is Role.TRACKER:
            know_tracker(f"127.0.0.1:{bound}")
        await server.start()
        yield f"127.0.0.1:{bound}"
    finally:
        await server.stop(None)


@contextlib.asynccontextmanager
async def leased() -> AsyncGenerator[Device, None]:
    """Hold the device of a small fleet."""
    async with (
        small_fleet() as (address, _, _),
        aio.connect(address) as client,
        client.acquire("simulated") as device,
    ):
        yield device


@contextlib.asynccontextmanager
async def small_fleet() -> AsyncGenerator[tuple[str, SmallTracker, SmallAgent], None]:
    """Serve a tracker and an agent; yields the tracker's address and both."""
    agent = SmallAgent()
    async with serving(session=agent) as agent.address:
        tracker = SmallTracker(agent.address)
        async with serving(lease=tracker, fleet=tracker) as address:
            yield address, tracker, agent
