"""Clients of a gateway that end, and clients on the network."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from fleet.gateway.access_keys import AccessKeys
from fleet.gateway.greetings import SESSION_MAGIC
from fleet.gateway.options import GatewayOptions
from fleet.gateway.server import Gateway
from fleet.testing import eventually
from fleet.tracker.core.queries import Queries
from fleet.wire.tvm_frames import INT
from tests.service.gateway_site import VERSION, Site, TrackerPeer, greeted, serve_site

pytestmark = pytest.mark.slow
CLIENT = """
import json, socket, struct, sys
def exchange(connection, message):
    connection.sendall(struct.pack("<i", len(message)) + message)
    (length,) = struct.unpack("<i", connection.recv(4, socket.MSG_WAITALL))
    return connection.recv(length, socket.MSG_WAITALL)
tracker = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
tracker.sendall(struct.pack("<i", 0x2F271))
tracker.recv(4, socket.MSG_WAITALL)
_, (host, port, match_key) = json.loads(exchange(tracker, b'[4, "board", "me", 0]'))
session = socket.create_connection((host, port))
greeting = f"client:{match_key}".encode()
session.sendall(struct.pack("<ii", 0xFF271, len(greeting)) + greeting)
print(session.recv(4, socket.MSG_WAITALL).hex(), flush=True)
session.close()
sys.stdin.read()
"""


@asynccontextmanager
async def serving(gateway: Gateway) -> AsyncIterator[int]:
    """Serve a gateway inside the block; yield its port."""
    server = await asyncio.start_server(gateway.serve, "127.0.0.1", 0)
    yield server.sockets[0].getsockname()[1]
    server.close()
    await gateway.close()


def leases(site: Site) -> list[str]:
    return list(site.tracker.tracker.state.leases)


async def test_a_kept_lease_ends_with_its_clients_process(tmp_path: Path) -> None:
    """It is kept while the process lives, which opens the next session soon."""
    async with serve_site(tmp_path) as site:
        options = GatewayOptions(tvm_version=VERSION, state_dir=tmp_path)
        async with serving(Gateway(site.client, options, kept_sec=600.0)) as port:
            client = await asyncio.create_subprocess_exec(
                *(sys.executable, "-c", CLIENT, str(port)),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
            )
            assert client.stdout is not None
            assert await client.stdout.readline() == INT.pack(SESSION_MAGIC).hex().encode() + b"\n"
            reader, writer = await greeted(port, "")
            await reader.read()
            writer.close()
            assert len(leases(site)) == 1
            client.kill()
            await client.wait()

            await eventually(lambda: not leases(site))


@asynccontextmanager
async def open_to_network(site: Site, folder: Path) -> AsyncIterator[int]:
    """Serve a gateway for which all clients are on other machines."""
    options = GatewayOptions(tvm_version=VERSION, is_network_allowed=True, state_dir=folder)
    async with serving(Gateway(site.client, options, find_peer=lambda _: None)) as port:
        yield port


async def test_a_client_on_the_network_needs_an_access_key(tmp_path: Path) -> None:
    """Without one, it learns nothing about the fleet. With one, the key's account pays."""
    secret, key = AccessKeys(tmp_path / "keys").create("team-a", 1.0)
    async with serve_site(tmp_path, asks_for_others=True) as site, open_to_network(site, tmp_path / "keys") as port:
        peer = await TrackerPeer.open(port)
        for stranger in ("board", "x/board", f"{secret}board", f"/{secret}"):
            code, text = json.loads(await peer.ask([4, stranger, "me", 0]))
            assert (code, "fleet gateway key create" in text) == (-1, True)
        assert json.loads(await peer.ask([6])) == [0, {"queue_info": {}, "server_info": []}]
        assert json.loads(await peer.ask([4, f"{secret}/board", "me", 0]))[0] == 0

        (lease,) = site.tracker.tracker.state.leases.values()
        assert (lease.account, key.key_id in lease.terms.purpose) == ("team-a", True)


async def test_a_revoked_key_is_refused_by_a_running_gateway(tmp_path: Path) -> None:
    keys = AccessKeys(tmp_path / "keys")
    secret, key = keys.create("team-a", 1.0)
    async with serve_site(tmp_path, asks_for_others=True) as site, open_to_network(site, tmp_path / "keys") as port:
        peer = await TrackerPeer.open(port)
        assert json.loads(await peer.ask([4, f"{secret}/board", "me", 0]))[0] == 0
        keys.revoke(key.key_id, 2.0)

        assert json.loads(await peer.ask([4, f"{secret}/board", "me", 0]))[0] == -1


async def test_sessions_and_requests_end_with_their_key(tmp_path: Path) -> None:
    """Both clients get the reason, and the device is free again."""
    keys = AccessKeys(tmp_path / "keys")
    secret, key = keys.create("team-a", 1.0)
    async with serve_site(tmp_path, asks_for_others=True) as site, open_to_network(site, tmp_path / "keys") as port:
        request = [4, f"{secret}/board", "me", 0]
        peer, waiter = await TrackerPeer.open(port), await TrackerPeer.open(port)
        reader, _ = await greeted(port, json.loads(await peer.ask(request))[1][2])
        assert await reader.readexactly(4) == INT.pack(SESSION_MAGIC)
        waiter.send(request)
        await eventually(lambda: Queries(site.tracker.tracker.state).request_count == 1)
        AccessKeys(tmp_path / "keys").revoke(key.key_id, 2.0)

        assert b"was revoked" in await asyncio.wait_for(reader.read(), 30)
        code, text = json.loads(await waiter.reply())
        assert (code, "was revoked" in text) == (-1, True)
        await eventually(lambda: not leases(site))


async def test_a_gateway_needs_the_right_to_request_for_others(tmp_path: Path) -> None:
    """The client's error names the remedy."""
    secret, _ = AccessKeys(tmp_path / "keys").create("team-a", 1.0)
    async with serve_site(tmp_path) as site, open_to_network(site, tmp_path / "keys") as port:
        code, text = json.loads(await (await TrackerPeer.open(port)).ask([4, f"{secret}/board", "me", 0]))

        assert (code, "--for-others" in text) == (-1, True)


async def test_a_match_key_is_good_for_its_clients_address(tmp_path: Path) -> None:
    """Another machine that has seen it on the network gets no session."""
    secret, _ = AccessKeys(tmp_path / "keys").create("team-a", 1.0)
    async with serve_site(tmp_path, asks_for_others=True) as site, open_to_network(site, tmp_path / "keys") as port:
        _, (_, _, match_key) = json.loads(await (await TrackerPeer.open(port)).ask([4, f"{secret}/board", "me", 0]))
        thief, _ = await greeted(port, match_key, source="127.0.0.2")
        assert await thief.readexactly(4) == INT.pack(SESSION_MAGIC + 2)

        reader, _ = await greeted(port, match_key)
        assert await reader.readexactly(4) == INT.pack(SESSION_MAGIC)
