"""Ends of a relay's connections, as tests and benchmarks write them: raw bytes instead of TLS."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from fleet.base.network import host_and_port
from fleet.base.sockets import connect_socket
from fleet.identity.credentials import MEMBER_NAME, Credentials
from fleet.v1 import relay_service_pb2 as pb
from fleet.wire.relay_preface import make_preface
from fleet.wire.rpc import make_channel, read_next
from fleet.wire.stubs import relay_service_stub

Serve = Callable[[socket.socket, bytes], Awaitable[None]]
"""Serves a client by the agent's connection; the second argument is the client's ClientHello."""


def client_hello(name: str) -> bytes:
    """Return first bytes of a TLS connection to a server of this name: as short as can be, and the same each time."""
    host = b"\x00" + _sized(name.encode())
    extensions = b"\x00\x00" + _sized(_sized(host))
    body = b"\x03\x03" + bytes(32) + b"\x00" + _sized(b"\x13\x01") + b"\x01\x00" + _sized(extensions)
    return b"\x16\x03\x01" + _sized(b"\x01" + len(body).to_bytes(3, "big") + body)


def _sized(content: bytes) -> bytes:
    return len(content).to_bytes(2, "big") + content


@asynccontextmanager
async def registered_agent(relay: str, proof: Credentials, serve: Serve) -> AsyncIterator[asyncio.Task[None]]:
    """Register an agent inside the block, and have its clients served; yield the task of its stream."""
    async with make_channel(relay, proof, MEMBER_NAME) as channel:
        call = relay_service_stub(channel).watch_clients(pb.WatchClientsRequest())
        await read_next(call)
        working: set[asyncio.Task[None]] = set()

        async def follow() -> None:
            while (client := await read_next(call)) is not None:
                working.add(asyncio.create_task(_serve(relay, client, serve), name="serve a client"))

        following = asyncio.create_task(follow(), name="follow a relay")
        try:
            yield following
        finally:
            call.cancel()
            for task in (following, *working):
                task.cancel()
            await asyncio.gather(following, *working, return_exceptions=True)


async def _serve(relay: str, client: pb.WatchClientsResponse, serve: Serve) -> None:
    with await connect_socket(*host_and_port(relay)) as connection:
        await asyncio.get_running_loop().sock_sendall(connection, make_preface(client.secret))
        await serve(connection, client.first_bytes)
