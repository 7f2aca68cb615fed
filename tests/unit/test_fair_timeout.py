"""Timeouts for messages from peers, in a process that stalls at times."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import pytest

from fleet.errors import InvalidRequest
from fleet.tracker.streams import first_message


async def test_a_hello_that_came_while_the_tracker_stood_still_is_in_time() -> None:
    """A hello that waits in the socket when the limit is over is read before the timeout is reported."""
    loop = asyncio.get_running_loop()
    hello: asyncio.Future[str] = loop.create_future()

    def stand_still() -> None:
        time.sleep(0.1)
        loop.call_soon(hello.set_result, "hello")  # simulates reading a message that waited in the socket

    async def messages() -> AsyncIterator[str]:
        yield await hello

    loop.call_soon(stand_still)

    assert await first_message(messages(), 0.05) == "hello"


async def test_a_silent_peer_times_out() -> None:
    """The limit still applies if no message comes."""

    async def messages() -> AsyncIterator[str]:
        await asyncio.Event().wait()
        yield "never"

    with pytest.raises(InvalidRequest):
        await first_message(messages(), 0.01)
