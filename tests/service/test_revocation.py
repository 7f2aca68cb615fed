"""Revocation of members: a revoked key loses its leases and streams, and is refused afterwards."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import grpc.aio
import pytest
from google.protobuf.message import Message

import fleet.aio
from device_agents.serving.membership import Membership
from fleet.client.aio import Fleet
from fleet.client.identity_calls import IdentityCalls
from fleet.errors import InvalidRequest, KeyRevoked, LeaseRevoked, NotAllowed, TrackerUnavailable
from fleet.identity.certificates import CERTIFICATE_LIFE, make_key, own_key_id
from fleet.identity.credentials import Credentials
from fleet.identity.roles import Role
from fleet.identity.store import CredentialStore
from fleet.testing import LeaseStream, SimulatedAgent, eventually, serve_tracker
from fleet.testing.identity import account_proof, credentials
from fleet.tracker.core.records import TrackerLimits
from fleet.v1 import fleet_service_pb2
from fleet.v1 import identity_service_pb2 as pb
from fleet.wire.joining import join
from fleet.wire.rpc import from_rpc_error, make_channel
from fleet.wire.stubs import fleet_service_stub, identity_service_stub
from tests.service.identity_parts import get_fleet


@asynccontextmanager
async def client_of(
    proof: Credentials, address: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Fleet]:
    """Connect as another account with these credentials."""
    CredentialStore(folder).save(address, proof)
    with monkeypatch.context() as patch:
        patch.setenv("FLEET_CREDENTIALS_DIR", str(folder))
        client = fleet.aio.connect(address)
        await client
    try:
        yield client
    finally:
        await client.close()


async def test_revoking_a_member_ends_its_leases_and_requests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its lease goes to the next client in line, not to its own request; it gets the reason, and is refused
    afterwards.
    """
    lost = credentials(Role.USER, make_key())
    async with (
        serve_tracker() as served,
        SimulatedAgent(served.address, ["devices/board"]) as agent,
        client_of(lost, served.address, tmp_path, monkeypatch) as client,
        LeaseStream(served.address, "greedy", proof=lost) as greedy,
        LeaseStream(served.address, "other") as other,
        IdentityCalls(served.address) as admin,
    ):
        device = await client.acquire_device("simulated")
        greedy.acquire("mine too", "simulated")
        await eventually(lambda: "mine too" in greedy.queued)
        other.acquire("next", "simulated")
        await eventually(lambda: "next" in other.queued)

        done = await admin.revoke(own_key_id(lost.key_pem)[:8], reason="laptop lost")

        assert (device.lease.name,) == done.ended_leases
        await eventually(lambda: device.ended is not None)
        assert isinstance(device.ended, KeyRevoked | LeaseRevoked)
        granted = await eventually(lambda: other.granted.get("next"))
        assert agent.fences["devices/board"] < granted.lease.epoch
        await eventually(lambda: greedy.error)
        assert {} == greedy.granted

        async def refusal() -> KeyRevoked | None:
            try:
                await client.acquire_device("simulated", wait_timeout_sec=0.0)
            except KeyRevoked as error:
                return error
            except TrackerUnavailable:
                return None
            raise AssertionError("a revoked key was granted a device")

        assert "laptop lost" in str(await eventually(refusal))
        with pytest.raises(KeyRevoked):
            await LeaseStream(served.address, "again", proof=lost).open()


@pytest.mark.parametrize(
    ("rpc", "request_"),
    [
        ("IdentityService/CreateJoinToken", pb.CreateJoinTokenRequest(role=pb.MEMBER_ROLE_ADMIN)),
        ("FleetService/WatchFleet", fleet_service_pb2.WatchFleetRequest()),
    ],
    ids=["unary", "stream"],
)
async def test_a_call_that_waited_for_its_request_is_refused(rpc: str, request_: Message) -> None:
    """A call let in before the revocation is refused with its first message; an admin could otherwise readmit
    itself.
    """
    lost = credentials(Role.ADMIN, make_key())
    key_id = own_key_id(lost.key_pem)
    async with (
        serve_tracker(limits=TrackerLimits(hello_sec=60.0)) as served,
        make_channel(served.address, lost) as channel,
        IdentityCalls(served.address) as admin,
    ):
        call = channel.calls.stream_stream(f"/fleet.v1.{rpc}")()
        await eventually(lambda: key_id in {each.key_id for each in served.tracker.members.all()})

        await admin.revoke(key_id)
        await call.write(request_.SerializeToString())

        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
    assert isinstance(from_rpc_error(caught.value, TrackerUnavailable), KeyRevoked)


