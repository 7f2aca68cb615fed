"""Offers of sessions that TVM RPC servers make when they register. Pure.

A server offers a session by a match key, which only the client that gets it can use. Afterwards it offers another one.
An offer is good as long as the connection that made it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count

from fleet.wire.tvm_frames import BrokenMessage

MOST_OFFERS = 256
"""Per connection: a proxy offers the sessions of all its boards over one."""

_WORD = re.compile(r"[!#-\[\]-~]{1,256}")
"""Text that travels as JSON without escapes: stock servers search the list of their match keys for the plain text."""

_MOST_PORT = 65535
_NONE: tuple[int, str] = (0, "")
"""No connection has the number 0, and no match key is empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Put:
    """A server's message with an offer."""

    key: str
    port: int
    match_key: str
    host: str
    """Empty: the address that the message came from."""


@dataclass(frozen=True, slots=True, order=True)
class Server:
    """One board behind a server."""

    key: str
    host: str
    port: int
    number: int = 1
    """Above 1 for further boards of this key behind one proxy: all have its address."""


class Offers:
    """Unused offers of all connections."""

    def __init__(self, most_servers: Mapping[str, int], entry_of: Callable[[str], str | None]) -> None:
        """Args:
        most_servers: by the name of settings.
        entry_of: returns the name of the settings for a key; None: it is not served.
        """
        self._most_servers = most_servers
        self._entry_of = entry_of
        self._by_connection: dict[int, dict[str, Server | None]] = {}
        """Servers by match key, in the order of their offers; None: not served, the offer only waits."""

        self._by_server: dict[Server, tuple[int, str]] = {}
        """Connection and match key of each served offer."""

        self._known: set[Server] = set()
        """Servers that ever made an offer that was served."""

    def add(self, connection: int, put: Put, host: str | None) -> Server | None:
        """Record an offer; return its server, or None if it is not served or is known already.

        Args:
            host: of the server; None: it is not served.

        Raises:
            BrokenMessage: the connection has made too many offers.
        """
        made = self._by_connection.setdefault(connection, {})
        if put.match_key in made:
            return None
        if len(made) >= MOST_OFFERS:
            raise BrokenMessage(f"more than {MOST_OFFERS} unused match keys")
        made[put.match_key] = None
        server = None if host is None else self._server_of(connection, put, host)
        if server is None:
            return None
        self._shelve(server)
        made[put.match_key] = server
        self._by_server[server] = (connection, put.match_key)
        return server

    def pending(self, connection: int) -> list[str]:
        """Return the match keys of a connection that are unused."""
        return list(self._by_connection.get(connection, ()))

    def has(self, server: Server) -> bool:
        """Tell whether a server offers a session."""
        return server in self._by_server

    def take(self, server: Server) -> str | None:
        """Use up a server's offer; return its match key, or None without an offer."""
        connection, match_key = self._by_server.pop(server, _NONE)
        if not match_key:
            return None
        del self._by_connection[connection][match_key]
        return match_key

    def drop(self, connection: int) -> list[Server]:
        """Withdraw the offers of a connection that ended; return their servers."""
        lost = [server for server in self._by_connection.pop(connection, {}).values() if server is not None]
        for server in lost:
            del self._by_server[server]
        return lost

    def _server_of(self, connection: int, put: Put, host: str) -> Server | None:
        """Return the first server at this address without another offer of the same connection.

        Only a proxy makes a second one before the first is used. None: there are too many servers.
        """
        numbered = (Server(put.key, host, put.port, number) for number in count(1))
        server = next(one for one in numbered if self._by_server.get(one, _NONE)[0] != connection)
        if server not in self._known and not self._has_room(put.key):
            return None
        self._known.add(server)
        return server

    def _has_room(self, key: str) -> bool:
        entry = self._entry_of(key)
        return sum(self._entry_of(server.key) == entry for server in self._known) < self._most_servers.get(
            entry or "", 0
        )

    def _shelve(self, server: Server) -> None:
        """Let a server's older offer wait: it is from a connection of before its restart."""
        connection, match_key = self._by_server.pop(server, _NONE)
        if match_key:
            self._by_connection[connection][match_key] = None


def parse_put(arguments: Sequence[object]) -> Put:
    """Parse the arguments of a message with an offer.

    Raises:
        BrokenMessage: they are malformed.
    """
    match arguments:
        case [str(key), [port, str(match_key)]] | [str(key), [port, str(match_key)], None]:
            host = ""
        case [str(key), [port, str(match_key)], str(host), *_]:
            pass
        case _:
            raise BrokenMessage("a malformed offer")
    if not _WORD.fullmatch(key) or not _WORD.fullmatch(match_key):
        raise BrokenMessage("a key that is no word")
    return Put(key=key, port=_port(port), match_key=match_key, host=host)


def _port(value: object) -> int:
    """Return a port; servers in C++ and Java send it as text."""
    if isinstance(value, str) and re.fullmatch(r"[0-9]{1,5}", value):
        value = int(value)
    if type(value) is int and 0 < value <= _MOST_PORT:
        return value
    raise BrokenMessage("a port that is none")
