"""Authentication: impostors of devices, agents and trackers are refused."""

from __future__ import annotations

import datetime as dt
import logging
from pathlib import Path

import grpc.aio
import pytest

import fleet.aio
from fleet.base.private_files import write_private
from fleet.client.identity_calls import IdentityCalls
from fleet.errors import (
    DeviceUnreachable,
    NotAllowed,
    NotJoined,
)
from fleet.identity.certificates import (
    issue_own,
    make_authority,
    make_key,
    own_key_id,
)
from fleet.identity.credentials import Credentials, agent_name
from fleet.identity.roles import Role
from fleet.identity.store import CredentialStore
from fleet.testing import LeaseStream, SimulatedAgent, eventually, serve_tracker
from fleet.testing.identity import account_proof, authority, credentials
from fleet.v1 import session_service_pb2
from fleet.wire.rpc import from_rpc_error, make_channel
from fleet.wire.stubs import session_service_stub
from tests.service.identity_parts import nobody, serve_agent


async def test_a_stranger_cannot_take_a_devices_name_after_a_restart() -> None:
    """An audit showed the theft: the tracker comes back, a stranger attaches first, and gets tokens and artifacts.

    The name belongs to the key that attached it first. The stranger is an agent of the fleet, too: it is not enough.
    """
    async with serve_tracker() as served:
        true, name = make_key(), "devices/board"
        async with SimulatedAgent(served.address, [name], key_pem=true):
            pass
        await served.restart()

        with pytest.raises(NotAllowed, match="fleet tracker unbind devices/board"):
            await SimulatedAgent(served.address, [name], key_pem=make_key()).open()

        async with SimulatedAgent(served.address, [name], agent_id="started anew", key_pem=true):
            assert own_key_id(true) == served.tracker.state.devices[name].agent_key_id


async def test_a_stranger_ends_no_lease_by_attaching() -> None:
    """A new process of the same agent ends its earlier lease; another agent's must not."""
    async with (
        serve_tracker() as served,
        SimulatedAgent(served.address, ["devices/board"], key_pem=make_key()) as agent,
        LeaseStream(served.address, "client") as holder,
    ):
        granted = await holder.grant("r", "simulated")
        await agent.close()

        with pytest.raises(NotAllowed):
            await SimulatedAgent(served.address, ["devices/board"], agent_id="other", key_pem=make_key()).open()

        assert granted.lease.name in served.tracker.state.leases


@pytest.mark.slow
async def test_an_agent_refuses_peers_of_another_fleet(tmp_path: Path) -> None:
    """Certificates of another fleet and the public one are refused; other agents may call nothing."""
    elsewhere = make_authority(dt.datetime.now(dt.UTC))
    foreign = issue_own(elsewhere, make_key(), name="x", role=Role.ADMIN, now=dt.datetime.now(dt.UTC))
    async with serve_tracker() as served, serve_agent(served.address, tmp_path) as agent:
        assert await agent.wait_attached(60.0)
        address, name = f"127.0.0.1:{agent.port}", agent_name(agent.key_id)
        proofs = {
            "foreign": Credentials(
                key_pem=foreign.key_pem,
                certificate_pem=foreign.certificate_pem,
                authority_pem=authority().authority_pem,
            ),
            "stranger": nobody(),
            "agent": credentials(Role.AGENT, make_key()),
        }
        found = {}
        for who, proof in proofs.items():
            async with make_channel(address, proof, name) as channel:
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await session_service_stub(channel).open_session(
                        session_service_pb2.OpenSessionRequest(), timeout=60.0
                    )
                found[who] = type(from_rpc_error(caught.value, DeviceUnreachable))

    assert {"foreign": DeviceUnreachable, "stranger": DeviceUnreachable, "agent": NotAllowed} == found


