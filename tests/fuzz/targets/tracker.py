"""The tracker's port: messages of every rpc, and bytes that are no HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from contextlib import AsyncExitStack

from fleet.domain.jobs import JobStatus
from fleet.identity.certificates import make_request
from fleet.identity.credentials import Credentials
from fleet.identity.roles import Role
from fleet.testing import serve_tracker
from fleet.testing.identity import credentials, key
from fleet.tracker.core.entries import TrackerLimits
from fleet.v1 import (
    agent_service_pb2,
    device_pb2,
    fleet_service_pb2,
    identity_service_pb2,
    lease_pb2,
    lease_service_pb2,
)
from fleet.wire import stubs
from fleet.wire.snapshots import job_to_proto
from fleet.wire.times import duration
from tests.fuzz.calls import BETWEEN, Caller, Server
from tests.fuzz.loops import ServerLoop
from tests.fuzz.target import Target

_LIVES = 500
"""Inputs of one tracker; then another one starts, without what these have left."""

_RPCS = (
    *("LeaseService/OpenLeases", "AgentService/Attach", "LeaseService/RevokeLease", "LeaseService/ResetEpochs"),
    *("FleetService/GetFleet", "FleetService/GetHistory", "IdentityService/Join"),
    *("IdentityService/CreateJoinToken", "IdentityService/RevokeJoinToken", "IdentityService/UnbindDevice"),
    *("IdentityService/ListAuditEntries", "IdentityService/ListJoinTokens"),
)
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


class _Tracker:
    """A tracker in this process, whose services are called directly."""

    def __init__(self) -> None:
        self._loop: ServerLoop | None = None
        self._stack = AsyncExitStack()
        self._server = Server()
        self._address = ""
        self._inputs = 0
        self._proofs: dict[Role, Credentials] = {}

    def call(self, content: bytes) -> float:
        """Call the rpc that the first byte says, with the messages that follow."""
        rpc = _RPCS[(content[0] if content else 0) % len(_RPCS)]
        role = Role.AGENT if rpc.startswith("Agent") else Role.ADMIN
        loop = self._ready()
        caller = Caller(proof=self._proofs[role])
        return loop.run(self._server.call(f"fleet.v1.{rpc}", content[1:].split(BETWEEN), caller))

    def connect(self, content: bytes) -> float:
        """Send bytes to its port, behind HTTP's preface or not, and see that it still answers."""
        return self._ready(is_plain=True).run(self._send(content))

    def close(self) -> None:
        if self._loop is not None:
            self._loop.run(self._stack.aclose())
            self._loop.close()
        self._loop, self._inputs = None, 0

    def _ready(self, *, is_plain: bool = False) -> ServerLoop:
        loop = self._loop = self._loop or ServerLoop()
        if self._inputs % _LIVES == 0:
            loop.run(self._stack.aclose())
            loop.run(self._start(is_plain=is_plain))
        self._inputs += 1
        return loop

    async def _start(self, *, is_plain: bool) -> None:
        self._proofs = {role: credentials(role) for role in (Role.ADMIN, Role.AGENT)}
        limits = TrackerLimits(hello_sec=1.0)
        served = await self._stack.enter_async_context(serve_tracker(limits=limits, is_plain=is_plain))
        tracker, self._server, self._address = served.tracker, Server(), served.address
        stubs.add_lease_service(self._server, tracker.lease_servicer)  # type: ignore[arg-type]
        stubs.add_agent_service(self._server, tracker.agent_servicer)  # type: ignore[arg-type]
        stubs.add_fleet_service(self._server, tracker.fleet_servicer)  # type: ignore[arg-type]
        stubs.add_identity_service(self._server, tracker.identity_servicer)  # type: ignore[arg-type]

    async def _send(self, content: bytes) -> None:
        host, _, port = self._address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        try:
            writer.write(content)
            with contextlib.suppress(OSError):  # it has hung up already
                writer.write_eof()
                while await reader.read(65536):
                    pass
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()


def _of(rpc: str, *messages: bytes) -> bytes:
    return bytes([_RPCS.index(rpc)]) + BETWEEN.join(messages)


