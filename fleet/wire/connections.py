"""Connections of strangers at one port: how many each address may have, and for how long.

gRPC has no hook for this, so the sockets of this process are looked at once a second. A connection counts as a
stranger's until a member's call has come by it; those are never touched. One that stays a stranger's is closed after a
while, and the oldest go where there are too many: a newcomer is served within a second of its first call, whatever
others hold open. gRPC sees a peer that hangs up.
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
"""Address and port of the other side."""

_LOOK_SEC = 1.0
_STRANGER_SEC = 15.0
"""Longest time between a connection's first byte and a member's first call by it."""
_LEAST_OF_ADDRESS, _MOST_OF_ADDRESS = 64, 2_048
_SHARE_OF_ADDRESS = 8
"""An address may have this fraction of all connections, within the bounds above."""
_FRAGMENT_SEC = 0.5
_TLS_HEADER_BYTES = 5
_RECEIVED_AT = 128
"""Place of `tcpi_bytes_received` in Linux's `struct tcp_info`."""
_PORTION = 256
"""So many sockets are looked at before other threads get their turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StrangerLimits:
    """Bounds on strangers' connections at one port."""

    of_address: int
    """Connections of one IPv4 address, or of one network of IPv6 (/64)."""

    of_all: int
    stranger_sec: float = _STRANGER_SEC


def usual_limits() -> StrangerLimits:
    """Return the limits for the number of files that this process may open."""
    most = max_connections()
    of_address = min(max(most // _SHARE_OF_ADDRESS, _LEAST_OF_ADDRESS), _MOST_OF_ADDRESS)
    return StrangerLimits(of_address=of_address, of_all=most // 2)


@dataclass(slots=True)
class Strangers:
    """The connections that no member has called by, by the numbers of their sockets. Pure."""

    limits: StrangerLimits
    _since_sec: dict[int, float] = field(default_factory=dict)

    def to_close(self, found: Mapping[int, Peer], now: float, fragments: Set[int] = frozenset()) -> list[int]:
        """Take a look's findings; return the connections to close, the oldest first.

        Args:
            fragments: connections with less than the header of a TLS record, such as those of TVM's own clients. They
                go at the next look: the server's library waits for the rest until its handshake times out.
        """
        self._since_sec = {number: self._since_sec.get(number, now) for number in found}
        oldest_first = sorted(found, key=lambda number: (self._since_sec[number], number))
        surplus = len(oldest_first) - self.limits.of_all
        closed = dict.fromkeys(oldest_first[: max(surplus, 0)])
        closed |= dict.fromkeys(n for n in oldest_first if now - self._since_sec[n] >= self.limits.stranger_sec)
        closed |= dict.fromkeys(n for n in oldest_first if n in fragments and now - self._since_sec[n] >= _FRAGMENT_SEC)
        by_address: defaultdict[str, list[int]] = defaultdict(list)
        for number in oldest_first:
            by_address[_network(found[number][0])].append(number)
        for numbers in by_address.values():
            closed |= dict.fromkeys(numbers[: max(len(numbers) - self.limits.of_address, 0)])
        return [number for number in oldest_first if number in closed]


class Connections:
    """The connections at one server's port."""

    def __init__(self, limits: StrangerLimits | None = None) -> None:
        self._limits = limits
        self._members: dict[Peer, int | None] = {}
        """By peer: the number of its socket, None until the next look."""
        self._peers: dict[int, Peer | None] = {}
        """By socket: the peer; None: it belongs to something else."""
        self._is_watched = False

    def note_member(self, peer: str) -> None:
        """Note that a member called from "ipv4:127.0.0.1:4000"."""
        if self._is_watched and (found := _parse_peer(peer)) is not None:
            self._members[found] = None

    def watch(self, port: int) -> asyncio.Task[None]:
        """Close what strangers have too much of, until the task is cancelled. Call it before the server takes calls."""
        self._is_watched = True
        return asyncio.create_task(self._watch(port), name=f"connections at {port}")

    async def _watch(self, port: int) -> None:
        strangers = Strangers(self._limits or usual_limits())
        while True:
            await asyncio.sleep(_LOOK_SEC)
            with contextlib.suppress(OSError):  # no file can be opened now: the next look does
                await asyncio.to_thread(self._look, port, strangers)

    def _look(self, port: int, strangers: Strangers) -> None:
        members = dict(self._members)  # before the sockets: what is noted later may not be among them
        files = _files_by_socket(self._peers, port)
        peers = {number: peer for number in files if (peer := self._peers[number]) is not None}
        numbers = {peer: number for number, peer in peers.items()}
        for peer, number in members.items():
            present = numbers.get(peer)
            if present is None or number not in (None, present):  # gone, and perhaps another's of the same port
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
        if self._members.get(peer) == number:  # else a new connection was noted just now
            self._members.pop(peer, None)


def _files_by_socket(peers: dict[int, Peer | None], port: int) -> dict[int, int]:
    """Return this process's sockets, number to file descriptor, and bring `peers` up to date."""
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
        OSError: it is gone, or no socket any more.
    """
    # A descriptor may come to mean another file at any moment; its copy does not.
    with socket.socket(fileno=_copy_of(descriptor)) as connection:
        number = os.fstat(connection.fileno()).st_ino
        if connection.family not in (socket.AF_INET, socket.AF_INET6) or connection.getsockname()[1] != port:
            return number, None
        try:
            host, peer_port = connection.getpeername()[:2]
        except OSError:  # it listens, or has ended
            return number, None
        return number, (_plain_host(host), peer_port)


def _received_bytes(descriptor: int) -> int:
    """Return how much a connection has received; 0 where the kernel does not tell."""
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


def _network(host: str) -> str:
    """Return the address, or the network of an IPv6 address: its owner has all 2^64 of it."""
    if ":" not in host:
        return host
    return str(ipaddress.ip_network((host, 64), strict=False))
