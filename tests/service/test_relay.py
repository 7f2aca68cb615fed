"""A relay in this process, with ends that send raw bytes."""

from __future__ import annotations

import asyncio
import datetime as dt
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import grpc.aio
import pytest

from fleet.base.network import host_and_port
from fleet.base.sockets import READ_BYTES, connect_socket
from fleet.errors import KeyRevoked, NotAllowed, TrackerUnavailable
from fleet.identity.certificates import issue_own, make_authority, make_key, own_key_id
from fleet.identity.credentials import MEMBER_NAME, Credentials, agent_name
from fleet.identity.roles import Identity, Role
from fleet.relay.counts import RelayCounts
from fleet.relay.options import RelayOptions
from fleet.relay.places import RelayLimits
from fleet.relay.server import serve_relay
from fleet.testing import eventually
from fleet.testing.identity import credentials
from fleet.testing.relay_peers import client_hello, registered_agent
from fleet.v1 import relay_service_pb2 as pb
from fleet.wire.peers import Guard
from fleet.wire.relay_preface import make_preface
from fleet.wire.rpc import from_rpc_error, make_channel, read_next
from fleet.wire.stubs import relay_service_stub

KEY = make_key()
_NOW = dt.datetime.now(dt.UTC)
AGENT = credentials(Role.AGENT, KEY)
HELLO = client_hello(agent_name(own_key_id(KEY)))


class Relay:
    """A running relay."""

    def __init__(self, address: str, counts: RelayCounts, revoked: set[str]) -> None:
        self.address = address
        self.counts = counts
        self.revoked = revoked

    async def connect(self, first_bytes: bytes = b"") -> socket.socket:
        """Return a connection that has sent these bytes."""
        connection = await connect_socket(*host_and_port(self.address))
        await asyncio.get_running_loop().sock_sendall(connection, first_bytes)
        return connection

    async def register(self, proof: Credentials) -> None:
        """Register once, and end."""
        async with make_channel(self.address, proof, MEMBER_NAME) as channel:
            call = relay_service_stub(channel).watch_clients(pb.WatchClientsRequest(), timeout=30)
            try:
                await read_next(call)
            except grpc.aio.AioRpcError as error:
                raise from_rpc_error(error, TrackerUnavailable) from error
            call.cancel()


@asynccontextmanager
async def serving(**limits: int) -> AsyncIterator[Relay]:
    """Serve a relay with these limits."""
    counts, revoked = RelayCounts(), set[str]()

    def check(caller: Identity) -> None:
        if caller.key_id in revoked:
            raise KeyRevoked("revoked")

    mine = credentials(Role.USER)
    options, guard = RelayOptions(port=0), Guard(check_member=check)
    async with serve_relay(options, lambda: mine, guard, counts, RelayLimits(**limits)) as address:
        yield Relay(address, counts, revoked)


async def echo(connection: socket.socket, first_bytes: bytes) -> None:
    """Return all bytes of a client to it."""
    loop, content = asyncio.get_running_loop(), first_bytes
    while content:
        await loop.sock_sendall(connection, content)
        content = await loop.sock_recv(connection, READ_BYTES)


async def receive(connection: socket.socket, size_bytes: int) -> bytes:
    """Return that many bytes, or fewer if the connection ends."""
    received = b""
    while len(received) < size_bytes:
        part = await asyncio.get_running_loop().sock_recv(connection, size_bytes - len(received))
        if not part:
            break
        received += part
    return received


async def drip(connection: socket.socket, content: bytes) -> None:
    """Send single bytes."""
    for byte in content:
        await asyncio.get_running_loop().sock_sendall(connection, bytes([byte]))
        await asyncio.sleep(0.001)


async def is_closed(connection: socket.socket) -> bool:
    """Wait until a connection ends without a byte."""
    try:
        async with asyncio.timeout(30):
            return not await asyncio.get_running_loop().sock_recv(connection, 1)
    except ConnectionError:
        return True


async def test_bytes_are_carried_both_ways() -> None:
    """The hello and later bytes reach the agent unchanged, as do its bytes the client."""
    content = bytes(range(256)) * 4096
    async with serving() as relay, registered_agent(relay.address, AGENT, echo):
        with await relay.connect(HELLO) as client:
            sending = asyncio.create_task(asyncio.get_running_loop().sock_sendall(client, content))
            received = await receive(client, len(HELLO) + len(content))
            await sending
            clients = relay.counts.clients

        await eventually(lambda: relay.counts.ended_clients == 1)

    assert received == HELLO + content
    assert (clients, relay.counts.clients) == (1, 0)
    assert relay.counts.carried_bytes == len(HELLO) + 2 * len(content)


