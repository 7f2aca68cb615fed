"""A relay: first bytes of connections, its port, and the calls of agents."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Sequence
from contextlib import AsyncExitStack

from fleet.base.network import address_of, host_and_port
from fleet.base.sockets import READ_BYTES, connect_socket
from fleet.identity.credentials import MEMBER_NAME, agent_name
from fleet.identity.roles import Role
from fleet.relay.agents import Agents
from fleet.relay.client_hello import MOST_HELLO_BYTES
from fleet.relay.counts import RelayCounts
from fleet.relay.opening import OfAgent, parse_opening
from fleet.relay.options import RelayOptions
from fleet.relay.places import RelayLimits
from fleet.relay.refusal import Refused
from fleet.relay.server import serve_relay
from fleet.relay.service import RelayServicer
from fleet.testing.identity import credentials, key_id
from fleet.testing.relay_peers import client_hello, registered_agent
from fleet.wire.peers import Guard
from fleet.wire.relay_preface import MAGIC, SECRET_BYTES, make_preface
from fleet.wire.stubs import add_relay_service
from tests.fuzz.calls import BETWEEN, Caller, Server
from tests.fuzz.loops import ServerLoop
from tests.fuzz.target import Target, no_loop

_WAIT_SEC = 0.02
_MANY = 1_000


def openings() -> list[bytes]:
    """Return the first bytes of each kind of connection."""
    names = (agent_name(key_id(Role.AGENT)), agent_name("0" * 40), MEMBER_NAME, "tracker.fleet")
    return [*map(client_hello, names), make_preface(bytes(SECRET_BYTES))]


async def open_relay(stack: AsyncExitStack) -> int:
    """Serve a relay with an agent that returns its clients' bytes; return the port."""
    mine = credentials(Role.USER)
    limits = RelayLimits(of_agent=_MANY, of_agent_and_source=_MANY)
    serving = serve_relay(RelayOptions(port=0), lambda: mine, Guard(), limits=limits)
    address = await stack.enter_async_context(serving)
    await stack.enter_async_context(registered_agent(address, credentials(Role.AGENT), _echo))
    return host_and_port(address)[1]


async def ask_relay(port: int) -> None:
    """Reach the agent."""
    loop, hello = asyncio.get_running_loop(), openings()[0]
    with await connect_socket(*host_and_port(address_of("127.0.0.1", port))) as client:
        await loop.sock_sendall(client, hello)
        received = b""
        while len(received) < len(hello):
            part = await loop.sock_recv(client, READ_BYTES)
            if not part:
                break
            received += part
    if received != hello:
        raise AssertionError("the agent was not reached")


async def _echo(connection: socket.socket, first_bytes: bytes) -> None:
    loop, content = asyncio.get_running_loop(), first_bytes
    with contextlib.suppress(OSError):
        while content:
            await loop.sock_sendall(connection, content)
            content = await loop.sock_recv(connection, READ_BYTES)


def _parse(content: bytes) -> None:
    try:
        opening = parse_opening(content)
    except Refused:
        return
    if opening is None:
        assert len(content) < MOST_HELLO_BYTES
    elif isinstance(opening, OfAgent):
        assert content == make_preface(opening.secret)
    else:
        assert opening.first_bytes == content


class _Relay:
    """The service in this process."""

    def __init__(self) -> None:
        self._loop: ServerLoop | None = None
        self._server = Server()

    def call(self, content: bytes) -> float:
        if self._loop is None:
            self._loop = ServerLoop()
            add_relay_service(self._server, RelayServicer(Agents(), RelayCounts()))  # type: ignore[arg-type]
        return self._loop.run(self._ask(content.split(BETWEEN)))

    async def _ask(self, messages: Sequence[bytes]) -> None:
        """Wait a moment: the stream of a registered agent is endless."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_WAIT_SEC):
                caller = Caller(proof=credentials(Role.AGENT))
                await self._server.call("fleet.v1.RelayService/WatchClients", messages, caller, most_answers=2)

    def close(self) -> None:
        if self._loop is not None:
            self._loop.close()
        self._loop = None


_called = _Relay()
RELAY = [
    Target(
        name="relay_first_bytes",
        run=no_loop(_parse),
        seeds=openings,
        words=(MAGIC, b"\x16\x03\x01", b".agent.fleet", MEMBER_NAME.encode(), b"\x00\x00"),
        large_bytes=MOST_HELLO_BYTES,
    ),
    Target(name="relay_calls", run=_called.call, close=_called.close, seeds=lambda: [b""], quick_inputs=100),
]
