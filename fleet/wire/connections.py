"""Limits on unauthenticated connections at one port: their number per address, and their age.

gRPC has no hook for this, so this process polls its sockets once a second. A connection is a stranger's until a member
makes a call by it; members' connections are never closed. A stranger's connection is closed after a time limit, and the
oldest ones are closed beyond the number limits. A new client is therefore served within a second of its first call,
even if others hold many connections open. To gRPC a closed connection looks like a disconnected peer.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import logging
import os
import socket
import stat
import struct
import time
from collections import defaultdict
from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from typing import TypeAlias
from urllib.parse import unquote

from fleet.wire.options import max_connections

logger = logging.getLogger(__name__)

Peer: TypeAlias = tuple[str, int]
"""Address and port of the remote end."""

_LOOK_SEC = 1.0
_STRANGER_SEC = 15.0
"""Time limit from a connection's start to a member's first call by it."""
_LEAST_OF_ADDRESS, _MOST_OF_ADDRESS = 64, 2_048
_SHARE_OF_ADDRESS = 8
"""Divisor of all connections that gives the limit per address, within the bounds above."""
_FRAGMENT_SEC = 0.5
_TLS_HEADER_BYTES = 5
_RECEIVED_AT = 128
"""Offset of `tcpi_bytes_received` in Linux's `struct tcp_info`."""
_PORTION = 256
"""Number of sockets checked before yielding to other threads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StrangerLimits:
    """Limits on strangers' connections at one port."""

    of_address: int
    """Connections per IPv4 address, or per IPv6 network (/64)."""

    of_all: int
    stranger_sec: float = _STRANGER_SEC


