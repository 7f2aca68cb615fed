"""A real agent beside a tracker that only attaches, and a holder that speaks the data path."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc.aio
import psutil
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from device_agents.agent import Agent, Home
from device_agents.config import make_drivers, parse_config
from device_agents.driver import Driver
from device_agents.serving.timing import USUAL, Timing
from fleet.base.digests import digest_of
from fleet.base.private_files import write_private
from fleet.domain.tokens import Claims, TokenSigner
from fleet.errors import DeviceUnreachable
from fleet.identity.credentials import agent_name
from fleet.identity.roles import Role
from fleet.testing import eventually
from fleet.testing.identity import credentials, key_id, know_tracker, security
from fleet.v1 import agent_service_pb2, measurement_pb2, session_service_pb2
from fleet.wire.rpc import Stub, add_service, bind, from_rpc_error, make_channel, make_server
from fleet.wire.times import duration, timestamp
from fleet.wire.tokens import TOKEN_HEADER, sign_claims
from tests.programs import alive

SIMULATED = {"devices": [{"driver": "simulated", "name": "sim", "time_scale": 0.0}]}
DEVICE = "devices/sim"


class StubTracker:
    """Serves Attach, signs tokens, fences. Its clock is the machine's plus `clock_ahead_sec`."""

    def __init__(self, clock_ahead_sec: float = 0.0) -> None:
        self.signer = TokenSigner(Ed25519PrivateKey.generate())
        self.clock_ahead_sec = clock_ahead_sec
        self.port = 0
        self.hellos: list[agent_service_pb2.AgentHello] = []
        self.reports: dict[str, agent_service_pb2.DeviceReport] = {}
        self._outgoing: list[asyncio.Queue[agent_service_pb2.AttachResponse]] = []
        self._server = make_server()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def now_sec(self) -> float:
        return time.time() + self.clock_ahead_sec

    async def start(self) -> None:
        self._server = make_server()
        add_service(self._server, agent_service_pb2.DESCRIPTOR.services_by_name["AgentService"], self)
        self.port = bind(self._server, "127.0.0.1", self.port, security(Role.TRACKER), what="the stub tracker")
        know_tracker(self.address)
        await self._server.start()

    async def stop(self) -> None:
        await self._server.stop(None)

    async def attach(self, requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        queue: asyncio.Queue[agent_service_pb2.AttachResponse] = asyncio.Queue()
        self._outgoing.append(queue)
        reading = asyncio.create_task(self._read(requests))
        try:
            yield agent_service_pb2.AttachResponse(
                tracker_time=timestamp(self.now_sec()), public_key=self.signer.public_key
            )
            while True:
                response = await queue.get()
                response.tracker_time.CopyFrom(timestamp(self.now_sec()))
                yield response
        finally:
            reading.cancel()
            self._outgoing.remove(queue)

    def fence(self, device_name: str, epoch: int) -> None:
        for queue in self._outgoing:
            fences = [agent_service_pb2.Fence(device_name=device_name, epoch=epoch)]
            queue.put_nowait(agent_service_pb2.AttachResponse(fences=fences))

    def token(
        self, epoch: int, *, ttl_sec: float = 300.0, device: str = DEVICE, signer: TokenSigner | None = None
    ) -> bytes:
        now = self.now_sec()
        claims = Claims(
            lease_name=f"leases/{epoch}",
            device_name=device,
            epoch=epoch,
            holder="me@here",
            issued_at_sec=now,
            expires_at_sec=now + ttl_sec,
            holder_key_id=key_id(Role.USER),
        )
        return sign_claims(claims, signer or self.signer).SerializeToString()

    async def _read(self, requests: AsyncIterator[agent_service_pb2.AttachRequest]) -> None:
        async for request in requests:
            if request.HasField("hello"):
                self.hellos.append(request.hello)
            for report in request.reports:
                self.reports[report.device_name] = report


class Holder:
    """Uses a device with a token. Raises the agent's errors."""

    def __init__(self, port: int, token: bytes | None, header: str = TOKEN_HEADER) -> None:
        self._channel = make_channel(f"127.0.0.1:{port}", credentials(Role.USER), agent_name(key_id(Role.AGENT)))
        self.stub = Stub(self._channel, session_service_pb2.DESCRIPTOR.services_by_name["SessionService"])
        self.token = token
        self.header = header

    @property
    def metadata(self) -> tuple[tuple[str, bytes], ...]:
        return ((self.header, self.token),) if self.token is not None else ()

    async def close(self) -> None:
        await self._channel.close()

    async def open(self) -> int:
        response = await self._do(self.stub.open_session, session_service_pb2.OpenSessionRequest())
        return int(response.worker_pid)

    async def close_session(self) -> None:
        await self._do(self.stub.close_session, session_service_pb2.CloseSessionRequest())

    async def make_upload_ticket(self) -> bytes:
        ticket: bytes = (
            await self._do(self.stub.make_upload_ticket, session_service_pb2.MakeUploadTicketRequest())
        ).ticket
        return ticket

    async def find_missing(self, digests: Sequence[str]) -> list[str]:
        request = session_service_pb2.FindMissingRequest(digests=digests)
        return list((await self._do(self.stub.find_missing, request)).digests)

    async def put(self, content: bytes, *, digest: str | None = None, size_bytes: int | None = None) -> str:
        digest = digest or digest_of(content)
        size = len(content) if size_bytes is None else size_bytes
        pieces = [content[start : start + 65536] for start in range(0, len(content), 65536)] or [b""]
        requests = [session_service_pb2.PutArtifactRequest(chunk=piece) for piece in pieces]
        requests[0].digest, requests[0].size_bytes = digest, size
        await self.upload(requests)
        return digest

    async def upload(self, requests: Sequence[session_service_pb2.PutArtifactRequest]) -> list[str]:
        """Upload the artifacts of these messages in one call."""
        call = self.stub.put_artifact(_each(requests), metadata=self.metadata)
        async with _as_the_agent_said():
            return list((await call).digests)

    async def measure(self, requests: Iterable[measurement_pb2.MeasureRequest]) -> list[measurement_pb2.Measurement]:
        """Return all results; raise when the rpc failed."""
        results: list[measurement_pb2.Measurement] = []
        await self.measure_into(results, requests)
        return results

    async def measure_into(
        self,
        results: list[measurement_pb2.Measurement],
        requests: Iterable[measurement_pb2.MeasureRequest],
    ) -> None:
        call = self.stub.measure(_each(list(requests)), metadata=self.metadata)
        async with _as_the_agent_said():
            async for response in call:
                results.append(response.measurement)  # noqa: PERF401 - kept when the rpc fails half way

    async def run(self, content: bytes, **fields: Any) -> measurement_pb2.Measurement:
        """Put and measure one candidate."""
        digest = await self.put(content)
        return (await self.measure([request_for(digest, **fields)]))[0]

    async def call(self, request: session_service_pb2.CallRequest) -> session_service_pb2.CallResponse:
        response: session_service_pb2.CallResponse = await self._do(self.stub.call, request)
        return response

    async def prove(self, request: session_service_pb2.ProveRequest) -> session_service_pb2.ProveResponse:
        response: session_service_pb2.ProveResponse = await self._do(self.stub.prove, request)
        return response

    async def _do(self, method: Any, request: Any) -> Any:
        try:
            return await method(request, metadata=self.metadata)
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error, DeviceUnreachable) from None


