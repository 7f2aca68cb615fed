"""Tells who can reach an address: this machine alone, or others too. Without TLS, the latter has to be asked for."""

from __future__ import annotations

import ipaddress

from fleet.errors import ConfigError


def host_of(address: str) -> str:
    """Return the host of "host:port"."""
    return address.rpartition(":")[0]


def is_loopback(host: str) -> bool:
    """Tell whether only this machine can reach a host. A name that needs a lookup counts as reachable by others."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def refuse_network(host: str, *, risk: str) -> None:
    """Refuse to listen where other machines can connect.

    Raises:
        ConfigError: they can; `risk` says what that would mean.
    """
    if not is_loopback(host):
        raise ConfigError(
            f"other machines reach {host!r}, and there is no TLS yet: {risk}; listen on 127.0.0.1, or add "
            "--allow-network where everyone on the network is trusted"
        )
