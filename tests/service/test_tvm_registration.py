"""Port where TVM RPC servers register, spoken to byte by byte, and sessions with a server that a test plays."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from functools import partial
from typing import Any, ClassVar

import pytest

from device_agents.driver import NoStrays
from device_agents.drivers.tvm_registered import port as registration_port
from device_agents.drivers.tvm_registered import station as server_station
from device_agents.drivers.tvm_registered.driver import ServerFinder, TvmRegisteredDriver
from device_agents.runtimes.tvm_rpc.handshake import NotServed, accept_session, open_session, welcome
from fleet.errors import DeviceUnreachable
from fleet.testing import eventually
from fleet.wire.tvm_frames import INT, TRACKER_MAGIC, format_frame

TARGET = {"kind": "llvm", "mtriple": "x86_64-linux-gnu"}


def find(**keys: dict[str, object]) -> ServerFinder:
    values = {"listen": "127.0.0.1:0", "keys": {name: {"target": TARGET, **more} for name, more in keys.items()}}
    return TvmRegisteredDriver.finder(values, where="entry", host_name="host")


@pytest.fixture
async def finder() -> AsyncIterator[ServerFinder]:
    made = find(rpi4={}, away={"from": "10.1.0.0/24"})
    assert await made.look() == []
    yield made
    await made.close()
    await Peer.close_all()


class Peer:
    """A connection as a stock server opens it."""

    opened: ClassVar[list[asyncio.StreamWriter]] = []

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.opened.append(writer)

    @classmethod
    async def close_all(cls) -> None:
        while cls.opened:
            cls.opened[-1].close()
            with contextlib.suppress(OSError):
                await cls.opened.pop().wait_closed()

    @classmethod
    async def open(cls, finder: ServerFinder) -> Peer:
        peer = await cls.connect(finder)
        peer.writer.write(INT.pack(TRACKER_MAGIC))
        assert await peer.reader.readexactly(4) == INT.pack(TRACKER_MAGIC)
        return peer

    @classmethod
    async def connect(cls, finder: ServerFinder) -> Peer:
        host, _, port = finder.address.rpartition(":")
        return cls(*await asyncio.open_connection(host, int(port)))

    async def ask(self, message: object) -> Any:
        self.writer.write(format_frame(message))
        (length,) = INT.unpack(await self.reader.readexactly(4))
        return json.loads(await self.reader.readexactly(length))

    async def put(self, match_key: str, *, port: int = 9090, key: str = "rpi4", host: str | None = None) -> None:
        assert await self.ask([3, key, [port, match_key], host]) == 0

    async def is_closed(self) -> bool:
        try:
            return await self.reader.read(100) == b""
        except ConnectionError:
            return True


async def appeared(finder: ServerFinder) -> TvmRegisteredDriver:
    """Wait for a new server, and return its open driver."""
    await asyncio.wait_for(finder.wait(), 10)
    (driver,) = await finder.look()
    assert isinstance(driver, TvmRegisteredDriver)
    await driver.open(NoStrays())
    return driver


async def reason(driver: TvmRegisteredDriver) -> str:
    health = await driver.probe()
    assert health.is_healthy == (not health.reason)
    return health.reason


async def test_messages_come_in_any_order(finder: ServerFinder) -> None:
    """An offer before the description, ports as texts, no fourth element; a server asks for its unused match keys."""
    peer = await Peer.open(finder)

    assert await peer.ask([3, "rpi4", ["9090", "rpi4:0.1"]]) == 0
    assert await peer.ask([5, {"key": "server:rpi4", "addr": [None, "9090"]}]) == 0
    assert await peer.ask([1]) == 0
    assert await peer.ask([7]) == ["rpi4:0.1"]
    driver = await appeared(finder)
    assert driver.name == "devices/rpi4-127.0.0.1-9090"
    assert driver.inventory().labels["tvm_key"] == "rpi4"
    await driver.close()


async def test_it_is_no_tracker_for_clients_and_is_not_stopped(finder: ServerFinder) -> None:
    peer = await Peer.open(finder)

    code, text = await peer.ask([4, "rpi4", "", 1])
    assert (code, "fleet gateway" in text) == (-1, True)
    assert await peer.ask([2, "key"]) == -1
    assert await peer.ask([6]) == -1


async def test_servers_that_are_not_listed_wait(finder: ServerFinder, caplog: pytest.LogCaptureFixture) -> None:
    """Another key, an address that its key does not have, and no host name: a line in the log, and no device."""
    peer = await Peer.open(finder)
    await peer.put("odd:0.1", key="odd")
    await peer.put("away:0.1", key="away")
    await peer.put("rpi4:0.1", host="192.0.2.1")
    await peer.put("rpi4:0.2", host="a/b")

    assert await peer.ask([7]) == ["odd:0.1", "away:0.1", "rpi4:0.1", "rpi4:0.2"]
    assert await finder.look() == []
    assert [record.__dict__["key"] for record in caplog.records if "waits" in record.message] == [
        "odd",
        "away",
        "rpi4",
        "rpi4",
    ]


async def test_settings_may_be_for_all_other_keys() -> None:
    """A key with a colon makes an id without one. What no selector could name is not served."""
    finder = find(**{"*": {"most": 2}, "rpi4": {"memory_mb": 64}})
    await finder.look()
    peer = await Peer.open(finder)
    for number, key in enumerate(("rpi4", "127.0.0.1:5555", "a=b", "*", "second", "third")):
        await peer.put(f"{key}:{number}", key=key, port=9090 + number)
    drivers = await finder.look()

    assert [driver.name for driver in drivers] == [
        "devices/rpi4-127.0.0.1-9090",
        "devices/127.0.0.1-5555-127.0.0.1-9091-28bff2c4db49",
        "devices/second-127.0.0.1-9094",
    ]
    for driver in drivers:
        await driver.open(NoStrays())
    assert [(one.labels["tvm_key"], one.memory_bytes >> 20) for one in (driver.inventory() for driver in drivers)] == [
        ("rpi4", 64),
        ("127.0.0.1:5555", 1024),
        ("second", 1024),
    ]
    for driver in drivers:
        await driver.close()
    await finder.close()
    await Peer.close_all()


async def test_a_lost_server_is_noticed_at_once(finder: ServerFinder) -> None:
    """The agent need not wait for its next check of the device's health."""
    peer = await Peer.open(finder)
    await peer.put("rpi4:0.1")
    driver = await appeared(finder)
    noticed = asyncio.Event()
    driver.noticed = noticed.set
    peer.writer.close()

    await asyncio.wait_for(noticed.wait(), 10)
    assert await reason(driver)
    await driver.close()


