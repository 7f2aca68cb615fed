"""The tracker: messages of every rpc, from members of every role."""

from __future__ import annotations

from contextlib import AsyncExitStack

import grpc.aio

from fleet.domain.jobs import JobStatus
from fleet.identity.certificates import make_request
from fleet.identity.credentials import Credentials
from fleet.identity.join_code import commitment_to
from fleet.identity.roles import Role
from fleet.testing import serve_tracker
from fleet.testing.identity import credentials, key
from fleet.tracker.core.records import TrackerLimits
from fleet.v1 import (
    agent_service_pb2,
    approval_service_pb2,
    booking_service_pb2,
    device_pb2,
    fleet_service_pb2,
    identity_service_pb2,
    lease_pb2,
    lease_service_pb2,
    poison_service_pb2,
    replica_service_pb2,
)
from fleet.wire import stubs
from fleet.wire.peers import Guard
from fleet.wire.snapshots import job_to_proto
from fleet.wire.times import duration, timestamp
from tests.fuzz.calls import BETWEEN, MOST_ANSWERS, Caller, Server
from tests.fuzz.loops import ServerLoop
from tests.fuzz.target import Target

_LIVES = 500
"""Inputs per tracker; then another one starts, without their leftovers."""

TRACKER_RPCS = (
    *("LeaseService/OpenLeases", "AgentService/Attach", "LeaseService/RevokeLease", "LeaseService/ResetEpochs"),
    *("LeaseService/ReloadTracker", "FleetService/GetFleet", "FleetService/GetHistory", "IdentityService/Join"),
    *("IdentityService/CreateJoinToken", "IdentityService/RevokeJoinToken", "IdentityService/UnbindDevice"),
    *("IdentityService/ListAuditEntries", "IdentityService/ListJoinTokens"),
    *("IdentityService/ListRevokedKeys", "IdentityService/ListMembers", "IdentityService/RevokeMember"),
    *("IdentityService/RenewCertificate", "LeaseService/CancelRequest"),
    *("FleetService/CheckSelector", "FleetService/WatchFleet", "LeaseService/SetHealth"),
    *("LeaseService/ExplainRequest", "FleetService/GetUsage"),
    *("BookingService/Book", "BookingService/ListBookings", "BookingService/CancelBooking"),
    *("PoisonService/ListPoison", "PoisonService/ForgetPoison"),
    *("ApprovalService/AskToJoin", "ApprovalService/ListPendingAgents"),
    *("ApprovalService/ApproveAgent", "ApprovalService/RefuseAgent"),
    *("ReplicaService/GetTracker", "ReplicaService/Follow", "ReplicaService/Promote"),
)
"""Rpcs by the first byte of an input: new ones come last, or the corpus changes its meaning."""
_ENDLESS = ("FleetService/WatchFleet", "ApprovalService/AskToJoin", "ReplicaService/Follow")
"""Streams that wait for others, of which only the first answer is awaited."""


async def open_tracker(stack: AsyncExitStack, server: grpc.aio.Server, guard: Guard | None = None) -> None:
    """Have a server answer for a tracker of its own."""
    served = await stack.enter_async_context(serve_tracker(limits=TrackerLimits(hello_sec=1.0)))
    tracker = served.tracker
    stubs.add_lease_service(server, tracker.lease_servicer, guard)
    stubs.add_agent_service(server, tracker.agent_servicer, guard)
    stubs.add_fleet_service(server, tracker.fleet_servicer, guard)
    stubs.add_booking_service(server, tracker.booking_servicer, guard)
    stubs.add_poison_service(server, tracker.poison_servicer, guard)
    stubs.add_identity_service(server, tracker.identity_servicer, guard)
    stubs.add_approval_service(server, tracker.approval_servicer, guard)
    stubs.add_replica_service(server, tracker.replica_servicer, guard)


class _Tracker:
    """A tracker in this process; its services are called directly."""

    def __init__(self) -> None:
        self._loop: ServerLoop | None = None
        self._stack = AsyncExitStack()
        self._server = Server()
        self._inputs = 0
        self._proofs: dict[Role, Credentials] = {}

    def call(self, content: bytes) -> float:
        """Call the rpc that the first byte selects, with the messages that follow."""
        rpc = TRACKER_RPCS[(content[0] if content else 0) % len(TRACKER_RPCS)]
        role = Role.AGENT if rpc.startswith("Agent") else Role.ADMIN
        loop = self._ready()
        caller, messages = Caller(proof=self._proofs[role]), content[1:].split(BETWEEN)
        most = 1 if rpc in _ENDLESS else MOST_ANSWERS
        return loop.run(self._server.call(f"fleet.v1.{rpc}", messages, caller, most_answers=most))

    def close(self) -> None:
        if self._loop is not None:
            self._loop.run(self._stack.aclose())
            self._loop.close()
        self._loop, self._inputs = None, 0

    def _ready(self) -> ServerLoop:
        loop = self._loop = self._loop or ServerLoop()
        if self._inputs % _LIVES == 0:
            loop.run(self._stack.aclose())
            loop.run(self._start())
        self._inputs += 1
        return loop

    async def _start(self) -> None:
        self._proofs = {role: credentials(role) for role in (Role.ADMIN, Role.AGENT)}
        self._server = Server()
        await open_tracker(self._stack, self._server)  # type: ignore[arg-type]


