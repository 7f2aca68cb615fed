"""TVM RPC servers that register at a gateway, which hands them on to an agent."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import fleet.aio
from device_agents.agent import Agent, Home
from device_agents.config import make_drivers, parse_config
from fleet.gateway.options import GatewayOptions
from fleet.gateway.server import Gateway, serve_gateway
from fleet.testing import eventually, serve_tracker
from tests.service.gateway_site import VERSION, TrackerPeer, closing_connections

pytestmark = pytest.mark.slow
KEY = "127.0.0.1:5555"
TARGET = {"kind": "llvm", "mtriple": "x86_64-linux-gnu"}
SUMMARY = [6]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@asynccontextmanager
async def serve_site(folder: Path) -> AsyncIterator[tuple[fleet.aio.Fleet, GatewayOptions, int]]:
    """Serve a tracker, an agent that takes all servers, and a gateway; yield a client, and the gateway's port."""
    registrations = f"127.0.0.1:{free_port()}"
    entry = {"driver": "tvm_registered", "listen": registrations, "keys": {"*": {"target": TARGET}}}
    config = parse_config({"devices": [entry]})
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(closing_connections())
        tracker = await stack.enter_async_context(serve_tracker())
        home = Home(tracker=tracker.address, state_dir=folder / "agent")
        agent = await stack.enter_async_context(Agent(config, make_drivers(config), home))
        assert await agent.wait_attached(60.0)
        client = await stack.enter_async_context(fleet.aio.connect(tracker.address))
        options = GatewayOptions(tvm_version=VERSION, port=0, state_dir=folder / "gateway", registrations=registrations)
        address = await stack.enter_async_context(serve_gateway(client, options))
        yield client, options, int(address.rpartition(":")[2])


async def register(port: int, number: int, host: str | None = None) -> TrackerPeer:
    """Register a server as a stock one does."""
    peer = await TrackerPeer.open(port)
    assert await peer.ask([5, {"key": f"server:{KEY}", "addr": [host, number]}]) == b"0"
    assert await peer.ask([3, KEY, [number, f"{KEY}:{number}"], host]) == b"0"
    return peer


async def summary(peer: TrackerPeer) -> Any:
    """Return the numbers of free devices and waiting requests, and the addresses of servers."""
    _, found = json.loads(await peer.ask(SUMMARY))
    counts = found["queue_info"].get(KEY, {})
    return counts, [one["addr"] for one in found["server_info"] if one["key"] == f"server:{KEY}"]


async def shows(peer: TrackerPeer, *, free: int, pending: int, addresses: list[list[object]]) -> bool:
    return bool(await summary(peer) == ({"free": free, "pending": pending}, addresses))


async def test_servers_and_clients_share_a_port(tmp_path: Path) -> None:
    """A request waits for a server of its key. Lists show the servers' own addresses, and none that is gone."""
    async with serve_site(tmp_path) as (_, _, port):
        viewer, client = await TrackerPeer.open(port), await TrackerPeer.open(port)
        client.send([4, KEY, "me", 0])
        await eventually(partial(shows, viewer, free=0, pending=1, addresses=[]))
        first = await register(port, 9090)
        code, _ = json.loads(await client.reply())
        assert code == 0
        assert await first.ask([7]) == json.dumps([f"{KEY}:9090"]).encode()
        second = await register(port, 9091, "board.invalid")
        both: list[list[object]] = [["127.0.0.1", 9090], ["board.invalid", 9091]]
        await eventually(partial(shows, viewer, free=1, pending=0, addresses=both))
        second.writer.close()

        await eventually(partial(shows, viewer, free=0, pending=0, addresses=both[:1]))


@asynccontextmanager
async def serve_unattended(folder: Path, **options: Any) -> AsyncIterator[tuple[fleet.aio.Fleet, GatewayOptions]]:
    """Serve a tracker; yield a client, and options of a gateway that would hand servers on to nobody."""
    nowhere = f"127.0.0.1:{free_port()}"
    async with closing_connections(), serve_tracker() as tracker, fleet.aio.connect(tracker.address) as client:
        yield client, GatewayOptions(tvm_version=VERSION, port=0, state_dir=folder, registrations=nowhere, **options)


async def test_servers_of_others_are_not_handed_on(tmp_path: Path) -> None:
    """An agent takes those on the network itself: it knows which addresses are its boards'."""
    async with serve_unattended(tmp_path, is_network_allowed=True) as (client, options):
        gateway = Gateway(client, options, find_peer=lambda _: None)
        listener = await asyncio.start_server(gateway.serve, "127.0.0.1", 0)
        peer = await TrackerPeer.open(listener.sockets[0].getsockname()[1])

        assert await peer.ask([3, KEY, [9090, f"{KEY}:0"], None]) == b"-1"
        listener.close()
        await gateway.close()


async def test_a_server_is_closed_while_no_agent_listens(tmp_path: Path) -> None:
    """It tries again by itself; the gateway goes on."""
    async with serve_unattended(tmp_path) as (client, options), serve_gateway(client, options) as address:
        port = int(address.rpartition(":")[2])
        peer = await TrackerPeer.open(port)
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await peer.ask([5, {"key": "server:a", "addr": [None, 9090]}])

        assert await (await TrackerPeer.open(port)).ask([1]) == b"0"