async def test_connections_from_other_networks_are_closed_unread() -> None:
    """They get no answer to the magic number."""
    finder = find(away={"from": "10.1.0.0/24"})
    await finder.look()
    peer = await Peer.connect(finder)
    peer.writer.write(INT.pack(TRACKER_MAGIC))

    assert await peer.is_closed()
    await finder.close()
    await Peer.close_all()


@pytest.mark.parametrize("limit", ["MOST_CONNECTIONS_OF_ADDRESS", "MOST_CONNECTIONS"])
async def test_connections_are_bounded(finder: ServerFinder, monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    """Those of one address, and all. A place is free again once its connection ends."""
    monkeypatch.setattr(registration_port, limit, 2)
    first, _ = await Peer.open(finder), await Peer.open(finder)
    assert await (await Peer.connect(finder)).is_closed()
    first.writer.close()

    await eventually(partial(can_open, finder))


async def can_open(finder: ServerFinder) -> bool:
    try:
        peer = await Peer.open(finder)
    except (asyncio.IncompleteReadError, ConnectionError):
        return False
    peer.writer.close()
    return True


async def test_a_peer_that_says_nothing_is_closed(finder: ServerFinder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registration_port, "_SILENCE_SEC", 0.05)

    assert await (await Peer.connect(finder)).is_closed()


@pytest.mark.parametrize(
    "content",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        INT.pack(0xFF271) + INT.pack(4) + b"rpi4",
        *(INT.pack(TRACKER_MAGIC) + INT.pack(length) for length in (0, -1, 2**31 - 1, 8 * 1024 + 1)),
        INT.pack(TRACKER_MAGIC) + INT.pack(4) + b"\xff\xff[]",
        INT.pack(TRACKER_MAGIC) + INT.pack(2) + b"[]",
        INT.pack(TRACKER_MAGIC) + INT.pack(8192) + b"[" * 8192,
        INT.pack(TRACKER_MAGIC) + format_frame({"code": 3}),
        INT.pack(TRACKER_MAGIC) + format_frame([99]),
        INT.pack(TRACKER_MAGIC) + format_frame([3, "rpi4", [99999, "rpi4:0.1"], None]),
        INT.pack(TRACKER_MAGIC) + format_frame([3, "rpi4", [9090, "rpi4:0.1 -timeout=1"], None]),
    ],
)
async def test_bad_frames_end_their_connection_only(finder: ServerFinder, content: bytes) -> None:
    """Another peer is still served."""
    other, peer = await Peer.open(finder), await Peer.connect(finder)
    peer.writer.write(content)

    rest = await asyncio.wait_for(peer.reader.read(), 10) if content[:4] == INT.pack(TRACKER_MAGIC) else b""
    assert rest in (b"", INT.pack(TRACKER_MAGIC))
    assert await peer.is_closed()
    await other.put("rpi4:0.1")
    assert len(await finder.look()) == 1