def _of(rpc: str, *messages: bytes) -> bytes:
    return bytes([TRACKER_RPCS.index(rpc)]) + BETWEEN.join(messages)


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
    found = agent_service_pb2.FoundPoison(digest="sha256:" + 64 * "0", device_name="devices/a")
    again = agent_service_pb2.AttachRequest(reports=[report], found_poison=[found])
    join = identity_service_pb2.JoinRequest(
        secret=bytes(16), certificate_request=make_request(key(Role.USER)), name="n"
    )
    drain = lease_service_pb2.SetHealthRequest(
        selector="name=a", state=device_pb2.HEALTH_STATE_DRAINING, reason="fan", until=timestamp(2e6)
    )
    book = booking_service_pb2.BookRequest(
        request_id="b", selector="cpu", device_count=1, starts_at=timestamp(2e6), ends_at=timestamp(2.1e6)
    )
    cancel = booking_service_pb2.CancelBookingRequest(name="bookings/a")
    ask = approval_service_pb2.AskToJoinRequest(
        certificate_request=make_request(key(Role.USER)), name="n", commitment=commitment_to(bytes(16))
    )
    opened = approval_service_pb2.AskToJoinRequest(number=bytes(16))
    approve = approval_service_pb2.ApproveAgentRequest(code="ABCD-EFGH-2345", name="n")
    refuse = approval_service_pb2.RefuseAgentRequest(code="ABCD-EFGH-2345", reason="r")
    create = identity_service_pb2.CreateJoinTokenRequest(role=1, ttl=duration(60.0), note="n")
    return [
        _of("LeaseService/OpenLeases", hello.SerializeToString(), events.SerializeToString()),
        _of("AgentService/Attach", attach.SerializeToString(), again.SerializeToString()),
        _of("LeaseService/RevokeLease", lease_service_pb2.RevokeLeaseRequest(lease_name="a").SerializeToString()),
        _of("LeaseService/ResetEpochs", lease_service_pb2.ResetEpochsRequest(device_name="a").SerializeToString()),
        _of("LeaseService/ReloadTracker", b""),
        _of("LeaseService/SetHealth", drain.SerializeToString()),
        _of("FleetService/GetHistory", fleet_service_pb2.GetHistoryRequest(device_name="a").SerializeToString()),
        _of("IdentityService/Join", join.SerializeToString()),
        _of("IdentityService/CreateJoinToken", create.SerializeToString()),
        _of("IdentityService/UnbindDevice", b"\x0a\x09devices/a"),
        _of("FleetService/GetFleet", b""),
        _of(
            "IdentityService/RevokeMember", identity_service_pb2.RevokeMemberRequest(key_id=8 * "0").SerializeToString()
        ),
        _of("LeaseService/CancelRequest", lease_service_pb2.CancelRequestRequest(request_id="r").SerializeToString()),
        _of("FleetService/CheckSelector", fleet_service_pb2.CheckSelectorRequest(selector="cpu").SerializeToString()),
        _of("FleetService/WatchFleet", b""),
        _of("LeaseService/ExplainRequest", lease_service_pb2.ExplainRequestRequest(request_id="r").SerializeToString()),
        _of("BookingService/Book", book.SerializeToString()),
        _of("BookingService/ListBookings", b""),
        _of("BookingService/CancelBooking", cancel.SerializeToString()),
        _of("PoisonService/ListPoison", b""),
        _of(
            "PoisonService/ForgetPoison",
            poison_service_pb2.ForgetPoisonRequest(digest="sha256:" + 64 * "0").SerializeToString(),
        ),
        _of("FleetService/GetUsage", fleet_service_pb2.GetUsageRequest(by=1, since=duration(60.0)).SerializeToString()),
        _of("ApprovalService/AskToJoin", ask.SerializeToString(), opened.SerializeToString()),
        _of("ApprovalService/ListPendingAgents", b""),
        _of("ApprovalService/ApproveAgent", approve.SerializeToString()),
        _of("ApprovalService/RefuseAgent", refuse.SerializeToString()),
        _of("ReplicaService/GetTracker", replica_service_pb2.GetTrackerRequest(proof=bytes(72)).SerializeToString()),
        _of("ReplicaService/Follow", b"", replica_service_pb2.FollowRequest(address=":1").SerializeToString()),
        _of("ReplicaService/Promote", b""),
    ]


_called = _Tracker()
TRACKER = [
    Target(
        name="tracker_calls",
        run=_called.call,
        close=_called.close,
        seeds=_calls,
        words=(BETWEEN, b"devices/", b"leases/", b"cpu", b"name=", b":9", b"[::1]:9"),
    )
]
