"""Who may do what, shown by those who may not: through real trackers and agents, over TLS."""

from __future__ import annotations

import asyncio
import datetime as dt
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc.aio
import pytest

import fleet.aio
from device_agents.agent import Agent, Home
from device_agents.config import make_drivers, parse_config
from fleet.client.identity_calls import IdentityCalls
from fleet.errors import (
    ConfigError,
    DeviceUnreachable,
    NotAllowed,
    NotFound,
    NotJoined,
    TrackerUnavailable,
    Unauthenticated,
)
from fleet.identity import stranger
from fleet.identity.certificates import (
    CERTIFICATE_LIFE,
    issue_own,
    make_authority,
    make_key,
    needs_renewal,
    own_key_id,
    read_identity,
)
from fleet.identity.credentials import Credentials, PlainSecret, agent_name
from fleet.identity.join_tokens import parse_join_token
from fleet.identity.roles import Role
from fleet.identity.store import CredentialStore
from fleet.testing import LeaseStream, SimulatedAgent, eventually, serve_tracker
from fleet.testing.identity import account_proof, authority, credentials, key
from fleet.v1 import fleet_service_pb2, lease_service_pb2, session_service_pb2
from fleet.wire.joining import join, renew_account
from fleet.wire.peers import server_security
from fleet.wire.rpc import Channel, bind, from_rpc_error, make_channel, make_server
from fleet.wire.stubs import add_fleet_service, fleet_service_stub, lease_service_stub, session_service_stub
from fleet.wire.tokens import TOKEN_HEADER

CONFIG = {"devices": [{"driver": "simulated", "name": "sim", "time_scale": 0.0}]}


@asynccontextmanager
async def serve_agent(tracker: str, state_dir: Path) -> AsyncIterator[Agent]:
    config = parse_config(CONFIG)
    async with Agent(config, make_drivers(config), Home(tracker=tracker, state_dir=state_dir)) as agent:
        yield agent


async def get_fleet(channel: Channel) -> int:
    """Ask for the fleet; return how many devices it has."""
    try:
        answer = await fleet_service_stub(channel).get_fleet(fleet_service_pb2.GetFleetRequest(), timeout=10.0)
    except grpc.aio.AioRpcError as error:
        raise from_rpc_error(error, TrackerUnavailable) from None
    return len(answer.snapshot.devices)


async def revoke(address: str, proof: Credentials, lease_name: str) -> None:
    async with make_channel(address, proof) as channel:
        try:
            await lease_service_stub(channel).revoke_lease(
                lease_service_pb2.RevokeLeaseRequest(lease_name=lease_name, reason="mine now")
            )
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error, TrackerUnavailable) from None


async def cancel(address: str, proof: Credentials, request_id: str) -> None:
    async with make_channel(address, proof) as channel:
        try:
            await lease_service_stub(channel).cancel_request(
                lease_service_pb2.CancelRequestRequest(request_id=request_id)
            )
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error, TrackerUnavailable) from None


class Answering:
    """Has no devices."""

    async def get_fleet(self, request: object, context: object) -> fleet_service_pb2.GetFleetResponse:
        return fleet_service_pb2.GetFleetResponse()

    async def check_selector(self, request: object, context: object) -> fleet_service_pb2.CheckSelectorResponse:
        return fleet_service_pb2.CheckSelectorResponse(device_count=1)

    async def get_history(self, request: object, context: object) -> fleet_service_pb2.GetHistoryResponse:
        return fleet_service_pb2.GetHistoryResponse()

    async def watch_fleet(
        self, request: object, context: object
    ) -> AsyncIterator[fleet_service_pb2.WatchFleetResponse]:
        yield fleet_service_pb2.WatchFleetResponse()


def user() -> Credentials:
    """A member that no other is."""
    return credentials(Role.USER, make_key())


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
    """A newer process of the device's agent ends the lease of the one before; another agent's must not."""
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
async def test_a_stolen_token_is_useless_from_another_connection(tmp_path: Path) -> None:
    """A token names its holder's key: with another certificate of the same fleet it opens, and ends, nothing."""
    async with (
        serve_tracker() as served,
        serve_agent(served.address, tmp_path) as agent,
        fleet.aio.connect(served.address) as client,
    ):
        assert await agent.wait_attached(10.0)
        device = await client.acquire_device("simulated")
        await device.open()
        for thief in (user(), credentials(Role.ADMIN, make_key())):
            async with make_channel(device.address, thief, agent_name(device.agent_key_id)) as channel:
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await session_service_stub(channel).close_session(
                        session_service_pb2.CloseSessionRequest(), metadata=((TOKEN_HEADER, device.token),)
                    )
                found = from_rpc_error(caught.value, DeviceUnreachable)

            assert (Unauthenticated, True) == (type(found), "another holder's key" in str(found))
        await device.open()
        assert 1 == len(agent.worker_pids)