async def test_a_frame_may_come_in_single_bytes(finder: ServerFinder) -> None:
    peer = await Peer.connect(finder)
    for byte in INT.pack(TRACKER_MAGIC) + format_frame([3, "rpi4", [9090, "rpi4:0.1"], None]):
        peer.writer.write(bytes([byte]))
        await peer.writer.drain()
        await asyncio.sleep(0)

    assert await peer.reader.readexactly(9) == INT.pack(TRACKER_MAGIC) + format_frame(0)


async def test_a_server_that_registers_and_vanishes_is_away(finder: ServerFinder) -> None:
    """Its device stays, with the reason, and is the same when the server comes back."""
    peer = await Peer.open(finder)
    await peer.put("rpi4:0.1")
    driver = await appeared(finder)
    assert await reason(driver) == ""
    peer.writer.close()
    await eventually(partial(has, driver, "is not registered: its connection has ended"))
    again = await Peer.open(finder)
    await again.put("rpi4:0.2")

    assert await reason(driver) == ""
    assert await finder.look() == []
    await driver.close()


class PlayedServer:
    """A TVM RPC server that echoes the bytes of each session."""

    def __init__(self, finder: ServerFinder) -> None:
        self.finder = finder
        self.names: list[str] = []
        self.port = 0
        self._peer: Peer | None = None
        self._listener: asyncio.Server | None = None

    async def open(self) -> None:
        self._listener = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._listener.sockets[0].getsockname()[1]
        self._peer = await Peer.open(self.finder)
        await self._peer.put("rpi4:0", port=self.port)

    async def close(self) -> None:
        assert self._peer is not None
        assert self._listener is not None
        self._listener.close()
        self._peer.writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert self._peer is not None
        self.names.append(await accept_session(reader))
        writer.write(welcome("rpi4"))
        while content := await reader.read(65536):
            writer.write(content)
        writer.close()
        await self._peer.put(f"rpi4:{len(self.names)}", port=self.port)


@pytest.fixture
async def server(finder: ServerFinder) -> AsyncIterator[PlayedServer]:
    played = PlayedServer(finder)
    await played.open()
    yield played
    await played.close()


def door_of(driver: TvmRegisteredDriver) -> tuple[str, int, str]:
    settings: dict[str, Any] = driver.worker_spec().settings
    return settings["host"], settings["port"], settings["key"]


async def test_each_session_has_a_match_key_of_its_own(finder: ServerFinder, server: PlayedServer) -> None:
    """A worker uses one key for all its sessions, and its options reach the server."""
    driver = await appeared(finder)
    host, port, key = door_of(driver)
    for _ in range(3):
        await driver.prepare()
        reader, writer = await open_session(host, port, f"{key} -timeout=5")
        writer.write(b"ping")
        assert await reader.readexactly(4) == b"ping"
        writer.close()

    assert server.names == [f"rpi4:{number} -timeout=5" for number in range(3)]
    await driver.close()


