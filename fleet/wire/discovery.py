"""Discovery of trackers and agents on the local network by zeroconf (mDNS).

A convenience, never a requirement: where multicast does not work, people give addresses by hand. Anybody can advertise
anything: the found facts are claims, and trust comes from certificates.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import secrets
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum

import ifaddr
from zeroconf import (  # type: ignore[attr-defined] # AddressResolverIPv4 is public, but not in __all__
    AddressResolverIPv4,
    BadTypeInNameException,
    ServiceStateChange,
    Zeroconf,
)
from zeroconf.asyncio import AsyncServiceBrowser, AsyncServiceInfo, AsyncZeroconf

from fleet.base.network import address_of, is_answered, is_any_host, is_loopback
from fleet.base.text import sanitize

logger = logging.getLogger(__name__)

_LOOK_SEC = 5.0
"""Trackers answer within a few tenths of a second; one that has just started first makes sure of its name, for a second
on an idle machine.
"""

_ASK_MS = 3_000
"""Time for a found service to report its addresses [ms]."""

_ASK_IPV4_MS = 1_000
"""Time for one that has reported link-local IPv6 addresses only to report others [ms]."""

_MAX_SERVICES = 1_000
_MAX_FACT_CHARS = 64
_FLEET_CHARS = 16


class ServiceKind(StrEnum):
    """Advertised kind of a process; the value is its mDNS service type."""

    TRACKER = "_tvm-fleet._tcp.local."
    AGENT = "_tvm-fleet-agent._tcp.local."


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Facts that a process advertises about itself."""

    fleet: str = ""
    """Id of its fleet, see `fleet_id`; empty: an agent that has joined none."""

    key_id: str = ""
    """Id of an agent's key."""

    is_asking: bool = False
    """An agent that waits for an admin's approval."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundService:
    """A tracker or an agent as it describes itself."""

    kind: ServiceKind
    name: str
    addresses: tuple[str, ...]
    """Each "host:port"."""

    facts: Facts


def fleet_id(pin: bytes) -> str:
    """Return the short public id of the fleet with this pin."""
    return pin.hex()[:_FLEET_CHARS]


class Advertisement:
    """Advertises a process on the network while it is open."""

    def __init__(self, kind: ServiceKind, host: str, port: int, facts: Facts) -> None:
        self._kind = kind
        self._host = host
        self._port = port
        self._facts = facts
        self._server = f"{socket.gethostname()}-{secrets.token_hex(4)}.local."
        """Unique: boards made from one image have the same host name, and would share their addresses."""

        self._zeroconf: AsyncZeroconf | None = None
        self._service: AsyncServiceInfo | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start in the background, since names are probed for a second before they are used."""
        self._task = asyncio.create_task(self._register(), name=f"advertise {self._kind.name.lower()}")

    async def update(self, facts: Facts) -> None:
        """Advertise other facts. Does nothing while the name is being probed: call it again."""
        if self._zeroconf is None or self._service is None or facts == self._facts:
            return
        self._facts = facts
        self._service = self._described(self._service.name)
        await (await self._zeroconf.async_update_service(self._service))

    async def close(self) -> None:
        """Withdraw the advertisement. Idempotent."""
        if self._task:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._zeroconf:
            try:
                async with asyncio.timeout(2.0):
                    await self._zeroconf.async_unregister_all_services()
                    await self._zeroconf.async_close()
            except (OSError, TimeoutError):
                logger.warning("advertisement could not be taken back", exc_info=True)
        self._task = self._zeroconf = self._service = None

    async def _register(self) -> None:
        kind = self._kind.name.lower()
        try:
            # A process on the loopback interface is advertised to this machine only.
            self._zeroconf = AsyncZeroconf(interfaces=["127.0.0.1"] if is_loopback(self._host) else _interfaces())
            described = self._described(f"{kind}-{socket.gethostname()}-{self._port}.{self._kind.value}")
            await (await self._zeroconf.async_register_service(described, allow_name_change=True))
            self._service = described
        except OSError as error:  # no multicast here, as in many containers
            logger.warning("%s is not advertised, others need its address", kind, extra={"cause": str(error)})
        except Exception:  # zeroconf's errors share no base class; the process works without it
            logger.warning("%s is not advertised, others need its address", kind, exc_info=True)

    def _described(self, name: str) -> AsyncServiceInfo:
        return AsyncServiceInfo(
            self._kind.value,
            name,
            port=self._port,
            properties=_properties(self._facts),
            parsed_addresses=_own_addresses(self._host),
            server=self._server,
        )


async def find_tracker() -> str | None:
    """Return "host:port" of the first tracker that is reachable, or None."""
    found: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def on_found(service: FoundService) -> None:
        for address in service.addresses:
            if await asyncio.to_thread(is_answered, address) and not found.done():
                found.set_result(address)

    async with _browsing([ServiceKind.TRACKER], on_found):
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LOOK_SEC):
                return await found
    return None


