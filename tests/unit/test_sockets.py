"""Joining of two connections."""

from __future__ import annotations

import asyncio
import socket
from asyncio.selector_events import _SelectorTransport  # type: ignore[attr-defined]

import pytest

from fleet.base.sockets import Joiner


def connections() -> tuple[socket.socket, socket.socket]:
    one, other = socket.socketpair()
    one.setblocking(False)
    other.setblocking(False)
    return one, other


async def test_bytes_that_come_before_both_connections_are_ready_are_carried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python 3.11.2, which Debian 12 has, starts reading although the protocol has paused it."""

    def add_reader(transport: _SelectorTransport, descriptor: int, *callback: object) -> None:
        transport._loop._add_reader(descriptor, *callback)  # noqa: SLF001 - as Python 3.11.2 does it

    monkeypatch.setattr(_SelectorTransport, "_add_reader", add_reader)
    loop, (client, one), (other, agent) = asyncio.get_running_loop(), connections(), connections()
    client.sendall(b"early")
    client.shutdown(socket.SHUT_WR)
    joining = asyncio.create_task(Joiner().join(one, other))
    received = b""
    async with asyncio.timeout(30):
        while part := await loop.sock_recv(agent, 100):
            received += part
        await loop.sock_sendall(agent, b"reply")
        agent.shutdown(socket.SHUT_WR)
        reply = await loop.sock_recv(client, 100)
        await joining
    client.close()
    agent.close()

    assert (received, reply) == (b"early", b"reply")