@pytest.mark.slow
async def test_an_agent_lets_nobody_in_who_is_not_of_its_fleet(tmp_path: Path) -> None:
    """Not with another fleet's certificate, not with the one that everybody has; another agent may call nothing."""
    elsewhere = make_authority(dt.datetime.now(dt.UTC))
    foreign = issue_own(elsewhere, make_key(), name="x", role=Role.ADMIN, now=dt.datetime.now(dt.UTC))
    async with serve_tracker() as served, serve_agent(served.address, tmp_path) as agent:
        assert await agent.wait_attached(10.0)
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
                        session_service_pb2.OpenSessionRequest(), timeout=10.0
                    )
                found[who] = type(from_rpc_error(caught.value, DeviceUnreachable))

    assert {"foreign": DeviceUnreachable, "stranger": DeviceUnreachable, "agent": NotAllowed} == found


@pytest.mark.slow
async def test_a_client_talks_to_no_other_agent_than_the_trackers(tmp_path: Path) -> None:
    """Whoever listens at the device's address with another key, be it a member's, hears no token."""
    async with (
        serve_tracker() as served,
        serve_agent(served.address, tmp_path) as real,
        SimulatedAgent(served.address, ["devices/lured"], kind="lured", address=f"127.0.0.1:{real.port}"),
        fleet.aio.connect(served.address) as client,
        client.acquire("lured") as device,
    ):
        with pytest.raises(DeviceUnreachable):
            await device.open()


def nobody() -> Credentials:
    """Those of whoever has not joined, with the authority that the test's servers have."""
    return Credentials(
        key_pem=stranger.KEY_PEM,
        certificate_pem=stranger.CERTIFICATE_PEM,
        authority_pem=authority().authority_pem,
    )


async def test_who_has_not_joined_may_only_join() -> None:
    """The certificate that everybody has opens the port, and no rpc but one."""
    async with serve_tracker() as served, make_channel(served.address, nobody()) as channel:
        with pytest.raises(NotAllowed, match="fleet login"):
            await get_fleet(channel)


async def test_the_key_that_everybody_has_makes_nobody_an_admin() -> None:
    """A certificate that was signed with it, whatever it says of its owner, is not accepted; nor is another fleet's."""
    now = dt.datetime.now(dt.UTC)
    forger = Credentials(
        key_pem=stranger.KEY_PEM, certificate_pem=stranger.CERTIFICATE_PEM, authority_pem=stranger.CERTIFICATE_PEM
    )
    for signer in (forger, make_authority(now)):
        forged = issue_own(signer, make_key(), name="root", role=Role.ADMIN, now=now)
        shown = [forged.certificate_pem, forged.certificate_pem + signer.authority_pem]
        for chain in shown:
            proof = Credentials(key_pem=forged.key_pem, certificate_pem=chain, authority_pem=authority().authority_pem)
            async with serve_tracker() as served, make_channel(served.address, proof) as channel:
                with pytest.raises(TrackerUnavailable):
                    await get_fleet(channel)


async def test_a_join_token_makes_a_member_once() -> None:
    """It joins with the role that it was made for; a second use, and one that was revoked, join nobody."""
    async with serve_tracker() as served, IdentityCalls(served.address) as admin:
        token, invitation = await admin.invite(Role.USER, ttl_sec=60.0, note="for alice")
        revoked, other = await admin.invite(Role.ADMIN, ttl_sec=60.0)
        assert [invitation, other] == await admin.invitations()
        await admin.uninvite(other.token_id)

        member, role = await join(served.address, token, name="alice@laptop")

        assert Role.USER is role
        async with make_channel(served.address, member) as channel:
            assert 0 == await get_fleet(channel)
        assert [] == await admin.invitations()
        for useless in (token, revoked):
            with pytest.raises(Unauthenticated, match="used, revoked or expired"):
                await join(served.address, useless, name="mallory")
        with pytest.raises(NotFound):
            await admin.uninvite(other.token_id)