def admit(state_dir: Path) -> None:
    """Make an agent a member of the stub tracker's fleet, as if it had joined before."""
    write_private(state_dir / "identity.pem", credentials(Role.AGENT).to_pem())


def request_for(digest: str, *, timeout_sec: float = 60.0, **fields: Any) -> measurement_pb2.MeasureRequest:
    return measurement_pb2.MeasureRequest(artifact_digest=digest, timeout=duration(timeout_sec), **fields)


def kind_of(measurement: measurement_pb2.Measurement) -> str:
    return measurement_pb2.ErrorKind.Name(measurement.error).removeprefix("ERROR_KIND_")


def marked_processes(text: str) -> list[int]:
    """Return the processes with `text` in their command line."""
    others = [process for process in psutil.process_iter(["cmdline"]) if process.pid != os.getpid()]
    marked = [process for process in others if any(text in word for word in process.info["cmdline"] or ())]
    return [process.pid for process in alive(marked)]


class Bench:
    """One tracker stub, one agent, and holders."""

    def __init__(
        self,
        tracker: StubTracker,
        state_dir: Path,
        timing: Timing = USUAL,
        drivers: Sequence[Driver] | None = None,
    ) -> None:
        self.tracker = tracker
        self.timing = timing
        self.drivers = drivers
        self.state_dir = state_dir
        self.agent: Agent | None = None
        self._holders: list[Holder] = []

    async def start_agent(self, config: dict[str, Any], *, attached: bool = True) -> Agent:
        parsed = parse_config(config)
        home = Home(tracker=self.tracker.address, state_dir=self.state_dir)
        admit(self.state_dir)
        drivers = make_drivers(parsed) if self.drivers is None else self.drivers
        self.agent = Agent(parsed, drivers, home, timing=self.timing)
        known = len(self.tracker.hellos)
        await self.agent.open()
        if attached:
            assert await self.agent.wait_attached(60.0)
            await eventually(lambda: len(self.tracker.hellos) > known)  # the tracker's answer may come before it reads
        return self.agent

    async def stop_agent(self) -> None:
        if self.agent is not None:
            await self.agent.close()
            self.agent = None

    def given_artifacts(self) -> list[Path]:
        """Return the artifacts that workers have received since their start."""
        return list(self.state_dir.glob("workers/*/artifacts/*"))

    def holder(self, token: bytes | None, header: str = TOKEN_HEADER) -> Holder:
        assert self.agent is not None
        holder = Holder(self.agent.port, token, header)
        self._holders.append(holder)
        return holder

    def holding(self, epoch: int, **fields: Any) -> Holder:
        return self.holder(self.tracker.token(epoch, **fields))

    async def close(self) -> None:
        for holder in self._holders:
            await holder.close()
        await self.stop_agent()
        await self.tracker.stop()


@asynccontextmanager
async def serve_bench(
    state_dir: Path,
    config: dict[str, Any] | None = None,
    *,
    clock_ahead_sec: float = 0.0,
    timing: Timing = USUAL,
    drivers: Sequence[Driver] | None = None,
) -> AsyncIterator[Bench]:
    """Serve an agent of simulated devices, or of `config`, or these drivers. At its end no process may be left."""
    tracker = StubTracker(clock_ahead_sec)
    await tracker.start()
    bench = Bench(tracker, state_dir, timing, drivers)
    try:
        await bench.start_agent(config or SIMULATED)
        yield bench
    finally:
        await bench.close()


@asynccontextmanager
async def _as_the_agent_said() -> AsyncIterator[None]:
    """Raise the agent's error."""
    try:
        yield
    except grpc.aio.AioRpcError as error:
        raise from_rpc_error(error, DeviceUnreachable) from None


async def _each(items: Sequence[Any]) -> AsyncIterator[Any]:
    for item in items:
        yield item