async def test_a_revoked_agent_serves_no_more_and_its_names_are_free() -> None:
    """Its stream and the lease of its device end; another agent may have the device's name, it itself never again."""
    stolen = make_key()
    async with (
        serve_tracker() as served,
        SimulatedAgent(served.address, ["devices/board"], key_pem=stolen) as agent,
        LeaseStream(served.address, "holder") as holder,
        IdentityCalls(served.address) as admin,
    ):
        lease = (await holder.grant("r", "simulated")).lease

        done = await admin.revoke(own_key_id(stolen))

        assert ((lease.name,), ("devices/board",)) == (done.ended_leases, done.freed_devices)
        await eventually(lambda: lease.name in holder.ended)
        await eventually(lambda: agent.error)
        with pytest.raises(KeyRevoked):
            await SimulatedAgent(served.address, ["devices/board"], agent_id="again", key_pem=stolen).open()
        async with SimulatedAgent(served.address, ["devices/board"], agent_id="new", key_pem=make_key()):
            assert served.tracker.state.devices["devices/board"].is_attached


async def test_a_revoked_agent_that_is_given_a_token_joins_with_another_key(tmp_path: Path) -> None:
    """No file has to be removed on the board; the tracker treats it as a new agent."""
    async with serve_tracker() as served, IdentityCalls(served.address) as admin:
        keys = []
        for _ in range(2):
            token, _invitation = await admin.invite(Role.AGENT, ttl_sec=600.0)
            membership = Membership(tmp_path, served.address, token=token)
            membership.load()
            await membership.join()
            keys.append(own_key_id(membership.credentials().key_pem))
            async with await membership.channel() as channel:
                await get_fleet(channel)
            if len(keys) == 1:
                await admin.revoke(keys[0])

    assert keys[0] != keys[1]


async def test_a_revoked_key_stays_out_over_restarts_whatever_it_shows() -> None:
    """It cannot renew its certificate or join with a new token; its owner can join with another key."""
    async with serve_tracker() as served, IdentityCalls(served.address) as admin:
        token, _ = await admin.invite(Role.USER, ttl_sec=600.0)
        member, _ = await join(served.address, token, name="alice@laptop")
        (alice,) = [each for each in await admin.members() if each.name == "alice@laptop"]
        assert own_key_id(member.key_pem) == alice.key_id
        await admin.revoke(alice.key_id)
        await served.restart()

        async with make_channel(served.address, member) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await identity_service_stub(channel).renew_certificate(pb.RenewCertificateRequest(), timeout=60.0)
        assert isinstance(from_rpc_error(caught.value, TrackerUnavailable), KeyRevoked)
        async with IdentityCalls(served.address) as again:
            token, _ = await again.invite(Role.USER, ttl_sec=600.0)
            with pytest.raises(KeyRevoked):
                await join(served.address, token, name="alice@laptop", key_pem=member.key_pem)
            await join(served.address, token, name="alice@laptop")
            is_member = [each.revoked_at_sec is None for each in await again.members() if each.name == "alice@laptop"]
        assert [True, False] == is_member


