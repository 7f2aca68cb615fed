"""Calls with requests and responses in chunks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, TypeVar

import grpc.aio

from fleet.wire.chunks import Chunk, cut, join
from fleet.wire.options import MAX_MESSAGE_BYTES
from fleet.wire.rpc import read_next

P = TypeVar("P")


async def exchange(call: grpc.aio.StreamStreamCall[P, Any], request: bytes, make: Callable[..., P]) -> bytearray:
    """Send a serialised request and return the serialised response.

    Args:
        make: the class of the chunks.

    Raises:
        grpc.aio.AioRpcError: the call failed.
    """
    try:
        for chunk in cut([request], lambda size_bytes, chunk: make(size_bytes=size_bytes, piece=chunk)):
            await call.write(chunk)
        await call.done_writing()
    except asyncio.InvalidStateError:
        pass  # the agent ended the call early; its error is read below
    return await join(_chunks_of(call), MAX_MESSAGE_BYTES)


async def _chunks_of(call: grpc.aio.StreamStreamCall[Any, Any]) -> AsyncIterator[Chunk]:
    while (chunk := await read_next(call)) is not None:
        yield chunk