def usual_limits() -> StrangerLimits:
    """Return the limits that fit this process's limit of open files."""
    most = max_connections()
    of_address = min(max(most // _SHARE_OF_ADDRESS, _LEAST_OF_ADDRESS), _MOST_OF_ADDRESS)
    return StrangerLimits(of_address=of_address, of_all=most // 2)


@dataclass(slots=True)
class Strangers:
    """Connections without a member's call, by the inode numbers of their sockets. Pure."""

    limits: StrangerLimits
    _since_sec: dict[int, float] = field(default_factory=dict)

    def to_close(self, found: Mapping[int, Peer], now: float, fragments: Set[int] = frozenset()) -> list[int]:
        """Return the connections to close after a poll, the oldest first.

        Args:
            found: peers of the strangers' connections, by socket number.
            now: current time [s].
            fragments: connections that sent less than the header of a TLS record, such as those of TVM's own clients.
                They are closed at the next poll; gRPC would wait for the rest until its handshake times out.
        """
        self._since_sec = {number: self._since_sec.get(number, now) for number in found}
        oldest_first = sorted(found, key=lambda number: (self._since_sec[number], number))
        surplus = len(oldest_first) - self.limits.of_all
        closed = dict.fromkeys(oldest_first[: max(surplus, 0)])
        closed |= dict.fromkeys(n for n in oldest_first if now - self._since_sec[n] >= self.limits.stranger_sec)
        closed |= dict.fromkeys(n for n in oldest_first if n in fragments and now - self._since_sec[n] >= _FRAGMENT_SEC)
        by_address: defaultdict[str, list[int]] = defaultdict(list)
        for number in oldest_first:
            by_address[network_of(found[number][0])].append(number)
        for numbers in by_address.values():
            closed |= dict.fromkeys(numbers[: max(len(numbers) - self.limits.of_address, 0)])
        return [number for number in oldest_first if number in closed]


class Connections:
    """Connections at one server's port."""

    def __init__(self, limits: StrangerLimits | None = None) -> None:
        self._limits = limits
        self._members: dict[Peer, int | None] = {}
        """Socket numbers of members' connections by peer; None until the next poll."""
        self._peers: dict[int, Peer | None] = {}
        """Peers by socket number; None for sockets of another kind or port."""
        self._is_watched = False

    def note_member(self, peer: str) -> None:
        """Record a member's call from a peer such as "ipv4:127.0.0.1:4000"."""
        if self._is_watched and (found := _parse_peer(peer)) is not None:
            self._members[found] = None

    def watch(self, port: int) -> asyncio.Task[None]:
        """Close surplus connections of strangers until the task is cancelled. Call it before the server starts."""
        self._is_watched = True
        return asyncio.create_task(self._watch(port), name=f"connections at {port}")

    async def _watch(self, port: int) -> None:
        strangers = Strangers(self._limits or usual_limits())
        while True:
            await asyncio.sleep(_LOOK_SEC)
            with contextlib.suppress(OSError):  # out of file descriptors: retry at the next poll
                await asyncio.to_thread(self._look, port, strangers)

    def _look(self, port: int, strangers: Strangers) -> None:
        members = dict(self._members)  # read first: later members may be missing among the sockets
        files = _files_by_socket(self._peers, port)
        peers = {number: peer for number in files if (peer := self._peers[number]) is not None}
        numbers = {peer: number for number, peer in peers.items()}
        for peer, number in members.items():
            present = numbers.get(peer)
            if present is None or number not in (None, present):  # closed; the port may be in use by another peer
                self._forget(peer, number)
            else:
                self._members[peer] = present
                peers.pop(present)
        fragments = {number for number in peers if 0 < _received_bytes(files[number]) < _TLS_HEADER_BYTES}
        closed = strangers.to_close(peers, time.monotonic(), fragments)
        if closed:
            logger.warning("connections of strangers closed", extra={"count": len(closed), "port": port})
        for number in closed:
            _hang_up(files[number], number)

    def _forget(self, peer: Peer, number: int | None) -> None:
        if self._members.get(peer) == number:  # otherwise a new connection was recorded meanwhile
            self._members.pop(peer, None)


def _files_by_socket(peers: dict[int, Peer | None], port: int) -> dict[int, int]:
    """Return the file descriptors of this process's sockets by socket number, and update `peers`."""
    found: dict[int, int] = {}
    for count, name in enumerate(os.listdir("/proc/self/fd")):  # noqa: PTH208 - names, of ten thousand files
        if count % _PORTION == _PORTION - 1:
            time.sleep(0.0005)
        with contextlib.suppress(OSError):
            known = os.fstat(int(name))
            if not stat.S_ISSOCK(known.st_mode):
                continue
            found[known.st_ino] = int(name)
            if known.st_ino not in peers:
                number, peer = _peer_at(int(name), port)
                peers[number] = peer
    for number in peers.keys() - found.keys():
        del peers[number]
    return {number: descriptor for number, descriptor in found.items() if number in peers}


def _peer_at(descriptor: int, port: int) -> tuple[int, Peer | None]:
    """Return a socket's number, and the peer if it is a connection at our port.

    Raises:
        OSError: the descriptor was closed, or reused for another kind of file.
    """
    # Another thread may reuse the descriptor at any moment, but not its copy.
    with socket.socket(fileno=_copy_of(descriptor)) as connection:
        number = os.fstat(connection.fileno()).st_ino
        if connection.family not in (socket.AF_INET, socket.AF_INET6) or connection.getsockname()[1] != port:
            return number, None
        try:
            host, peer_port = connection.getpeername()[:2]
        except OSError:  # a listening or closed socket
            return number, None
        return number, (_plain_host(host), peer_port)


def _received_bytes(descriptor: int) -> int:
    """Return the number of bytes received by a connection; 0 if the kernel does not report it."""
    with contextlib.suppress(OSError, struct.error), socket.socket(fileno=_copy_of(descriptor)) as connection:
        facts = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _RECEIVED_AT + 8)
        return int(struct.unpack_from("Q", facts, _RECEIVED_AT)[0])
    return 0


def _copy_of(descriptor: int) -> int:
    copy = os.dup(descriptor)
    if not stat.S_ISSOCK(os.fstat(copy).st_mode):
        os.close(copy)
        raise OSError(errno.ENOTSOCK, os.strerror(errno.ENOTSOCK))
    return copy


def _hang_up(descriptor: int, number: int) -> None:
    with contextlib.suppress(OSError), socket.socket(fileno=_copy_of(descriptor)) as connection:
        if os.fstat(connection.fileno()).st_ino == number:
            connection.shutdown(socket.SHUT_RDWR)


def _parse_peer(text: str) -> Peer | None:
    host, _, port = unquote(text).partition(":")[2].rpartition(":")
    return (_plain_host(host.strip("[]")), int(port)) if port.isdigit() else None


def _plain_host(host: str) -> str:
    return host.partition("%")[0].removeprefix("::ffff:")


def network_of(host: str) -> str:
    """Return an IPv4 address, or the /64 network of an IPv6 address, which usually has one owner."""
    if ":" not in host:
        return host
    return str(ipaddress.ip_network((host, 64), strict=False))