async def test_a_token_of_another_fleet_says_its_secret_to_nobody() -> None:
    """Whoever answers at the address is compared with the token's fingerprint first."""
    async with serve_tracker() as served, IdentityCalls(served.address) as admin:
        token, invitation = await admin.invite(Role.USER, ttl_sec=60.0)
        text = str(token)
        forged = parse_join_token(text[:-2] + ("AA" if not text.endswith("AA") else "QQ"))

        with pytest.raises(Unauthenticated, match="nothing was said to it"):
            await join(served.address, forged, name="alice")

        assert [invitation] == await admin.invitations()


async def test_only_an_admin_or_its_holder_ends_a_lease() -> None:
    """RevokeLease of another user is refused, written down, and changes nothing."""
    alice, mallory = user(), user()
    async with (
        serve_tracker() as served,
        SimulatedAgent(served.address, ["devices/a", "devices/b"]),
        LeaseStream(served.address, "alice", proof=alice) as holder,
    ):
        first = (await holder.grant("1", "simulated")).lease.name
        second = (await holder.grant("2", "simulated")).lease.name

        with pytest.raises(NotAllowed, match="is another's"):
            await revoke(served.address, mallory, first)
        assert first in served.tracker.state.leases
        await revoke(served.address, alice, first)
        await revoke(served.address, credentials(Role.ADMIN), second)

        assert not served.tracker.state.leases
        async with IdentityCalls(served.address) as admin:
            deeds = [deed for deed in await admin.deeds(100) if deed.action == "LeaseService.RevokeLease"]
        assert [
            ("user", own_key_id(mallory.key_pem), "NotAllowed"),
            ("user", own_key_id(alice.key_pem), "ok"),
            ("admin", own_key_id(key(Role.ADMIN)), "ok"),
        ] == [(deed.role, deed.key_id, deed.outcome) for deed in deeds]
        assert f'"lease_name": "{first}"' in deeds[0].subject


async def test_only_an_admin_or_its_holder_cancels_a_request() -> None:
    """CancelRequest of another user is refused, written down, and changes nothing."""
    alice, mallory = user(), user()
    async with (
        serve_tracker() as served,
        SimulatedAgent(served.address, ["devices/a"]),
        LeaseStream(served.address, "alice", proof=alice) as holder,
    ):
        await holder.grant("1", "simulated")
        for name in ("2", "3"):
            holder.acquire(name, "simulated")
        await eventually(lambda: len(holder.queued) == 2)

        with pytest.raises(NotAllowed, match="the request of tester@here is another's"):
            await cancel(served.address, mallory, "2")
        assert served.tracker.state.waiting("2")
        await cancel(served.address, alice, "2")
        await cancel(served.address, credentials(Role.ADMIN), "3")

        await eventually(lambda: {"2", "3"} == holder.refused.keys())
        async with IdentityCalls(served.address) as admin:
            deeds = [deed for deed in await admin.deeds(100) if deed.action == "LeaseService.CancelRequest"]
        assert [
            ("user", own_key_id(mallory.key_pem), "NotAllowed"),
            ("user", own_key_id(alice.key_pem), "ok"),
            ("admin", own_key_id(key(Role.ADMIN)), "ok"),
        ] == [(deed.role, deed.key_id, deed.outcome) for deed in deeds]
        assert '"request_id": "2"' in deeds[0].subject


async def test_a_client_id_that_became_known_takes_no_lease_over() -> None:
    """Ids belong to keys: the same id from another key is another client, and the first keeps its stream."""
    async with (
        serve_tracker() as served,
        SimulatedAgent(served.address, ["devices/a"]),
        LeaseStream(served.address, "the same", proof=user()) as alice,
        LeaseStream(served.address, "the same", proof=user()) as mallory,
    ):
        granted = await alice.grant("r", "simulated")
        mallory.release(granted.lease.name)
        await eventually(lambda: mallory.ended)

        assert mallory.welcome is not None
        assert not mallory.welcome.leases
        assert granted.lease.name in served.tracker.state.leases
        assert alice.error is None