def _calls() -> list[bytes]:
    hello = lease_service_pb2.OpenLeasesRequest(hello=lease_service_pb2.ClientHello(client_id="c", holder="me"))
    acquire = lease_pb2.Acquire(
        request_id="r", selector="cpu", ttl=duration(30.0), wait_timeout=duration(1.0), purpose="p", prefer="cpu", bid=1
    )
    job = JobStatus(name="jobs/1", title="t", holder="me", started_at_sec=1.0, trials_total=3)
    events = lease_service_pb2.OpenLeasesRequest(
        events=[
            lease_service_pb2.ClientEvent(acquire=acquire),
            lease_service_pb2.ClientEvent(renew=lease_service_pb2.Renew(lease_name="leases/1")),
            lease_service_pb2.ClientEvent(cancel=lease_service_pb2.Cancel(request_id="r")),
            lease_service_pb2.ClientEvent(release=lease_service_pb2.Release(lease_name="leases/1")),
            lease_service_pb2.ClientEvent(job=job_to_proto(job)),
        ]
    )
    inventory = device_pb2.Inventory(kind="cpu", labels={"arch": "x86_64"}, facts={"a": "b"})
    device = device_pb2.Device(name="devices/a", inventory=inventory)
    report = agent_service_pb2.DeviceReport(
        device_name="devices/a", is_healthy=True, telemetry=device_pb2.Telemetry(temp_c=40.0), highest_epoch=3
    )
    attach = agent_service_pb2.AttachRequest(
        hello=agent_service_pb2.AgentHello(agent_id="a", address=":9", devices=[device]), reports=[report]
    )
    again = agent_service_pb2.AttachRequest(reports=[report])
    join = identity_service_pb2.JoinRequest(
        secret=bytes(16), certificate_request=make_request(key(Role.USER)), name="n"
    )
    create = identity_service_pb2.CreateJoinTokenRequest(role=1, ttl=duration(60.0), note="n")
    return [
        _of("LeaseService/OpenLeases", hello.SerializeToString(), events.SerializeToString()),
        _of("AgentService/Attach", attach.SerializeToString(), again.SerializeToString()),
        _of("LeaseService/RevokeLease", lease_service_pb2.RevokeLeaseRequest(lease_name="a").SerializeToString()),
        _of("LeaseService/ResetEpochs", lease_service_pb2.ResetEpochsRequest(device_name="a").SerializeToString()),
        _of("FleetService/GetHistory", fleet_service_pb2.GetHistoryRequest(device_name="a").SerializeToString()),
        _of("IdentityService/Join", join.SerializeToString()),
        _of("IdentityService/CreateJoinToken", create.SerializeToString()),
        _of("IdentityService/UnbindDevice", b"\x0a\x09devices/a"),
        _of("FleetService/GetFleet", b""),
    ]


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def _connections() -> list[bytes]:
    headers = bytes.fromhex("838644") + b"\x1d/fleet.v1.FleetService/GetFlt"
    headers += bytes.fromhex("418a089d5c0b8170dc780f03") + b"\x5f\x10application/grpc"
    return [
        _PREFACE + _frame(4, 0, 0, b"") + _frame(1, 4, 1, headers) + _frame(0, 1, 1, bytes(5)),
        _PREFACE
        + _frame(4, 0, 0, struct.pack(">HI", 4, 65535))
        + _frame(6, 0, 0, bytes(8))
        + _frame(8, 0, 0, bytes(4)),
        bytes.fromhex("16030100050100000100") + bytes(40),
        b"GET / HTTP/1.1\r\nHost: here\r\n\r\n",
    ]


_called, _connected = _Tracker(), _Tracker()
TRACKER = [
    Target(
        name="tracker_calls",
        run=_called.call,
        close=_called.close,
        seeds=_calls,
        words=(BETWEEN, b"devices/", b"leases/", b"cpu", b"name=", b":9", b"[::1]:9"),
    ),
    Target(
        name="tracker_port",
        run=_connected.connect,
        close=_connected.close,
        seeds=_connections,
        words=(
            _PREFACE,
            _frame(4, 0, 0, b""),
            _frame(1, 5, 3, b""),
            _frame(7, 0, 0, bytes(8)),
            _frame(3, 0, 1, bytes(4)),
        ),
        quick_inputs=60,
    ),
]
