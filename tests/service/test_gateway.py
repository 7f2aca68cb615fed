"""A gateway in front of a real tracker and agent, spoken to byte by byte."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from device_agents.agent import Agent
from fleet.gateway.greetings import SESSION_MAGIC
from fleet.gateway.options import GatewayOptions
from fleet.gateway.server import Gateway
from fleet.testing import eventually
from fleet.tracker.core.queries import Queries
from fleet.wire import tvm_frames as frames
from tests.service.gateway_site import VERSION, Site, TrackerPeer, connect, greeted, serve_site

pytestmark = pytest.mark.slow
REQUEST = [4, "board", "me", 0]
MAGIC = frames.INT.pack(frames.TRACKER_MAGIC)
STRANGER = """
import os, socket, sys
os.setgroups([]), os.setuid(65534)
connection = socket.create_connection(("127.0.0.1", int(sys.argv[1])), 10)
connection.sendall(bytes.fromhex(sys.argv[2]))
print(connection.recv(100))
"""


async def granted(peer: TrackerPeer) -> str:
    """Request a device, and return the match key."""
    code, (_, _, match_key) = json.loads(await peer.ask(REQUEST))
    assert code == 0
    return str(match_key)


def leases(site: Site) -> int:
    return len(site.tracker.tracker.state.leases)


def waiting(site: Site) -> int:
    return Queries(site.tracker.tracker.state).request_count


async def test_a_match_key_is_good_for_one_session(tmp_path: Path) -> None:
    """The second greeting with it is refused with TVM's code, and the lease ends soon after the session."""
    async with serve_site(tmp_path) as site:
        match_key = await granted(await TrackerPeer.open(site.port))
        reader, writer = await greeted(site.port, match_key)
        assert await reader.readexactly(4) == frames.INT.pack(SESSION_MAGIC)
        other, _ = await greeted(site.port, match_key)
        assert await other.readexactly(4) == frames.INT.pack(SESSION_MAGIC + 2)
        assert leases(site) == 1
        writer.close()

        await eventually(lambda: not leases(site))
        assert not site.agent.worker_pids


async def test_a_match_key_is_void_after_its_lease(tmp_path: Path) -> None:
    """The session ends with TVM's message of an error, and another device can be had."""
    async with serve_site(tmp_path) as site:
        peer = await TrackerPeer.open(site.port)
        match_key = await granted(peer)
        await site.client.revoke(next(iter(site.tracker.tracker.state.leases)))
        reader, _ = await greeted(site.port, match_key)

        assert b"revoked" in await asyncio.wait_for(reader.read(), 30)
        assert await granted(peer)


def workers(agent: Agent, count: int) -> set[int]:
    """Return the workers if there are `count`, else none."""
    found = set(agent.worker_pids)
    return found if len(found) == count else set()


async def silence() -> AsyncIterator[bytes]:
    await asyncio.Event().wait()
    yield b""


async def test_a_spare_worker_serves_the_next_session(tmp_path: Path) -> None:
    """It has run nothing, serves one session, and dies with the lease."""
    async with serve_site(tmp_path) as site:
        async with site.client.acquire("cpu") as device:
            left = set[int]()  # the worker of the reference kernel, and the spare one
            for number in range(3):
                async with contextlib.aclosing(device.tunnel(silence())) as pieces:
                    assert await anext(pieces) == b""
                    serving = await eventually(functools.partial(workers, site.agent, 3))
                assert left < serving
                ended = serving - await eventually(functools.partial(workers, site.agent, 2))
                assert len(ended & left) == (1 if number else 0)
                left = serving - ended

        await eventually(lambda: not site.agent.worker_pids)


async def test_a_request_waits_for_no_worker_that_is_ending(tmp_path: Path) -> None:
    """The client has closed its session, so the device is its own again. The next session begins after the worker."""
    async with serve_site(tmp_path) as site:
        peer = await TrackerPeer.open(site.port)
        _, writer = await greeted(site.port, await granted(peer))
        ending = await eventually(functools.partial(workers, site.agent, 3))
        for pid in ending:
            os.kill(pid, signal.SIGSTOP)
        writer.close()
        match_key = await asyncio.wait_for(granted(peer), 20)
        for pid in ending:
            os.kill(pid, signal.SIGCONT)

        reader, _ = await greeted(site.port, match_key)
        assert await reader.readexactly(4) == frames.INT.pack(SESSION_MAGIC)
        await eventually(lambda: ending - set(site.agent.worker_pids))


async def test_a_server_that_registers_is_refused(tmp_path: Path) -> None:
    """Also with an impossible port."""
    async with serve_site(tmp_path) as site:
        peer = await TrackerPeer.open(site.port)

        assert await peer.ask([5, {"key": "server:a", "addr": [None, "99999"]}]) == b"0"
        assert await peer.ask([3, "a", [99999, "a:1"], None]) == b"-1"
        assert await peer.ask([2, "stop"]) == b"-1"


