"""One RPC session of a stock TVM client, carried to the worker of a leased device."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Callable

from fleet.client.device import Device
from fleet.errors import FleetError
from fleet.gateway.greetings import greeting_answer
from fleet.gateway.rpc_errors import exception_message, timeout_text
from fleet.wire.options import TUNNEL_BYTES

logger = logging.getLogger(__name__)


async def carry(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    device: Device,
    timeout_sec: int | None,
    on_client_end: Callable[[], None],
) -> None:
    """Serve a session after its greeting, until either side ends it.

    Args:
        timeout_sec: time limit of the session [s]; None: unlimited. The client gets TVM's own error then.
        on_client_end: called as soon as the client has closed the session; its worker takes a while longer to end.
    """
    try:
        async with asyncio.timeout(timeout_sec):
            await _pump(writer, device, _contents(reader, on_client_end))
    except TimeoutError:
        await fail(writer, timeout_text(timeout_sec or 0))
    except FleetError as error:
        logger.warning("session failed", extra={"device": device.name, "reason": str(error)})
        await fail(writer, str(error))


async def fail(writer: asyncio.StreamWriter, text: str) -> None:
    """Fail the next call of a session's client with an error of this text."""
    writer.write(exception_message(text))
    await writer.drain()


async def _pump(writer: asyncio.StreamWriter, device: Device, contents: AsyncGenerator[bytes, None]) -> None:
    writer.write(greeting_answer(device.name.removeprefix("devices/")))
    async with contextlib.aclosing(device.tunnel(contents)) as pieces:
        async for piece in pieces:
            writer.write(piece)
            await writer.drain()


async def _contents(reader: asyncio.StreamReader, on_end: Callable[[], None]) -> AsyncGenerator[bytes, None]:
    with contextlib.suppress(ConnectionError):
        while content := await reader.read(TUNNEL_BYTES):
            yield content
    on_end()
