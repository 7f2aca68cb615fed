"""Handshakes with other or hostile servers: no memory, time or driver is lost."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator

import pytest

from device_agents.driver import NoStrays
from device_agents.drivers.rpc_board import describe
from device_agents.drivers.tvm_rpc import TvmRpcConfig, TvmRpcDriver
from device_agents.runtimes.tvm_rpc.handshake import NotServed, knock, knock_patiently
from fleet.base.network import keep_alive
from fleet.errors import ConfigError
from fleet.testing import eventually

MAGIC = struct.pack("<i", 0xFF271)


@contextlib.asynccontextmanager
async def serving(answer: bytes | list[bytes], port: int = 0) -> AsyncIterator[int]:
    """Answer every connection with these pieces, and then stay silent; yield the port."""
    pieces = answer if isinstance(answer, list) else [answer]
    over = asyncio.Event()
    handlers: list[asyncio.Task[None] | None] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        handlers.append(asyncio.current_task())
        with contextlib.suppress(OSError):
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
                await reader.read(1)  # each piece in a packet of its own
            await over.wait()
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", port)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        over.set()
        server.close()
        await asyncio.gather(*filter(None, handlers), return_exceptions=True)


@pytest.mark.parametrize(
    "answer",
    [
        MAGIC + struct.pack("<i", -1),
        MAGIC + struct.pack("<i", 2**31 - 1),
        MAGIC + struct.pack("<i", 4097) + b"x" * 4097,
        b"HTTP/1.1 400 Bad Request\r\n",
    ],
)
async def test_nonsense_is_named(answer: bytes) -> None:
    """An invalid length allocates nothing, and ends neither the worker nor the agent's retries."""
    async with serving(answer) as port:
        with pytest.raises(NotServed, match="is not a TVM RPC server"):
            await asyncio.wait_for(knock_patiently("127.0.0.1", port, "key"), 30)
        with pytest.raises(NotServed, match="is not a TVM RPC server"):
            await asyncio.to_thread(knock, "127.0.0.1", port, "key", 60.0)


async def test_an_answer_in_pieces_is_an_answer() -> None:
    """A slow network cuts where it likes."""
    whole = MAGIC + struct.pack("<i", 10) + b"server:key"

    async with serving([whole[:2], whole[2:7], whole[7:]]) as port:
        await asyncio.wait_for(knock_patiently("127.0.0.1", port, "key"), 30)


async def test_a_driver_goes_on_looking_after_nonsense() -> None:
    """The device becomes healthy once a real server listens there."""
    async with serving(MAGIC + struct.pack("<i", -5)) as port:
        config = TvmRpcConfig(address=f"127.0.0.1:{port}", target={"kind": "llvm"})
        driver = TvmRpcDriver("board", config, "here", describe(config, where="test"), retry_sec=0.01)
        await driver.open(NoStrays())
        before = await driver.probe()
    async with serving(MAGIC + bytes(4), port):

        async def is_well() -> bool:
            return (await driver.probe()).is_healthy

        await eventually(is_well)
        await driver.close()

    assert "is not a TVM RPC server" in before.reason


class OddAtFirst(TvmRpcDriver):
    """A driver that fails its first knock with an unexpected error."""

    knocks = 0

    async def _knock(self) -> None:
        self.knocks += 1
        if self.knocks == 1:
            raise RuntimeError("odd")
        await super()._knock()


async def test_a_driver_retries_after_unexpected_errors() -> None:
    """Only this driver retries; the device would otherwise be lost until its agent restarts."""
    async with serving(MAGIC + bytes(4)) as port:
        config = TvmRpcConfig(address=f"127.0.0.1:{port}", target={"kind": "llvm"})
        driver = OddAtFirst("board", config, "here", describe(config, where="test"), retry_sec=0.5)
        await driver.open(NoStrays())
        before = await driver.probe()

        async def is_well() -> bool:
            return (await driver.probe()).is_healthy

        await eventually(is_well)
        await driver.close()

    assert before.reason.endswith("failed: odd")


@pytest.mark.parametrize("port", [0, 65536])
def test_a_port_that_no_server_has_is_refused(port: int) -> None:
    """It is refused when agent.yaml is read, since no server can have it."""
    entry = {"address": f"127.0.0.1:{port}", "target": {"kind": "llvm"}}

    with pytest.raises(ConfigError, match=r"test: address: '127\.0\.0\.1:"):
        TvmRpcDriver.from_config(entry, where="test", host_name="here")


def test_a_board_that_loses_its_power_is_noticed() -> None:
    """TCP keepalive detects a dead peer on a connection that waits without a time limit."""
    with socket.socket() as connection:
        keep_alive(connection)

        assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 15
