"""The ports of tracker, agent, optimizer, gateway and relay: bytes of other protocols, frames that are cut off or mixed
up, calls that are begun and never ended, and silence.

The first three are without TLS here: these are the bytes of a peer that has shown its certificate. Their calls carry
valid credentials, so that they reach a service. Now and then a true call has to be answered beside all that.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack

import grpc.aio

import fleet.aio
from fleet.cost_model.feature_codec import FEATURE_VERSION
from fleet.gateway.greetings import SESSION_MAGIC
from fleet.gateway.options import GatewayOptions
from fleet.gateway.server import serve_gateway
from fleet.identity.credentials import PlainSecret
from fleet.testing import serve_tracker
from fleet.v1 import cost_model_service_pb2, fleet_service_pb2, lease_service_pb2, session_service_pb2
from fleet.wire import rpc, stubs, tvm_frames
from fleet.wire.peers import SECRET_HEADER, Guard
from fleet.wire.tokens import TOKEN_HEADER
from tests.fuzz import frames
from tests.fuzz.loops import ServerLoop
from tests.fuzz.target import Target
from tests.fuzz.targets.agent import open_agent, token
from tests.fuzz.targets.optimizer import open_optimizer
from tests.fuzz.targets.relay import ask_relay, open_relay, openings
from tests.fuzz.targets.tracker import open_tracker

_LIVES = 500
"""Inputs per server; then another one starts, without their leftovers."""
_HELD = 32
"""Connections that are kept open without further bytes; the oldest makes room."""
_ASK_EVERY = 20
_ASK_SEC = 30.0
_SECRET = PlainSecret(secret=b"known to both")
_TOKEN = token(holder_key_id="")
_ENDS_WELL, _ENDS_AT_ONCE, _STAYS = b"\x00", b"\x01", b"\x02"
"""The first byte of an input, modulo three: the connection is closed, reset, or stays open without another word."""

OpenServices = Callable[[AsyncExitStack, grpc.aio.Server, Guard], Awaitable[object]]
Open = Callable[[AsyncExitStack], Awaitable[int]]
Ask = Callable[[int], Awaitable[object]]


class _Port:
    """A server in this process, behind a port."""

    def __init__(self, open_port: Open, ask: Ask) -> None:
        """Args:
        open_port: starts a server and returns its port.
        ask: makes a call that has to be answered.
        """
        self._open = open_port
        self._ask = ask
        self._loop: ServerLoop | None = None
        self._stack = AsyncExitStack()
        self._held: deque[asyncio.StreamWriter] = deque()
        self._port = 0
        self._inputs = 0

    def connect(self, content: bytes) -> float:
        """Connect, send bytes, and end the connection as the first byte selects."""
        loop = self._loop = self._loop or ServerLoop()
        if self._inputs % _LIVES == 0:
            loop.run(self._stop())
            loop.run(self._start())
        self._inputs += 1
        turn_sec = loop.run(self._send(content[1:], end=content[0] % 3 if content else 0))
        if self._inputs % _ASK_EVERY == 0:
            turn_sec = max(turn_sec, loop.run(self._is_answered()))
        return turn_sec

    def close(self) -> None:
        if self._loop is not None:
            self._loop.run(self._stop())
            self._loop.close()
        self._loop, self._inputs = None, 0

    async def _start(self) -> None:
        self._port = await self._open(self._stack)

    async def _stop(self) -> None:
        while self._held:
            await _reset(self._held.popleft())
        await self._stack.aclose()

    async def _send(self, content: bytes, *, end: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        writer.write(content)
        if end == _STAYS[0]:
            self._held.append(writer)
            if len(self._held) > _HELD:
                await _reset(self._held.popleft())
            return
        if end == _ENDS_WELL[0]:
            with contextlib.suppress(OSError):  # the server has hung up already
                writer.write_eof()
                while await reader.read(65536):
                    pass
        await _reset(writer)

    async def _is_answered(self) -> None:
        async with asyncio.timeout(_ASK_SEC):
            await self._ask(self._port)


def _grpc_port(open_services: OpenServices, ask: Callable[[rpc.Channel], Awaitable[object]], most_bytes: int) -> _Port:
    async def start(stack: AsyncExitStack) -> int:
        server = rpc.make_server(most_bytes)
        await open_services(stack, server, Guard(secret=lambda: _SECRET, request_sec=1.0))
        stack.push_async_callback(server.stop, None)
        port = rpc.bind(server, "127.0.0.1", 0, None, what="the test")
        await server.start()
        return port

    async def call(port: int) -> None:
        async with rpc.make_channel(f"127.0.0.1:{port}", _SECRET) as channel:
            await ask(channel)

    return _Port(start, call)


async def _open_gateway(stack: AsyncExitStack) -> int:
    tracker = await stack.enter_async_context(serve_tracker())
    client = await stack.enter_async_context(fleet.aio.connect(tracker.address))
    address = await stack.enter_async_context(serve_gateway(client, GatewayOptions(port=0, tvm_version="0.27")))
    return int(address.rpartition(":")[2])


async def _ask_gateway(port: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    magic, ping = tvm_frames.INT.pack(tvm_frames.TRACKER_MAGIC), tvm_frames.format_frame([tvm_frames.Code.PING])
    writer.write(magic + ping)
    answer = magic + tvm_frames.success()
    if answer != await reader.readexactly(len(answer)):
        raise AssertionError("another answer to a ping")
    await _reset(writer)


async def _reset(writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


async def _ask_tracker(channel: rpc.Channel) -> object:
    return await stubs.fleet_service_stub(channel).get_fleet(fleet_service_pb2.GetFleetRequest())


async def _ask_agent(channel: rpc.Channel) -> object:
    request, metadata = session_service_pb2.FindMissingRequest(), ((TOKEN_HEADER, _TOKEN),)
    return await stubs.session_service_stub(channel).find_missing(request, metadata=metadata)


async def _ask_optimizer(channel: rpc.Channel) -> object:
    request = cost_model_service_pb2.WatchSnapshotsRequest(feature_version=FEATURE_VERSION)
    return await stubs.cost_model_service_stub(channel).watch_snapshots(request).read()


def _connections(calls: Sequence[tuple[str, bytes]], *metadata: tuple[str, bytes]) -> list[bytes]:
    """Return connections that make calls, "Service/Method" with its request, and others that only begin to."""
    shown = ((SECRET_HEADER, _SECRET.secret), *metadata)
    found = []
    for method, request in calls:
        begun = frames.greeting() + frames.headers(f"/fleet.v1.{method}", shown)
        whole = begun + frames.message(request)
        found += [
            _ENDS_WELL + whole,
            _ENDS_AT_ONCE + whole,
            _STAYS + begun,
            _STAYS + begun + frames.message(request, is_last=False),
            _STAYS + begun + frames.frame(frames.DATA, 0, 1, struct.pack(">BI", 0, len(request) + 9) + request),
            _ENDS_WELL + begun + frames.frame(frames.DATA, 1, 1, struct.pack(">BI", 0, 2**32 - 1)),
            _ENDS_WELL + begun + frames.frame(frames.DATA, 1, 1, struct.pack(">BI", 1, 4) + b"\xff" * 4),
            _ENDS_WELL + whole + frames.frame(frames.RESET, 0, 1, bytes(4)) + whole[len(frames.greeting()) :],
            _ENDS_WELL + whole[: len(whole) - len(request) // 2 - 3],
        ]
    return [
        *found,
        _ENDS_WELL + frames.greeting() + frames.headers("/fleet.v1.\udcff/Method", shown) + frames.message(b""),
        _STAYS,
        _STAYS + frames.PREFACE,
        _ENDS_WELL + frames.greeting() + frames.frame(frames.PING, 0, 0, bytes(8)),
        _ENDS_WELL + frames.greeting() + frames.frame(frames.SETTINGS, 0, 0, struct.pack(">HI", 4, 65535)),
        _ENDS_WELL + bytes.fromhex("16030100050100000100") + bytes(40),
        _ENDS_WELL + b"GET / HTTP/1.1\r\nHost: here\r\n\r\n",
    ]


def _tracker_connections() -> list[bytes]:
    hello = lease_service_pb2.OpenLeasesRequest(hello=lease_service_pb2.ClientHello(client_id="c", holder="me"))
    return _connections(
        [
            ("FleetService/GetFleet", b""),
            ("LeaseService/OpenLeases", hello.SerializeToString()),
            ("LeaseService/RevokeLease", lease_service_pb2.RevokeLeaseRequest(lease_name="a").SerializeToString()),
        ]
    )


def _agent_connections() -> list[bytes]:
    missing = session_service_pb2.FindMissingRequest(digests=["sha256:" + "0" * 64])
    put = session_service_pb2.PutArtifactRequest(digest="sha256:" + "0" * 64, size_bytes=9, chunk=b"latency")
    calls = [
        ("SessionService/FindMissing", missing.SerializeToString()),
        ("SessionService/PutArtifact", put.SerializeToString()),
        ("SessionService/WatchLogs", b""),
    ]
    return _connections(calls, (TOKEN_HEADER, _TOKEN))


def _optimizer_connections() -> list[bytes]:
    request = cost_model_service_pb2.WatchSnapshotsRequest(feature_version=FEATURE_VERSION)
    return _connections([("CostModelService/WatchSnapshots", request.SerializeToString())])


def _gateway_connections() -> list[bytes]:
    """Return connections with each message of a client, and greetings of sessions."""
    messages: list[list[object]] = [
        [1],
        [2, "stop"],
        [3, "key", [5000, "key:0.1"], None],
        [4, "kind=cpu", "me", 0],
        [4, "secret/kind=cpu,mem>=1", "me", -5],
        [5, {"key": "server:a", "addr": [None, 99999]}],
        [6],
        [7],
    ]
    magic = tvm_frames.INT.pack(tvm_frames.TRACKER_MAGIC)
    talks = [
        magic + b"".join(map(tvm_frames.format_frame, chosen)) for chosen in [*([one] for one in messages), messages]
    ]
    name = b"client:fleet:0 -timeout=3"
    sizes = [tvm_frames.INT.pack(size) for size in (len(name), 0, -1, 2**31 - 1)]
    talks += [tvm_frames.INT.pack(SESSION_MAGIC) + size + name for size in sizes]
    return [end + talk for talk in talks for end in (_ENDS_WELL, _ENDS_AT_ONCE, _STAYS)]


def _relay_connections() -> list[bytes]:
    return [end + opening for opening in openings() for end in (_ENDS_WELL, _ENDS_AT_ONCE, _STAYS)]


def _target(name: str, port: _Port, seeds: Callable[[], Sequence[bytes]]) -> Target:
    return Target(
        name=name,
        run=port.connect,
        close=port.close,
        seeds=seeds,
        words=(
            frames.PREFACE,
            frames.frame(frames.SETTINGS, 0, 0, b""),
            frames.frame(frames.HEADERS, 5, 3, b""),
            frames.frame(frames.GO_AWAY, 0, 0, bytes(8)),
            frames.frame(frames.RESET, 0, 1, bytes(4)),
            frames.frame(frames.WINDOW, 0, 0, bytes(4)),
        ),
        quick_inputs=60,
    )


PORTS = [
    _target("tracker_port", _grpc_port(open_tracker, _ask_tracker, rpc.MAX_REQUEST_BYTES), _tracker_connections),
    _target("agent_port", _grpc_port(open_agent, _ask_agent, rpc.MAX_MESSAGE_BYTES), _agent_connections),
    _target(
        "optimizer_port", _grpc_port(open_optimizer, _ask_optimizer, rpc.MAX_REQUEST_BYTES), _optimizer_connections
    ),
    _target("gateway_port", _Port(_open_gateway, _ask_gateway), _gateway_connections),
    _target("relay_port", _Port(open_relay, ask_relay), _relay_connections),
]
