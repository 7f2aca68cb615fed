"""Servers without TLS, and fleets without an admin: allowed calls and callers."""

from __future__ import annotations

from pathlib import Path

import grpc.aio
import pytest

import fleet.aio
from device_agents.agent import Agent, Home
from device_agents.config import make_drivers, parse_config
from fleet.errors import (
    ConfigError,
    DeviceUnreachable,
    TrackerUnavailable,
    Unauthenticated,
)
from fleet.identity.credentials import PlainSecret
from fleet.identity.roles import Role
from fleet.testing import serve_tracker
from fleet.testing.identity import account_proof, credentials
from fleet.v1 import session_service_pb2
from fleet.wire.rpc import bind, from_rpc_error, make_channel, make_server
from fleet.wire.stubs import add_fleet_service, session_service_stub
from tests.service.identity_parts import CONFIG, Answering, get_fleet


async def test_a_tracker_without_tls_serves_its_own_account_alone() -> None:
    """A secret in a file that only the account can read replaces TLS; a wrong secret, or TLS, is refused."""
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


async def test_a_server_refuses_plaintext_calls_by_default() -> None:
    """A server refuses calls without TLS unless it is configured to accept them."""
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
    """If tracker, agent and client of one account are all configured without TLS, leases and sessions work as with
    it.
    """
    config = parse_config(CONFIG)
    async with serve_tracker(is_plain=True) as served:
        home = Home(tracker=served.address, state_dir=tmp_path, is_plain=True)
        async with Agent(config, make_drivers(config), home) as agent:
            assert await agent.wait_attached(60.0)
            async with fleet.aio.connect(served.address) as client, client.acquire("simulated") as device:
                await device.open()
                assert agent.worker_pids
            async with make_channel(f"127.0.0.1:{agent.port}", PlainSecret(secret=b"guessed")) as channel:
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await session_service_stub(channel).open_session(session_service_pb2.OpenSessionRequest())
    assert Unauthenticated is type(from_rpc_error(caught.value, DeviceUnreachable))


async def test_a_tracker_with_unwritable_credentials_does_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tracker that cannot write its account's credentials ends with an error that names the variable to set."""
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("FLEET_CREDENTIALS_DIR", str(tmp_path / "file/credentials"))

    with pytest.raises(ConfigError, match="FLEET_CREDENTIALS_DIR"):
        async with serve_tracker():
            pass
