"""Handshake between a client and a TVM RPC server, implemented without TVM.

The client sends the magic number, the length of its name, and its name, "client:<key>" with options after a space. The
server answers with the magic number when it takes the session, with one above it when the key is taken, with two above
it when it is another's key. All integers are little endian. Each message must be complete: a server serves one session
at a time, so a connection that stays silent blocks all others.

`-timeout=` has to be a whole number of seconds: TVM's C++ server dies of a fraction.
"""

from __future__ import annotations

import asyncio
import socket
import struct

from fleet.base.network import keep_alive

_MAGIC = 0xFF271
_TAKEN, _MISMATCH = _MAGIC + 1, _MAGIC + 2
_INT = struct.Struct("<i")
_MOST_NAME_BYTES = 4096
"""Limit of a server's name, "server:<key>"; a peer that sends more is not a TVM RPC server."""


class NotServed(Exception):
    """The server is unreachable or refuses the session. The text gives the error and the remedy."""


class KeyRefused(NotServed):
    """The server has another key."""


def name_with_options(key: str, session_sec: int) -> str:
    """Return a client's name without "client:": the key, and the deadline of the session."""
    return f"{key} -timeout={session_sec}"


def greeting(key: str, session_sec: int) -> bytes:
    """Return the client's first message."""
    return _greeting(name_with_options(key, session_sec))


def check_answer(content: bytes, address: str, key: str) -> None:
    """Check the first four bytes of the answer.

    Raises:
        NotServed: the server does not take the session, or it is none of TVM's.
    """
    code = _INT.unpack(content)[0] if len(content) == _INT.size else None
    if code == _MAGIC:
        return
    if code == _MISMATCH:
        raise KeyRefused(
            f"the TVM RPC server at {address} has another key than {key!r}; set 'key' to the one it was started with "
            "(a server that is registered at a TVM tracker takes that tracker's clients only)"
        )
    if code == _TAKEN:
        raise NotServed(f"the key {key!r} is in use at {address}")
    if code is None:
        raise NotServed(f"{address} closed the connection instead of answering")
    raise NotServed(_strange(address))


def name_length(content: bytes, address: str) -> int:
    """Return the length of the name that follows the answer.

    Raises:
        NotServed: no length of a name.
    """
    length = _INT.unpack(content)[0] if len(content) == _INT.size else -1
    if not 0 <= length <= _MOST_NAME_BYTES:
        raise NotServed(_strange(address))
    return int(length)


def knock(host: str, port: int, key: str, timeout_sec: float) -> None:
    """Open and close one session.

    Raises:
        NotServed: why there was none.
    """
    connect(host, port, name_with_options(key, 1), timeout_sec).close()


def connect(host: str, port: int, name: str, timeout_sec: float) -> socket.socket:
    """Open a session; return its connection, which has no time limit.

    Args:
        name: as in `open_session`.

    Raises:
        NotServed: the server is unreachable or refuses.
    """
    address, key = f"{host}:{port}", name.partition(" ")[0]
    connection: socket.socket | None = None
    try:
        connection = socket.create_connection((host, port), timeout_sec)
        connection.sendall(_greeting(name))
        check_answer(connection.recv(_INT.size, socket.MSG_WAITALL), address, key)
        length = name_length(connection.recv(_INT.size, socket.MSG_WAITALL), address)
        connection.recv(length, socket.MSG_WAITALL)
        connection.settimeout(None)
    except (NotServed, OSError, ValueError) as error:
        if connection is not None:
            connection.close()
        if isinstance(error, NotServed):
            raise
        if isinstance(error, TimeoutError):
            raise NotServed(f"{address} does not answer within {timeout_sec:g} s") from None
        raise NotServed(_unreachable(address, error)) from error
    return connection


async def knock_patiently(host: str, port: int, key: str) -> None:
    """Open and close one session, however long the server is busy with others. Only a cancellation interrupts it.

    Raises:
        NotServed: why there was none.
    """
    _, writer = await open_session(host, port, name_with_options(key, 1))
    writer.close()


async def open_session(host: str, port: int, name: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Open a session, however long the server is busy with others; return its connection.

    Args:
        name: of the client, without "client:": the key, and options after a space.

    Raises:
        NotServed: the server is unreachable or refuses.
    """
    address, key = f"{host}:{port}", name.partition(" ")[0]
    try:
        reader, writer = await asyncio.open_connection(host, port)
    except (OSError, ValueError) as error:
        raise NotServed(_unreachable(address, error)) from error
    try:
        keep_alive(writer.get_extra_info("socket"))
        writer.write(_greeting(name))
        check_answer(await _read(reader, _INT.size), address, key)
        await _read(reader, name_length(await _read(reader, _INT.size), address))
    except (OSError, ValueError) as error:
        writer.close()
        raise NotServed(_unreachable(address, error)) from error
    except BaseException:  # also if cancelled; raised again
        writer.close()
        raise
    return reader, writer


async def accept_session(reader: asyncio.StreamReader) -> str:
    """Read a client's first message, and return its name without "client:".

    Raises:
        NotServed: the client speaks another protocol.
    """
    magic, length = struct.unpack("<ii", await reader.readexactly(2 * _INT.size))
    if magic != _MAGIC or not 0 < length <= _MOST_NAME_BYTES:
        raise NotServed("the client speaks another protocol")
    return (await reader.readexactly(length)).decode(errors="replace").removeprefix("client:")


def welcome(key: str) -> bytes:
    """Return the answer that begins a session."""
    name = f"server:{key}".encode()
    return _INT.pack(_MAGIC) + _INT.pack(len(name)) + name


def refusal() -> bytes:
    """Return the answer to a client with another key."""
    return _INT.pack(_MISMATCH)


def _greeting(name: str) -> bytes:
    content = f"client:{name}".encode()
    return _INT.pack(_MAGIC) + _INT.pack(len(content)) + content


async def _read(reader: asyncio.StreamReader, size: int) -> bytes:
    """Return `size` bytes, or fewer at the end of the stream."""
    try:
        return await reader.readexactly(size)
    except asyncio.IncompleteReadError as error:
        return error.partial


def _strange(address: str) -> str:
    return f"the server at {address} is not a TVM RPC server"


def _unreachable(address: str, error: Exception) -> str:
    if isinstance(error, ConnectionRefusedError):
        return f"nothing listens at {address}; start the TVM RPC server there"
    return f"cannot talk to {address}: {error or type(error).__name__}"