@pytest.mark.parametrize(
    "first_bytes",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        client_hello("tracker.fleet"),
        client_hello(agent_name("0" * 40)),
        make_preface(bytes(16)),
        b"\x16\x03\x01\x00\x00",
    ],
    ids=["http", "other-name", "unknown-agent", "unknown-secret", "empty-record"],
)
async def test_other_first_bytes_close_the_connection(first_bytes: bytes) -> None:
    """Nothing is answered, and the relay goes on."""
    async with serving() as relay:
        with await relay.connect(first_bytes) as stranger:
            assert await is_closed(stranger)
        assert relay.counts.refusals.total() == 1

        async with registered_agent(relay.address, AGENT, echo):
            with await relay.connect(HELLO) as client:
                assert await receive(client, len(HELLO)) == HELLO


async def test_silence_and_single_bytes_keep_nobody_out() -> None:
    """Silent connections of one source give way; a hello in single bytes is refused after some of them."""
    async with AsyncExitStack() as stack:
        relay = await stack.enter_async_context(serving(silent_of_source=4))
        await stack.enter_async_context(registered_agent(relay.address, AGENT, echo))
        silent = [stack.enter_context(await relay.connect()) for _ in range(8)]
        assert [await is_closed(one) for one in silent[:3]] == [True] * 3
        dripping = stack.enter_context(await relay.connect())
        with pytest.raises(ConnectionError):
            await drip(dripping, HELLO * 1000)
        client = stack.enter_context(await relay.connect(HELLO))
        assert await receive(client, len(HELLO)) == HELLO


async def test_only_agents_of_the_fleet_register() -> None:
    """Not users, not agents of another authority, not revoked ones."""
    stranger = _of_another_fleet()
    async with serving() as relay:
        with pytest.raises(NotAllowed):
            await relay.register(credentials(Role.USER))
        with pytest.raises(TrackerUnavailable):
            await relay.register(stranger)
        relay.revoked.add(own_key_id(KEY))
        with pytest.raises(KeyRevoked):
            await relay.register(AGENT)
        relay.revoked.clear()
        await relay.register(AGENT)


def _of_another_fleet() -> Credentials:
    """Return an agent's credentials from another authority that trusts this one."""
    known = credentials(Role.AGENT)
    other = make_authority(_NOW)
    forged = issue_own(other, KEY, name="agent", role=Role.AGENT, now=_NOW)
    return Credentials(
        key_pem=forged.key_pem, certificate_pem=forged.certificate_pem, authority_pem=known.authority_pem
    )


async def test_a_newer_stream_of_an_agent_replaces_the_older() -> None:
    """An agent that lost its connection without the relay's notice is reached by its newest stream."""

    async def never(connection: socket.socket, first_bytes: bytes) -> None:
        raise AssertionError("the older stream got a client")

    async with serving() as relay, registered_agent(relay.address, AGENT, never) as older:
        async with registered_agent(relay.address, AGENT, echo):
            with await relay.connect(HELLO) as client:
                assert await receive(client, len(HELLO)) == HELLO
            assert older.done() or await asyncio.wait_for(older, 30) is None
            assert relay.counts.agents == 1
        await eventually(lambda: relay.counts.agents == 0)
        with await relay.connect(HELLO) as client:
            assert await is_closed(client)


async def test_one_source_does_not_take_all_of_an_agent() -> None:
    """A connection beyond the limit is closed at once; the end of another makes room."""
    async with AsyncExitStack() as stack:
        relay = await stack.enter_async_context(serving(of_agent_and_source=2))
        await stack.enter_async_context(registered_agent(relay.address, AGENT, echo))
        clients = [stack.enter_context(await relay.connect(HELLO)) for _ in range(2)]
        assert [await receive(client, len(HELLO)) for client in clients] == [HELLO] * 2
        further = stack.enter_context(await relay.connect(HELLO))
        assert await is_closed(further)
        clients[0].close()
        await eventually(lambda: relay.counts.clients == 1)
        further = stack.enter_context(await relay.connect(HELLO))
        assert await receive(further, len(HELLO)) == HELLO
    assert relay.counts.refusals == {"busy-agent": 1}
