"""TVM RPC servers that register at a gateway, as at TVM's own tracker: handed on to an agent that serves them.

The agent is one with the driver tvm_registered, and the gateway understands none of their messages. So clients and
servers of one machine share a port.
"""

from __future__ import annotations

import asyncio
import logging

from fleet.base.network import host_and_port
from fleet.wire.tvm_frames import INT, TRACKER_MAGIC, Code, Message
from fleet.wire.tvm_streams import read_frame

logger = logging.getLogger(__name__)


def is_of_server(message: Message) -> bool:
    """Tell whether the first message of a connection is a server's."""
    match message.code, message.arguments:
        case ((Code.PUT | Code.GET_PENDING_MATCHKEYS), _):
            return True
        case Code.UPDATE_INFO, [{"key": str(key)}, *_]:
            return key.startswith("server:")
    return False


async def hand_on(address: str, content: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Pass the messages of a server to an agent, and the replies back, until either side ends.

    Args:
        address: "host:port" where the agent takes registrations.
        content: first message of the server, without its length.

    Raises:
        BrokenMessage: an invalid length of a message.
        IncompleteReadError: one side closed its connection.
        OSError: the agent is unreachable, or a connection broke.
    """
    try:
        agent_reader, agent_writer = await asyncio.open_connection(*host_and_port(address))
    except OSError as error:
        logger.warning("cannot hand a server on", extra={"agent": address, "error": str(error)})
        raise
    try:
        agent_writer.write(INT.pack(TRACKER_MAGIC))
        await agent_reader.readexactly(INT.size)
        while True:
            agent_writer.write(INT.pack(len(content)) + content)
            reply = await read_frame(agent_reader, agent_writer)
            writer.write(INT.pack(len(reply)) + reply)
            await writer.drain()
            content = await read_frame(reader, writer)
    finally:
        agent_writer.close()