@pytest.mark.slow
async def test_a_client_talks_to_no_other_agent_than_the_trackers(tmp_path: Path) -> None:
    """An impostor at the device's address, even one with a member's key, gets no token."""
    async with (
        serve_tracker() as served,
        serve_agent(served.address, tmp_path) as real,
        SimulatedAgent(served.address, ["devices/lured"], kind="lured", address=f"127.0.0.1:{real.port}"),
        fleet.aio.connect(served.address) as client,
        client.acquire("lured") as device,
    ):
        with pytest.raises(DeviceUnreachable):
            await device.open()


@pytest.mark.slow
async def test_a_duplicate_agent_name_is_refused_with_its_owner(tmp_path: Path) -> None:
    """The second agent's error names the owner of the name and the remedy; freed by an admin, it attaches by itself."""
    async with serve_tracker() as served:
        async with serve_agent(served.address, tmp_path / "first") as first:
            assert await first.wait_attached(60.0)
        async with serve_agent(served.address, tmp_path / "second") as second:
            with pytest.raises(
                NotAllowed, match=r"devices/sim belongs to the agent with the key .*fleet tracker unbind"
            ):
                await second.wait_attached(60.0)
            async with IdentityCalls(served.address) as admin:
                assert first.key_id == await admin.unbind("devices/sim")

            await eventually(lambda: served.tracker.members.keys.get("devices/sim") == second.key_id)


async def test_a_tracker_with_another_authority_is_not_believed(tmp_path: Path) -> None:
    """Clients pin the authority: a tracker that took the address, or lost its state, is reported as another one."""
    async with serve_tracker() as served:
        store, kept = CredentialStore(), account_proof(served.address)
        now = dt.datetime.now(dt.UTC)
        store.save(served.address, issue_own(make_authority(now), make_key(), name="me", role=Role.USER, now=now))
        try:
            with pytest.raises(NotJoined, match="is another one than these credentials are for"):
                await fleet.aio.connect(served.address, connect_timeout_sec=0.3)
        finally:
            store.save(served.address, kept)


@pytest.mark.slow
async def test_an_agent_attaches_to_no_other_tracker_than_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A tracker with another authority at the right address gets no data; the agent logs the mistake."""
    now = dt.datetime.now(dt.UTC)
    elsewhere = issue_own(make_authority(now), make_key(), name="board", role=Role.AGENT, now=now)
    write_private(tmp_path / "identity.pem", elsewhere.to_pem())
    async with serve_tracker() as served:
        monkeypatch.setenv("FLEET_CREDENTIALS_DIR", str(tmp_path / "credentials"))
        with caplog.at_level(logging.WARNING, logger="device_agents"):
            async with serve_agent(served.address, tmp_path):
                await eventually(lambda: "is another one than these credentials are for" in reasons(caplog), 30.0)

        assert {} == served.tracker.state.devices


def reasons(caplog: pytest.LogCaptureFixture) -> str:
    return " ".join(str(getattr(record, "reason", "")) for record in caplog.records)


async def test_the_same_tracker_is_known_by_another_address() -> None:
    """Credentials are stored by address, and found by the tracker's authority under another address."""
    async with serve_tracker() as served, SimulatedAgent(served.address, ["devices/a"]):
        port = served.address.rpartition(":")[2]
        store = CredentialStore()
        kept = account_proof(served.address)
        store.save(f"pi4.local:{port}", kept)
        store.forget(served.address)
        try:
            async with fleet.aio.connect(served.address) as client:
                assert ["devices/a"] == [device.name for device in (await client.snapshot()).devices]
        finally:
            store.forget(f"pi4.local:{port}")
            store.save(served.address, kept)


@pytest.mark.slow
async def test_a_tracker_that_was_only_found_is_not_used(tmp_path: Path) -> None:
    """An agent that has not joined a tracker found by zeroconf ends with the remedy."""
    async with serve_agent("192.0.2.1:9290", tmp_path) as agent:
        with pytest.raises(NotJoined, match="fleet agent join --tracker 192"):
            await agent.wait_attached(60.0)