async def test_only_an_admin_revokes_and_not_itself() -> None:
    """Users and agents may not revoke, and admins cannot lock themselves out; each try is in the audit log."""
    key = make_key()
    async with serve_tracker() as served, IdentityCalls(served.address) as admin:
        for role in (Role.USER, Role.AGENT):
            async with make_channel(served.address, credentials(role, key)) as channel:
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await identity_service_stub(channel).revoke_member(
                        pb.RevokeMemberRequest(key_id="0" * 40), timeout=60.0
                    )
                assert type(from_rpc_error(caught.value, TrackerUnavailable)) is NotAllowed
        proof = account_proof(served.address)
        assert isinstance(proof, Credentials)
        with pytest.raises(InvalidRequest, match="another admin"):
            await admin.revoke(own_key_id(proof.key_pem))
        with pytest.raises(InvalidRequest, match="control characters"):
            await admin.revoke(own_key_id(key), reason="left\x1b[2J")
        await admin.revoke(own_key_id(key), reason="left")

        entries = [
            (entry.role, entry.outcome)
            for entry in await admin.audit_entries(100)
            if entry.action.endswith("RevokeMember")
        ]
    refused, bad, ok = "NotAllowed", "InvalidRequest", "ok"
    assert [("user", refused), ("agent", refused), ("admin", bad), ("admin", bad), ("admin", ok)] == entries


async def test_the_end_of_a_stream_by_revocation_is_audited() -> None:
    """The log has the stream's opening, its end and the refused one after it, each with the key."""
    lost = credentials(Role.USER, make_key())
    key_id = own_key_id(lost.key_pem)
    async with (
        serve_tracker() as served,
        LeaseStream(served.address, "one", proof=lost) as stream,
        IdentityCalls(served.address) as admin,
    ):
        await admin.revoke(key_id)
        await eventually(lambda: stream.error)
        with pytest.raises(KeyRevoked):
            await LeaseStream(served.address, "one", proof=lost).open()

        async def outcomes() -> list[tuple[str, str]]:
            entries = [entry for entry in await admin.audit_entries(100) if entry.key_id == key_id]
            return [(entry.subject, entry.outcome) for entry in entries if entry.action == "LeaseService.OpenLeases"]

        assert [('{"note": "tester@here"}', "ok"), ("", "KeyRevoked"), ("", "KeyRevoked")] == await outcomes()


async def test_an_agents_stream_is_audited_with_its_devices() -> None:
    """The log has the names of its devices, at most the first 20, and none of their other data; refused streams are
    logged, too.
    """
    names = [f"devices/{number}" for number in range(22)]
    async with (
        serve_tracker() as served,
        SimulatedAgent(served.address, names, key_pem=make_key()),
        IdentityCalls(served.address) as admin,
    ):
        with pytest.raises(NotAllowed):
            await SimulatedAgent(served.address, names[:1], agent_id="thief", key_pem=make_key()).open()

        entries = [entry for entry in await admin.audit_entries(100) if entry.action == "AgentService.Attach"]
    told = [(json.loads(entry.subject), entry.outcome) for entry in entries]
    assert {"address": "127.0.0.1:1", "devices": names[:20], "more": 2} == told[0][0]
    assert ({"address": "127.0.0.1:1", "devices": names[:1]}, "NotAllowed") == told[1]


async def test_no_stream_outlives_the_certificate_that_it_was_opened_with() -> None:
    """Streams of members, watchers and agents end with their certificate; those of newer certificates go on."""
    async with (
        serve_tracker() as served,
        SimulatedAgent(served.address, ["devices/board"], key_pem=make_key()) as agent,
        LeaseStream(served.address, "one", proof=credentials(Role.USER, make_key())) as stream,
        make_channel(served.address, credentials(Role.USER, make_key())) as channel,
    ):
        watching = fleet_service_stub(channel).watch_fleet(fleet_service_pb2.WatchFleetRequest())
        assert (await watching.read()).snapshot.devices  # type: ignore[union-attr]
        ends_at_sec = time.time() + CERTIFICATE_LIFE.total_seconds()

        served.tracker.guard.streams.end_expired(ends_at_sec - 3600.0)
        assert (await stream.grant("still here", "simulated")).lease.name
        served.tracker.guard.streams.end_expired(ends_at_sec + 3600.0)

        await eventually(lambda: agent.error and stream.error)
        await eventually(watching.done)
        assert await watching.code() is not grpc.StatusCode.OK
        async with LeaseStream(served.address, "one", proof=credentials(Role.USER, make_key())):
            assert agent.error is not None