async def test_a_server_may_open_a_connection_for_each_session(finder: ServerFinder) -> None:
    """TVM's Android app ends the one of the last session first; the device stays healthy meanwhile."""
    sessions: list[str] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        sessions.append(await accept_session(reader))
        writer.write(welcome("rpi4"))
        writer.close()

    listener = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    peer = await Peer.open(finder)
    await peer.put("rpi4:0", port=port)
    driver = await appeared(finder)
    for number in range(1, 3):
        reader, writer = await open_session(*door_of(driver))
        assert await reader.read() == b""
        writer.close()
        peer.writer.close()
        assert await reason(driver) == ""
        peer = await Peer.open(finder)
        await peer.put(f"rpi4:{number}", port=port)

    assert sessions == ["rpi4:0", "rpi4:1"]
    assert await finder.look() == []
    listener.close()
    await driver.close()


async def test_only_its_own_workers_open_sessions(finder: ServerFinder, server: PlayedServer) -> None:
    """Another process of the machine does not know the key of the loopback port."""
    driver = await appeared(finder)
    host, port, _ = door_of(driver)

    with pytest.raises(NotServed):
        await open_session(host, port, "rpi4 -timeout=5")
    assert server.names == []
    await driver.close()


async def test_a_server_counts_as_free_until_a_session_fails(finder: ServerFinder) -> None:
    """It is never probed. Then its device is unhealthy until it registers again."""
    closed = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    number = closed.sockets[0].getsockname()[1]
    closed.close()
    peer = await Peer.open(finder)
    await peer.put("rpi4:0.1", port=number)
    driver = await appeared(finder)
    host, port, key = door_of(driver)
    assert await reason(driver) == ""
    with pytest.raises(NotServed):
        await open_session(host, port, key)

    assert f"nothing listens at 127.0.0.1:{number}" in await reason(driver)
    await peer.put("rpi4:0.2", port=number)
    assert await reason(driver) == ""
    await driver.close()


@pytest.mark.parametrize(
    ("host", "message"),
    [("test_addr", "there is no host 'test_addr'"), ("127.2", "'127.2' is outside of the networks")],
)
async def test_a_host_name_is_looked_up_when_a_session_is_opened(host: str, message: str) -> None:
    """The agent connects to no address outside of the networks of the key, whatever names mean."""
    finder = find(rpi4={"from": "127.0.0.1/32"})
    await finder.look()
    await (await Peer.open(finder)).put("rpi4:0.1", host=host)
    driver = await appeared(finder)
    assert await reason(driver) == ""
    with pytest.raises(NotServed):
        await open_session(*door_of(driver))

    assert message in await reason(driver)
    await driver.close()
    await finder.close()
    await Peer.close_all()


async def test_a_server_may_name_its_host(finder: ServerFinder, server: PlayedServer) -> None:
    """As behind an address translator, or with several networks."""
    unnamed = await appeared(finder)
    peer = await Peer.open(finder)
    await peer.put("rpi4:named", port=server.port, host="localhost")
    driver = await appeared(finder)
    assert driver.name == f"devices/rpi4-localhost-{server.port}"
    _, writer = await open_session(*door_of(driver))
    writer.close()

    assert server.names == ["rpi4:named"]
    await driver.close()
    await unnamed.close()


async def test_a_server_that_does_not_register_again_is_reported(
    finder: ServerFinder, server: PlayedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when a kernel hangs there."""
    monkeypatch.setattr(server_station, "REGISTERING_SEC", 0.05)
    driver = await appeared(finder)
    host, port, key = door_of(driver)
    _, writer = await open_session(host, port, key)
    assert await reason(driver) == ""
    monkeypatch.setattr(PlayedServer, "_serve", None)
    await server.close()
    writer.close()

    await eventually(partial(has, driver, "has not registered again"))
    with pytest.raises(DeviceUnreachable, match="has not registered again"):
        await driver.prepare()
    await driver.close()


async def has(driver: TvmRegisteredDriver, text: str) -> bool:
    return text in await reason(driver)
