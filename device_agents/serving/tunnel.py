"""Carries the bytes of one RPC session between its client and a worker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator

from device_agents.workers.handle import WorkerHandle, WorkerLost
from fleet.errors import DeviceError, InvalidRequest
from fleet.wire.options import TUNNEL_BYTES


async def carry(worker: WorkerHandle, contents: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
    """Yield the worker's bytes until it ends, first nothing once it is ready, and send it the client's `contents`.

    Both directions have back-pressure.

    Raises:
        DeviceError: the worker crashed, hung or exceeded a limit.
        InvalidRequest: the worker's runtime serves no such sessions.
    """
    try:
        reader, writer = await worker.serve_rpc()
    except WorkerLost as lost:
        raise DeviceError(str(lost)) from lost
    yield b""
    sending = asyncio.create_task(_send(contents, writer), name=f"tunnel-{worker.pid}")
    try:
        while content := await reader.read(TUNNEL_BYTES):
            yield content
        lost_after = await worker.failure()
        if lost_after is not None:
            raise DeviceError(str(lost_after))
    finally:
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
        writer.close()


async def _send(contents: AsyncIterator[bytes], writer: asyncio.StreamWriter) -> None:
    async for content in contents:
        if len(content) > TUNNEL_BYTES:
            writer.close()
            raise InvalidRequest(f"a piece of {len(content)} bytes; Tunnel takes {TUNNEL_BYTES}")
        writer.write(content)
        await writer.drain()
    writer.write_eof()