async def test_silent_connections_shut_nobody_out(tmp_path: Path) -> None:
    """The oldest of them make room."""
    async with serve_site(tmp_path) as site:
        silent = [await connect(site.port) for _ in range(600)]
        peer = await TrackerPeer.open(site.port)

        assert await peer.ask([1]) == b"0"
        assert await silent[0][0].read() == b""


async def test_a_client_that_vanishes_leaves_the_queue(tmp_path: Path) -> None:
    async with serve_site(tmp_path) as site, site.client.acquire("cpu"):
        peer = await TrackerPeer.open(site.port)
        peer.send(REQUEST)
        await eventually(lambda: waiting(site) == 1)
        peer.writer.close()

        await eventually(lambda: not waiting(site))


async def test_one_lease_serves_clients_in_turn(tmp_path: Path) -> None:
    """A kept lease goes to the next session without another grant."""
    async with serve_site(tmp_path) as site:
        first, second = await TrackerPeer.open(site.port), await TrackerPeer.open(site.port)
        match_key = await granted(first)
        names = set(site.tracker.tracker.state.leases)
        second.send(REQUEST)
        await eventually(lambda: waiting(site) == 1)
        _, writer = await greeted(site.port, match_key)
        writer.close()
        assert json.loads(await second.reply())[0] == 0

        assert set(site.tracker.tracker.state.leases) == names
        await eventually(lambda: not waiting(site))


async def test_an_unused_grant_is_given_back(tmp_path: Path) -> None:
    async with serve_site(tmp_path) as site:
        gateway = Gateway(site.client, GatewayOptions(tvm_version=VERSION), unused_sec=0.2)
        server = await asyncio.start_server(gateway.serve, "127.0.0.1", 0)
        await granted(await TrackerPeer.open(server.sockets[0].getsockname()[1]))
        assert leases(site) == 1

        await eventually(lambda: not leases(site))
        server.close()
        await gateway.close()


async def test_impossible_requests_are_refused_at_once(tmp_path: Path) -> None:
    """With a sentence that stock clients print."""
    async with serve_site(tmp_path) as site:
        peer = await TrackerPeer.open(site.port)
        refused = [json.loads(await peer.ask([4, key, "me", 0])) for key in ("nobody-has-this", "mem>=", "a=b=c,")]

        assert [code for code, _ in refused] == [-1, -1, -1]
        assert "nobody-has-this" in refused[0][1]
        assert await peer.ask([1]) == b"0"


async def test_devices_of_another_tvm_are_refused_before_the_grant(tmp_path: Path) -> None:
    """The encoding of arguments differs, and no client says its version."""
    async with serve_site(tmp_path, version="0.19") as site:
        code, text = json.loads(await (await TrackerPeer.open(site.port)).ask(REQUEST))

        assert (code, "TVM 0.19" in text, f"TVM {VERSION}" in text) == (-1, True, True)
        assert not leases(site)


async def test_the_summary_names_aliases_and_kinds(tmp_path: Path) -> None:
    async with serve_site(tmp_path, devices=2) as site:
        _, summary = json.loads(await (await TrackerPeer.open(site.port)).ask([6]))

        assert summary["queue_info"] == {key: {"free": 2, "pending": 0} for key in ("board", "cpu")}
        assert [one["key"] for one in summary["server_info"]] == [
            f"server:{key}" for key in ("board", "board", "cpu", "cpu")
        ]


@pytest.mark.parametrize(
    "content",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\0\0\0\0",
        *(MAGIC + frames.INT.pack(length) for length in (2**31 - 1, 0, -1)),
        MAGIC + frames.format_frame({"key": "board"}),
        MAGIC + frames.format_frame([4, ["board"], "me", 0]),
        *(frames.INT.pack(SESSION_MAGIC) + frames.INT.pack(length) for length in (2**31 - 1, 0, -1)),
    ],
    ids=[
        *("http", "zeros", "huge frame", "no length", "negative length", "no list", "no key"),
        *("huge greeting", "no greeting", "negative greeting"),
    ],
)
async def test_peers_of_other_protocols_are_closed(content: bytes, tmp_path: Path) -> None:
    async with serve_site(tmp_path) as site:
        reader, writer = await connect(site.port)
        writer.write(content)

        assert len(await asyncio.wait_for(reader.read(), 10)) <= 4


async def test_a_message_in_single_bytes_is_read(tmp_path: Path) -> None:
    async with serve_site(tmp_path) as site:
        peer = await TrackerPeer.open(site.port)
        for byte in frames.format_frame([1]):
            peer.writer.write(bytes([byte]))
            await peer.writer.drain()

        assert await peer.reply() == b"0"


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
async def test_connections_of_other_users_are_closed_unread(tmp_path: Path) -> None:
    """Not a byte is answered, not even the magic number."""
    async with serve_site(tmp_path) as site:
        magic = frames.INT.pack(frames.TRACKER_MAGIC).hex()
        command = [sys.executable, "-c", f"import encodings.idna{STRANGER}", str(site.port), magic]
        ended = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=60)

    assert ended.stdout.strip() in ("b''", ""), ended.stderr
    assert ended.stdout or "ConnectionResetError" in ended.stderr