async def test_what_is_refused_says_which_role_it_takes() -> None:
    """A user cannot let others in, free names, or read the log."""
    async with serve_tracker() as served:
        store, admin = CredentialStore(), account_proof(served.address)
        store.save(served.address, user())
        try:
            async with IdentityCalls(served.address) as calls:
                for asked in (calls.invite(Role.ADMIN, ttl_sec=9.0), calls.unbind("devices/a"), calls.deeds(1)):
                    with pytest.raises(NotAllowed, match="takes the role admin"):
                        await asked
        finally:
            store.save(served.address, admin)


async def test_a_tracker_without_tls_serves_its_own_account_alone() -> None:
    """A secret in a file that only the account reads takes the place of TLS; without it, or with TLS, nothing is
    served."""
    async with serve_tracker(is_plain=True) as served:
        secret = account_proof(served.address)
        assert isinstance(secret, PlainSecret)
        async with make_channel(served.address, secret) as channel:
            assert 0 == await get_fleet(channel)
        async with make_channel(served.address, PlainSecret(secret=b"guessed")) as channel:
            with pytest.raises(Unauthenticated):
                await get_fleet(channel)
        async with make_channel(served.address, credentials(Role.ADMIN)) as channel:
            with pytest.raises(TrackerUnavailable):
                await get_fleet(channel)


async def test_a_port_without_tls_serves_nobody_by_accident() -> None:
    """A server that was not told to go without TLS takes no call that comes without, whoever it is."""
    server = make_server()
    add_fleet_service(server, Answering())
    port = bind(server, "127.0.0.1", 0, None, what="the test")
    await server.start()
    async with make_channel(f"127.0.0.1:{port}", PlainSecret(secret=b"any")) as channel:
        with pytest.raises(Unauthenticated, match="over TLS only"):
            await get_fleet(channel)
    await server.stop(0)


@pytest.mark.slow
async def test_a_fleet_without_tls_measures(tmp_path: Path) -> None:
    """Tracker, agent and client of one account, all told to: leases and sessions work as with TLS."""
    config = parse_config(CONFIG)
    async with serve_tracker(is_plain=True) as served:
        home = Home(tracker=served.address, state_dir=tmp_path, is_plain=True)
        async with Agent(config, make_drivers(config), home) as agent:
            assert await agent.wait_attached(10.0)
            async with fleet.aio.connect(served.address) as client, client.acquire("simulated") as device:
                await device.open()
                assert 1 == len(agent.worker_pids)
            async with make_channel(f"127.0.0.1:{agent.port}", PlainSecret(secret=b"guessed")) as channel:
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await session_service_stub(channel).open_session(session_service_pb2.OpenSessionRequest())
    assert Unauthenticated is type(from_rpc_error(caught.value, DeviceUnreachable))


@pytest.mark.slow
async def test_two_agents_of_one_name_are_told_so(tmp_path: Path) -> None:
    """The second one hears whose the name is and what to do; freed by an admin, it attaches by itself."""
    async with serve_tracker() as served:
        async with serve_agent(served.address, tmp_path / "first") as first:
            assert await first.wait_attached(10.0)
        async with serve_agent(served.address, tmp_path / "second") as second:
            with pytest.raises(
                NotAllowed, match=r"devices/sim belongs to the agent with the key .*fleet tracker unbind"
            ):
                await second.wait_attached(10.0)
            async with IdentityCalls(served.address) as admin:
                assert first.key_id == await admin.unbind("devices/sim")

            await eventually(lambda: served.tracker.members.keys.get("devices/sim") == second.key_id)


async def test_a_client_without_credentials_is_told_how_to_get_some() -> None:
    """Of another machine's tracker at once; of this machine's when something answers there."""
    with pytest.raises(NotJoined, match="fleet login TOKEN --tracker 192"):
        await fleet.aio.connect("192.0.2.1:9290")
    async with serve_tracker() as served:
        store, kept = CredentialStore(), account_proof(served.address)
        store.forget(served.address)
        others = {path: path.read_bytes() for path in store.folder.glob("*.pem")}
        for path in others:
            path.unlink()
        try:
            with pytest.raises(NotJoined, match="fleet login"):
                await fleet.aio.connect(served.address, connect_timeout_sec=0.3)
        finally:
            store.save(served.address, kept)
            for path, content in others.items():
                path.write_bytes(content)
                path.chmod(0o600)


