"""Reads messages of TVM's tracker protocol from connections."""

from __future__ import annotations

import asyncio
import contextlib
import socket

from fleet.wire.tvm_frames import MOST_FRAME_BYTES, frame_length


async def read_frame(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, most_bytes: int = MOST_FRAME_BYTES
) -> bytes:
    """Read a message without its length.

    Raises:
        BrokenMessage: no valid length.
        IncompleteReadError: the peer closed the connection.
    """
    return await reader.readexactly(frame_length(await read_head(reader, writer), most_bytes))


async def read_head(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    """Read the first four bytes of a message, and acknowledge them without delay.

    Stock peers send the rest apart, and their kernel holds it back until then: 40 ms.

    Raises:
        IncompleteReadError: the peer closed the connection.
    """
    head = await reader.readexactly(4)
    with contextlib.suppress(OSError):
        writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
    return head
