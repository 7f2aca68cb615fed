"""Read the first bytes of a connection, which say where it leads."""

from __future__ import annotations

import asyncio
import re
import socket
from dataclasses import dataclass
from typing import TypeAlias

from fleet.identity.credentials import MEMBER_NAME, agent_name
from fleet.relay.client_hello import MOST_HELLO_BYTES, NoClientHello, server_name_in
from fleet.relay.refusal import Refusal, Refused
from fleet.wire.relay_preface import MAGIC, PREFACE_BYTES, secret_in

_MOST_READS = 64
"""Each read parses all bytes so far; a ClientHello arrives in one to four."""

_AGENT_NAME = re.compile(agent_name("([0-9a-f]{40})"))


@dataclass(frozen=True, slots=True, kw_only=True)
class OfAgent:
    """An agent's connection for a waiting client."""

    secret: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ToAgent:
    """A client's connection to an agent."""

    key_id: str
    first_bytes: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ToRelay:
    """A connection to the relay's own service."""

    first_bytes: bytes


Opening: TypeAlias = OfAgent | ToAgent | ToRelay


async def read_opening(connection: socket.socket) -> Opening:
    """Read a connection up to the end of its ClientHello, or of an agent's preface. Set a time limit around it.

    Raises:
        Refused: it is neither.
        OSError: the connection broke.
    """
    content = b""
    for _ in range(_MOST_READS):
        # Not beyond a preface, which is shorter than any ClientHello: further bytes are the client's.
        wanted = PREFACE_BYTES if len(content) < PREFACE_BYTES else MOST_HELLO_BYTES
        received = await asyncio.get_running_loop().sock_recv(connection, wanted - len(content))
        content += received
        opening = parse_opening(content)
        if opening is not None:
            return opening
        if not received or len(content) >= MOST_HELLO_BYTES:
            break
    raise Refused(Refusal.MALFORMED)


def parse_opening(content: bytes) -> Opening | None:
    """Return the destination of a connection with these first bytes, or None if they are incomplete. Pure.

    Raises:
        Refused: they are malformed, or name nothing that a relay leads to.
    """
    if content[: len(MAGIC)] == MAGIC[: len(content)]:
        secret = secret_in(content)
        return None if secret is None else OfAgent(secret=secret)
    try:
        name = server_name_in(content)
    except NoClientHello as error:
        raise Refused(Refusal.MALFORMED) from error
    if name is None:
        return None
    if name == MEMBER_NAME:
        return ToRelay(first_bytes=content)
    if found := _AGENT_NAME.fullmatch(name):
        return ToAgent(key_id=found[1], first_bytes=content)
    raise Refused(Refusal.MALFORMED)
