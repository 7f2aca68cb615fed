"""The other end of a TCP connection on this machine: its socket and owner."""

from __future__ import annotations

import socket
import struct
from dataclasses import dataclass
from pathlib import Path

from fleet.base.network import is_loopback

_TABLES = {socket.AF_INET: "tcp", socket.AF_INET6: "tcp6"}
_DIAG_REQUEST = struct.Struct("=IHHIIBBBxIHH16s16sIII")
"""nlmsghdr, then inet_diag_req_v2 with its inet_diag_sockid: ports and addresses are in network order."""

_DIAG_ANSWER = struct.Struct("=IHHIIBBBBHH16s16sIIIIIIII")
_BY_FAMILY, _REQUEST, _NETLINK_SOCK_DIAG, _ERROR = 20, 1, 4, 2
_NO_COOKIE = 0xFFFFFFFF
_ALL_STATES = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class PeerSocket:
    """The other end of a connection, as the kernel lists it."""

    uid: int
    """User id of its process."""

    inode: int


def peer_of(connection: socket.socket) -> PeerSocket | None:
    """Return the socket at the other end of a loopback connection.

    None if its process is on another machine, or has closed it: the kernel then attributes it to root.
    """
    try:
        peer, here = connection.getpeername()[:2], connection.getsockname()[:2]
        family = connection.family
    except OSError:
        return None
    if peer[0] != here[0] and not is_loopback(peer[0]):
        return None
    try:
        return _ask_kernel(family, peer, here)
    except (OSError, struct.error):
        return _look_up(family, peer, here)


def _ask_kernel(family: int, source: tuple[str, int], destination: tuple[str, int]) -> PeerSocket | None:
    """Look one connection up by netlink, which takes the same time with any number of connections."""
    sockid = (
        *map(socket.htons, (source[1], destination[1])),
        *(socket.inet_pton(family, host).ljust(16, b"\0") for host in (source[0], destination[0])),
        *(0, _NO_COOKIE, _NO_COOKIE),
    )
    request = _DIAG_REQUEST.pack(
        *(_DIAG_REQUEST.size, _BY_FAMILY, _REQUEST, 0, 0),
        *(family, socket.IPPROTO_TCP, 0, _ALL_STATES),
        *sockid,
    )
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_SOCK_DIAG) as netlink:
        netlink.settimeout(1.0)
        netlink.sendto(request, (0, 0))
        answer = netlink.recv(4096)
    if len(answer) < _DIAG_ANSWER.size or struct.unpack_from("=IH", answer)[1] == _ERROR:
        raise OSError("the kernel does not know this connection")
    uid, inode = _DIAG_ANSWER.unpack_from(answer)[-2:]
    return PeerSocket(uid, inode) if inode else None


def _look_up(family: int, source: tuple[str, int], destination: tuple[str, int]) -> PeerSocket | None:
    wanted = _table_address(family, *source), _table_address(family, *destination)
    try:
        lines = Path(f"/proc/net/{_TABLES[socket.AddressFamily(family)]}").read_text().splitlines()[1:]
    except OSError:
        return None
    rows = (line.split() for line in lines)
    found = (PeerSocket(int(row[7]), int(row[9])) for row in rows if (row[1], row[2]) == wanted)
    return next((one for one in found if one.inode), None)


def _table_address(family: int, host: str, port: int) -> str:
    """Return an address as the kernel prints it: 32-bit words in the machine's byte order."""
    words = struct.iter_unpack("=I", socket.inet_pton(family, host))
    return "".join(f"{word:08X}" for (word,) in words) + f":{port:04X}"