async def discover(look_sec: float) -> list[FoundService]:
    """Return the trackers and agents that answer within a time, by kind and name."""
    found: list[FoundService] = []

    async def on_found(service: FoundService) -> None:
        found.append(service)

    async with _browsing(list(ServiceKind), on_found):
        await asyncio.sleep(look_sec)
    return sorted(found, key=lambda service: (service.kind is ServiceKind.AGENT, service.name))


@contextlib.asynccontextmanager
async def _browsing(
    kinds: list[ServiceKind], on_found: Callable[[FoundService], Awaitable[None]]
) -> AsyncIterator[None]:
    """Browse the network during the block, and pass on each service with its addresses, once."""
    tasks: set[asyncio.Task[None]] = set()
    names: set[str] = set()

    async def ask(zeroconf: Zeroconf, kind: ServiceKind, name: str) -> None:
        try:
            service = AsyncServiceInfo(kind.value, name)
        except BadTypeInNameException as error:  # anybody can advertise anything
            logger.debug("ignored a service", extra={"reason": sanitize(str(error), _MAX_FACT_CHARS)})
            return
        if await service.async_request(zeroconf, _ASK_MS) and service.parsed_addresses():
            await _ask_for_ipv4(zeroconf, service)
            await on_found(_found(kind, service))

    def on_change(zeroconf: Zeroconf, service_type: str, name: str, state_change: ServiceStateChange) -> None:
        if state_change is ServiceStateChange.Added and name not in names and len(names) < _MAX_SERVICES:
            names.add(name)
            asking = ask(zeroconf, ServiceKind(service_type), name)
            task = asyncio.get_running_loop().create_task(asking, name=f"ask {name}")
            tasks.add(task)
            task.add_done_callback(tasks.discard)

    try:
        zeroconf = AsyncZeroconf(interfaces=_interfaces())
    except OSError:
        logger.warning("cannot look for services on this network", exc_info=True)
        yield
        return
    browser = AsyncServiceBrowser(zeroconf.zeroconf, [kind.value for kind in kinds], handlers=[on_change])
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await browser.async_cancel()
        await zeroconf.async_close()


async def _ask_for_ipv4(zeroconf: Zeroconf, service: AsyncServiceInfo) -> None:
    """Complete the addresses of a service without usable ones: Avahi reports no IPv4 addresses over IPv6."""
    if service.server and not _usable(service.parsed_addresses()):
        await AddressResolverIPv4(service.server).async_request(zeroconf, _ASK_IPV4_MS)
        service.load_from_cache(zeroconf)


def _usable(addresses: list[str]) -> list[str]:
    """Return the addresses without IPv6 addresses of a single link."""
    return [each for each in addresses if not (":" in each and ipaddress.ip_address(each).is_link_local)]


def _found(kind: ServiceKind, service: AsyncServiceInfo) -> FoundService:
    said = {key: sanitize(value or "", _MAX_FACT_CHARS) for key, value in service.decoded_properties.items()}
    addresses = service.parsed_scoped_addresses()
    return FoundService(
        kind=kind,
        name=sanitize(service.name.removesuffix(f".{kind.value}"), _MAX_FACT_CHARS),
        addresses=tuple(address_of(address, service.port or 0) for address in _usable(addresses) or addresses),
        facts=Facts(fleet=said.get("fleet", ""), key_id=said.get("key", ""), is_asking="asks" in said),
    )


def _properties(facts: Facts) -> dict[str, str]:
    said = {"fleet": facts.fleet, "key": facts.key_id, "asks": "1" if facts.is_asking else ""}
    return {key: value for key, value in said.items() if value}


def _own_addresses(host: str) -> list[str]:
    """Return the addresses at which a process that listens on a host is reachable."""
    if host == "localhost":
        return ["127.0.0.1"]
    if not is_any_host(host):
        return [host.strip("[]")]
    own = [ipaddress.ip_address(_text(ip)) for adapter in ifaddr.get_adapters() for ip in adapter.ips]
    usable = [
        str(address)
        for address in own
        if not address.is_loopback and not address.is_link_local and (address.version == 4 or "::" in host)
    ]
    return usable or ["127.0.0.1"]


def _interfaces() -> list[str | int]:
    """Return all interfaces, as zeroconf names them: IPv4 addresses, and the indices of those with IPv6."""
    adapters = list(ifaddr.get_adapters())
    found: list[str | int] = [_text(ip) for adapter in adapters for ip in adapter.ips if ip.is_IPv4]
    for adapter in adapters:
        has_ipv6 = any(ip.is_IPv6 and not is_loopback(_text(ip)) for ip in adapter.ips)
        found += [adapter.index] if has_ipv6 and adapter.index is not None else []
    return found


def _text(ip: ifaddr.IP) -> str:
    return ip.ip if isinstance(ip.ip, str) else ip.ip[0]