async def test_a_tracker_with_another_authority_is_not_believed(tmp_path: Path) -> None:
    """Its clients pin the authority: one that took the address, or lost its state, is said to be another."""
    async with serve_tracker() as served:
        store, kept = CredentialStore(), account_proof(served.address)
        now = dt.datetime.now(dt.UTC)
        store.save(served.address, issue_own(make_authority(now), make_key(), name="me", role=Role.USER, now=now))
        try:
            with pytest.raises(NotJoined, match="is another one than these credentials are for"):
                await fleet.aio.connect(served.address, connect_timeout_sec=0.3)
        finally:
            store.save(served.address, kept)


async def test_the_same_tracker_is_known_by_another_address() -> None:
    """Credentials are kept by address, and found by the authority where the tracker has more than one."""
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


async def test_a_tracker_that_nobody_could_rule_does_not_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where its account's credentials cannot be written it says so, with the variable that helps."""
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("FLEET_CREDENTIALS_DIR", str(tmp_path / "file/credentials"))

    with pytest.raises(ConfigError, match="FLEET_CREDENTIALS_DIR"):
        async with serve_tracker():
            pass


async def test_an_accounts_certificate_is_renewed_before_it_ends() -> None:
    """With the same key, name and role, by a call that only the key's owner can make; one with time left is kept."""
    now = dt.datetime.now(dt.UTC)
    async with serve_tracker() as served:
        store, kept = CredentialStore(), account_proof(served.address)
        ends_soon = issue_own(
            authority(), make_key(), name="alice", role=Role.USER, now=now - CERTIFICATE_LIFE + dt.timedelta(days=5)
        )
        store.save(served.address, ends_soon)
        try:
            await renew_account(served.address, store)
            fresh = account_proof(served.address)
            await renew_account(served.address, store)
            again = account_proof(served.address)
        finally:
            store.save(served.address, kept)

    assert isinstance(fresh, Credentials)
    assert fresh == again
    assert not needs_renewal(fresh.certificate_pem, now)
    assert read_identity(ends_soon.certificate_pem) == read_identity(fresh.certificate_pem)


@pytest.mark.slow
async def test_a_tracker_that_was_only_found_is_not_used(tmp_path: Path) -> None:
    """Whatever zeroconf says: an agent that has joined no fleet there ends with what to do."""
    async with serve_agent("192.0.2.1:9290", tmp_path) as agent:
        with pytest.raises(NotJoined, match="fleet agent join TOKEN --tracker 192"):
            await agent.wait_attached(10.0)


async def test_a_renewed_certificate_is_shown_from_then_on() -> None:
    """A server need not be restarted: connections of before go on, new ones see the new certificate."""
    shown = [credentials(Role.TRACKER)]
    server = make_server()
    add_fleet_service(server, Answering())
    port = bind(server, "127.0.0.1", 0, server_security(lambda: shown[0]), what="the test")
    await server.start()
    seen = []
    async with make_channel(f"127.0.0.1:{port}", user()) as before:
        await get_fleet(before)
        for _ in range(2):
            seen.append(await asyncio.to_thread(ssl.get_server_certificate, ("127.0.0.1", port)))
            shown[0] = credentials(Role.TRACKER)
        await get_fleet(before)
        async with make_channel(f"127.0.0.1:{port}", user()) as after:
            await get_fleet(after)
    await server.stop(0)

    assert seen[0] != seen[1]


@pytest.mark.slow
async def test_an_agent_joins_by_a_token_and_keeps_its_key(tmp_path: Path) -> None:
    """Without its account's credentials: the token once, from then on its own key, which others cannot read."""
    async with serve_tracker() as served:
        async with IdentityCalls(served.address) as admin:
            token, _ = await admin.invite(Role.AGENT, ttl_sec=60.0)
        config = parse_config(CONFIG)
        home = Home(tracker=served.address, state_dir=tmp_path, token=token)
        keys = []
        for _ in range(2):
            async with Agent(config, make_drivers(config), home) as agent:
                assert await agent.wait_attached(10.0)
                keys.append(agent.key_id)

    assert keys[0] == keys[1]
    assert 0o600 == (tmp_path / "identity.pem").stat().st_mode & 0o777


async def test_an_agents_credentials_open_no_clients_stream() -> None:
    """The error names the roles that do."""
    async with serve_tracker() as served:
        with pytest.raises(NotAllowed, match="takes the role admin or user"):
            await LeaseStream(served.address, "a", proof=credentials(Role.AGENT)).open()
