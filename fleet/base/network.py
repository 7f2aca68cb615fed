"""Tells whether an address is reachable from this machine only or from others, too, which is opt-in."""

from __future__ import annotations

import ipaddress
import re
import socket

from fleet.errors import ConfigError

_ADDRESS = re.compile(r"(\[[0-9a-fA-F:]+\]|[^:\s/]+):([0-9]{1,5})")
_ANSWER_SEC = 2.0
_KEEPALIVE = (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3))
"""Options of `socket`, with values in seconds, seconds, and a count."""


def check_address(address: str, what: str, *, least_port: int = 1) -> None:
    """Refuse text other than "host:port" before anything waits for it.

    Raises:
        ConfigError: it is none.
    """
    if not is_address(address, least_port=least_port):
        raise ConfigError(f"cannot read {what} {address!r}; write it like 127.0.0.1:9290")


def addresses_of(text: str) -> tuple[str, ...]:
    """Return the addresses in a text that separates them by commas."""
    return tuple(dict.fromkeys(filter(None, map(str.strip, text.split(",")))))


def check_addresses(text: str, what: str) -> None:
    """Refuse text other than "host:port", or several of them separated by commas.

    Raises:
        ConfigError: one is malformed, or there is none.
    """
    for address in addresses_of(text) or (text,):
        check_address(address, what)


def is_address(text: str, *, least_port: int = 1) -> bool:
    """Tell whether a text is "host:port"."""
    match = _ADDRESS.fullmatch(text)
    return match is not None and least_port <= int(match[2]) < 65536 and _is_host(match[1])


def _is_host(host: str) -> bool:
    """Tell whether a name lookup takes this host. It refuses others with errors that are no OSError."""
    try:
        host.encode("idna")
    except UnicodeError:
        return False
    return True


def host_of(address: str) -> str:
    """Return the host of "host:port"."""
    return address.rpartition(":")[0]


def host_and_port(address: str) -> tuple[str, int]:
    """Return the parts of "host:port" as sockets take them."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def address_of(host: str, port: int) -> str:
    """Return "host:port", with an IPv6 host in brackets."""
    return f"[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{host}:{port}"


def is_answered(address: str) -> bool:
    """Tell whether anything listens at an address."""
    try:
        with socket.create_connection(host_and_port(address), timeout=_ANSWER_SEC):
            return True
    except OSError:
        return False


def keep_alive(connection: socket.socket) -> None:
    """Enable TCP keepalive: a peer that lost its power sends nothing, and would be awaited for ever.

    Raises:
        OSError: the connection is closed.
    """
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE:
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def is_any_host(host: str) -> bool:
    """Tell whether listening on this host means listening on all addresses of the machine."""
    return host.strip("[]") in ("", "0.0.0.0", "::")


def is_loopback(host: str) -> bool:
    """Tell whether only this machine can reach a host. A name that needs a lookup counts as reachable by others."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def listening_host(host: str | None, *, is_network_allowed: bool) -> str:
    """Return the address to listen on: the named one, else all addresses if others may connect."""
    return host or ("0.0.0.0" if is_network_allowed else "127.0.0.1")


def refuse_network(host: str) -> None:
    """Refuse to listen where other machines can connect.

    Raises:
        ConfigError: they can, and --allow-network is missing.
    """
    if not is_loopback(host):
        raise ConfigError(
            f"other machines reach {host!r}; listen on 127.0.0.1, or add --allow-network: callers then need a "
            "certificate of this fleet"
        )


def refuse_plain_network(host: str) -> None:
    """Refuse to listen without TLS where other machines can connect.

    Raises:
        ConfigError: they can.
    """
    if not is_loopback(host):
        raise ConfigError(f"other machines reach {host!r}, and --plain means no TLS; leave out one of the two")
