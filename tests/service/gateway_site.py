"""A fleet with a real processor, and a gateway to it, for tests with stock clients."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import fleet.aio
from device_agents.agent import Agent, Home
from device_agents.config import make_drivers, parse_config
from fleet.gateway.greetings import SESSION_MAGIC
from fleet.gateway.options import GatewayOptions
from fleet.gateway.server import serve_gateway
from fleet.identity.store import CredentialStore
from fleet.runtime.tvm_library import runtime_version
from fleet.testing import ServedTracker, serve_tracker
from fleet.testing.identity import join_user
from fleet.wire import tvm_frames as frames

VERSION = ".".join(runtime_version().split(".")[:2])
_DEVICE = {"driver": "cpu", "name": "here", "labels": {"tvm_key": "board"}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """A tracker with one real processor, and its gateway."""

    tracker: ServedTracker
    agent: Agent
    client: fleet.aio.Fleet
    port: int


@asynccontextmanager
async def serve_site(
    tmp_path: Path, *, version: str = VERSION, devices: int = 1, asks_for_others: bool = False
) -> AsyncIterator[Site]:
    """Serve a tracker, an agent and a gateway."""
    entries = [{**_DEVICE, "name": f"here-{number}"} for number in range(devices)]
    config = parse_config({"devices": entries})
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(closing_connections())
        tracker = await stack.enter_async_context(serve_tracker())
        home = Home(tracker=tracker.address, state_dir=tmp_path / "agent")
        agent = await stack.enter_async_context(Agent(config, make_drivers(config), home))
        assert await agent.wait_attached(60.0)
        if asks_for_others:
            CredentialStore().save(
                tracker.address, await join_user(tracker.address, "gateway", may_ask_for_others=True)
            )
        client = await stack.enter_async_context(fleet.aio.connect(tracker.address))
        options = GatewayOptions(tvm_version=version, port=0, state_dir=tmp_path / "gateway")
        address = await stack.enter_async_context(serve_gateway(client, options))
        yield Site(tracker=tracker, agent=agent, client=client, port=int(address.rpartition(":")[2]))


_writers: list[asyncio.StreamWriter] = []


async def connect(port: int, source: str = "127.0.0.1") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect from an address of this machine. `closing_connections` closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(source, 0))
    _writers.append(writer)
    return reader, writer


@asynccontextmanager
async def closing_connections() -> AsyncIterator[None]:
    """Close all connections of `connect` after the block."""
    try:
        yield
    finally:
        while _writers:
            writer = _writers.pop()
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()


class TrackerPeer:
    """A connection as a stock client opens it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def open(cls, port: int) -> TrackerPeer:
        """Connect, and exchange magic numbers."""
        peer = cls(*await connect(port))
        peer.writer.write(frames.INT.pack(frames.TRACKER_MAGIC))
        assert await peer.reader.readexactly(4) == frames.INT.pack(frames.TRACKER_MAGIC)
        return peer

    def send(self, message: object) -> None:
        self.writer.write(frames.format_frame(message))

    async def reply(self) -> bytes:
        (length,) = struct.unpack("<i", await self.reader.readexactly(4))
        return await self.reader.readexactly(length)

    async def ask(self, message: object) -> bytes:
        self.send(message)
        return await self.reply()


async def greeted(
    port: int, match_key: str, *, source: str = "127.0.0.1"
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Begin a session as a stock client does, from an address of this machine."""
    reader, writer = await connect(port, source)
    name = f"client:{match_key}".encode()
    writer.write(frames.INT.pack(SESSION_MAGIC) + frames.INT.pack(len(name)) + name)
    return reader, writer
