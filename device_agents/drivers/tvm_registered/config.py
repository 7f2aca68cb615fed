"""Settings of one entry of the driver tvm_registered, explained in device_agents.drivers.tvm_registered.driver."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, TypeAlias

from device_agents.driver import MAX_DEVICES
from device_agents.drivers.rpc_board import BoardFacts, RpcBoardConfig, describe
from fleet.base.config import parse, shown
from fleet.base.network import check_address, host_and_port
from fleet.base.source_locations import at, at_key
from fleet.domain.tvm_versions import tvm_version
from fleet.errors import ConfigError

Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address
Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network

ANY_KEY = "*"
"""Name of the settings of all keys that are not listed."""

_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,31}")
_PREFIX = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]{0,15})?")
_WIRE_BITS = {4: 24, 6: 64}
"""Size of the network around `listen` that servers come from by default, by version of IP."""

_FROM_EXPECTS = "expected a network like 10.1.0.0/24, or a list of them"


@dataclass(frozen=True, slots=True, kw_only=True)
class TvmRegisteredConfig:
    """Settings of one entry."""

    listen: Annotated[str, "Where servers register, host:port: an address on the boards' own wire."]
    keys: Annotated[
        dict[str, object],
        "By the key that a server registers with, or '*' for all others: target, from (networks of its boards), most "
        "(servers), tvm (their version), and the settings of tvm_rpc but address, key and name.",
    ]
    name: Annotated[str, "Prefix of the devices' ids, which go on with key, address and port; default: none."] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyConfig(RpcBoardConfig):
    """Settings of one key, but `from`."""

    most: Annotated[
        int, "Most servers of this key; a tracker takes 64 device names of one agent unless its admin allows more."
    ] = 16
    tvm: Annotated[str, "Version of TVM on these boards; it must be the agent's, which is the default."] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredKey:
    """One checked key."""

    config: KeyConfig
    what: BoardFacts
    networks: tuple[Network, ...]

    def admits(self, address: Address) -> bool:
        """Tell whether servers of this key may have an address."""
        return any(address in network for network in self.networks)


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistrationConfig:
    """One checked entry."""

    host: str
    port: int
    prefix: str
    keys: Mapping[str, RegisteredKey]

    def entry_of(self, key: str) -> str | None:
        """Return the name in `keys` of the settings for a server's key; None: it is not served."""
        if not _KEY.fullmatch(key):
            return None
        return next((name for name in (key, ANY_KEY) if name in self.keys), None)

    def settings_of(self, key: str) -> RegisteredKey | None:
        """Return the settings for a server's key; None: it is not served."""
        return self.keys.get(self.entry_of(key) or "")

    def admits(self, address: Address) -> bool:
        """Tell whether a server of any key may have an address."""
        return any(key.admits(address) for key in self.keys.values())


def parse_entry(values: Mapping[str, object], where: str) -> RegistrationConfig:
    """Read an entry.

    Raises:
        ConfigError: an unknown key or a bad value.
    """
    config = parse(TvmRegisteredConfig, values, where=where)
    listen, host, port = at(where, "listen"), *_listening(config.listen, at(where, "listen"))
    if not _PREFIX.fullmatch(config.name):
        raise ConfigError(f"{at(where, 'name')}: {shown(config.name)} begins no device name; use at most 16 letters")
    keys = at(where, "keys")
    if not config.keys:
        raise ConfigError(f"{keys}: name at least one key; servers with others wait and are not served")
    return RegistrationConfig(
        host=host,
        port=port,
        prefix=f"{config.name}-" if config.name else "",
        keys={name: _parse_key(name, settings, keys, _wire_of(host, listen)) for name, settings in config.keys.items()},
    )


def plain_address(text: str) -> Address:
    """Return an IP address, IPv4 if it is an IPv4 address in an IPv6 one.

    Raises:
        ValueError: another text, such as a host name.
    """
    address = ipaddress.ip_address(text)
    return getattr(address, "ipv4_mapped", None) or address


def _listening(address: str, where: str) -> tuple[str, int]:
    """Return host and port to listen on; port 0 is any free one."""
    if not address.endswith(":0"):
        check_address(address, f"{where}:")
    host, port = host_and_port(address)
    try:
        plain_address(host)
    except ValueError as error:
        raise ConfigError(f"{where}: expected the IP address of one interface and a port, found {address!r}") from error
    return host, port


def _wire_of(host: str, where: str) -> tuple[Network, ...]:
    """Return the network that the boards come from unless it is configured: empty for an address of all interfaces."""
    address = plain_address(host)
    if address.is_unspecified:
        return ()
    return (ipaddress.ip_network((address, _WIRE_BITS[address.version]), strict=False),)


def _parse_key(name: object, settings: object, keys: str, wire: tuple[Network, ...]) -> RegisteredKey:
    where = at(keys, name)
    if not isinstance(name, str) or not (name == ANY_KEY or _KEY.fullmatch(name)):
        what = f"{shown(name)} is no key; use letters, digits, '.', '_', ':' and '-', at most 32, or '*' for all others"
        raise ConfigError(f"{at_key(keys, name)}: {what}")
    if not isinstance(settings, Mapping):
        raise ConfigError(f"{where}: expected settings like {{target: rpi4-64}}, found {shown(settings)}")
    config = parse(KeyConfig, {key: value for key, value in settings.items() if key != "from"}, where=where)
    networks = _parse_networks(settings["from"], at(where, "from")) if "from" in settings else wire
    if not networks:
        raise ConfigError(f"{where}: the key 'from' is missing; with 'listen' on all interfaces, {_FROM_EXPECTS}")
    _check_version(config.tvm, at(where, "tvm"))
    if not 0 < config.most <= MAX_DEVICES:
        raise ConfigError(f"{at(where, 'most')}: expected a number from 1 to {MAX_DEVICES}, found {config.most}")
    return RegisteredKey(config=config, what=describe(config, where=where), networks=networks)


def _parse_networks(value: object, where: str) -> tuple[Network, ...]:
    try:
        return tuple(ipaddress.ip_network(str(text)) for text in (value if isinstance(value, list) else [value]))
    except ValueError as error:
        raise ConfigError(f"{where}: {_FROM_EXPECTS}, found {shown(value)}: {error}") from error


def _check_version(wanted: str, where: str) -> None:
    """Refuse boards with another version: arguments are encoded differently, and the protocol does not say so."""
    installed = tvm_version()
    if not wanted or installed is None or installed == wanted or installed.startswith(f"{wanted}."):
        return
    raise ConfigError(f"{where}: the boards have TVM {wanted} and this agent {installed}; install the same on both")
