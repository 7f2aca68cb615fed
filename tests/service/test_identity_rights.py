"""Authorization, shown by refused callers: through real trackers and agents, over TLS."""

from __future__ import annotations

from pathlib import Path

import grpc.aio
import pytest

import fleet.aio
from fleet.client.identity_calls import IdentityCalls
from fleet.errors import (
    DeviceUnreachable,
    NotAllowed,
    TrackerUnavailable,
    Unauthenticated,
)
from fleet.identity.certificates import (
    make_key,
    own_key_id,
)
from fleet.identity.credentials import Credentials, agent_name
from fleet.identity.roles import Role
from fleet.identity.store import CredentialStore
from fleet.testing import LeaseStream, SimulatedAgent, eventually, serve_tracker
from fleet.testing.identity import account_proof, credentials, key
from fleet.v1 import lease_service_pb2, session_service_pb2
from fleet.wire.rpc import from_rpc_error, make_channel
from fleet.wire.stubs import lease_service_stub, session_service_stub
from fleet.wire.tokens import TOKEN_HEADER
from tests.service.identity_parts import serve_agent, user


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


@pytest.mark.slow
async def test_a_stolen_token_is_useless_from_another_connection(tmp_path: Path) -> None:
    """A token is bound to its holder's key: with another certificate of the same fleet it can neither open nor end a
    session.
    """
    async with (
        serve_tracker() as served,
        serve_agent(served.address, tmp_path) as agent,
        fleet.aio.connect(served.address) as client,
    ):
        assert await agent.wait_attached(60.0)
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
        assert agent.worker_pids


async def test_only_an_admin_or_its_holder_ends_a_lease() -> None:
    """RevokeLease by another user is refused and audited, and changes nothing."""
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
            entries = [entry for entry in await admin.audit_entries(100) if entry.action == "LeaseService.RevokeLease"]
        assert [
            ("user", own_key_id(mallory.key_pem), "NotAllowed"),
            ("user", own_key_id(alice.key_pem), "ok"),
            ("admin", own_key_id(key(Role.ADMIN)), "ok"),
        ] == [(entry.role, entry.key_id, entry.outcome) for entry in entries]
        assert f'"lease_name": "{first}"' in entries[0].subject


async def test_only_an_admin_or_its_holder_cancels_a_request() -> None:
    """CancelRequest by another user is refused and audited, and changes nothing."""
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

        with pytest.raises(NotAllowed, match=r"the request of a test's user \(tester@here\) is another's"):
            await cancel(served.address, mallory, "2")
        assert served.tracker.engine.queries.requests_named("2")
        await cancel(served.address, alice, "2")
        await cancel(served.address, credentials(Role.ADMIN), "3")

        await eventually(lambda: {"2", "3"} == holder.refused.keys())
        async with IdentityCalls(served.address) as admin:
            entries = [
                entry for entry in await admin.audit_entries(100) if entry.action == "LeaseService.CancelRequest"
            ]
        assert [
            ("user", own_key_id(mallory.key_pem), "NotAllowed"),
            ("user", own_key_id(alice.key_pem), "ok"),
            ("admin", own_key_id(key(Role.ADMIN)), "ok"),
        ] == [(entry.role, entry.key_id, entry.outcome) for entry in entries]
        assert '"request_id": "2"' in entries[0].subject


async def test_a_client_id_that_became_known_takes_no_lease_over() -> None:
    """Ids belong to keys: the same id with another key is another client, and the first keeps its stream."""
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


async def test_a_permission_error_names_the_required_role() -> None:
    """The error names the role; users cannot invite members, free names or read the log."""
    async with serve_tracker() as served:
        store, admin = CredentialStore(), account_proof(served.address)
        store.save(served.address, user())
        try:
            async with IdentityCalls(served.address) as calls:
                for asked in (calls.invite(Role.ADMIN, ttl_sec=9.0), calls.unbind("devices/a"), calls.audit_entries(1)):
                    with pytest.raises(NotAllowed, match="takes the role admin"):
                        await asked
        finally:
            store.save(served.address, admin)


async def test_an_agents_credentials_open_no_clients_stream() -> None:
    """The error names the roles that do."""
    async with serve_tracker() as served:
        with pytest.raises(NotAllowed, match="takes the role admin or user"):
            await LeaseStream(served.address, "a", proof=credentials(Role.AGENT)).open()
