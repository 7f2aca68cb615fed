"""Discovery of a tracker on the local network by zeroconf (mDNS), service type `_tvm-fleet._tcp.local.`.

A convenience, never a requirement: where multicast does not work, people give addresses by hand.
"""

from __future__ import annotations

import asyncio
import logging
import socket

from zeroconf import InterfaceChoice, ServiceStateChange, Zeroconf
from zeroconf.asyncio import AsyncServiceBrowser, AsyncServiceInfo, AsyncZeroconf

from fleet.base.network import address_of, is_loopback

logger = logging.getLogger(__name__)

SERVICE_TYPE = "_tvm-fleet._tcp.local."
_ANY_HOST = frozenset({"0.0.0.0", "::"})
_LOOK_SEC = 5.0
"""Trackers answer within a few tenths of a second; one that has just started first makes sure of its name, for a second
on an idle machine.
"""

_ASK_MS = 3_000
"""Time for a found tracker to report its address [ms]."""


class Advertisement:
    """Advertises a tracker on the network while it is open."""

    def __init__(self, host: str, port: int) -> None:
        self._host = host
        self._port = port
        self._zeroconf: AsyncZeroconf | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start in the background, since names are probed for a second before they are used."""
        self._task = asyncio.create_task(self._register(), name="advertise tracker")

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
        self._task = self._zeroconf = None

    async def _register(self) -> None:
        try:
            addresses = _own_addresses(self._host)
            # A tracker on the loopback interface is advertised to this machine only.
            interfaces: list[str | int] | InterfaceChoice = (
                ["127.0.0.1"] if is_loopback(self._host) else InterfaceChoice.Default
            )
            self._zeroconf = AsyncZeroconf(interfaces=interfaces)
            service = AsyncServiceInfo(
                SERVICE_TYPE,
                f"tracker-{socket.gethostname()}-{self._port}.{SERVICE_TYPE}",
                port=self._port,
                parsed_addresses=addresses,
                server=f"{socket.gethostname()}-tvm-fleet.local.",
            )
            await (await self._zeroconf.async_register_service(service, allow_name_change=True))
        except OSError as error:  # no multicast here, as in many containers
            logger.warning("tracker is not advertised, clients need its address", extra={"cause": str(error)})
        except Exception:  # zeroconf's errors share no base class; a tracker works without it
            logger.warning("tracker is not advertised, clients need its address", exc_info=True)


async def find_tracker() -> str | None:
    """Return "host:port" of the first tracker that answers, or None."""
    found: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    tasks: set[asyncio.Task[None]] = set()

    async def ask(zeroconf: Zeroconf, name: str) -> None:
        service = AsyncServiceInfo(SERVICE_TYPE, name)
        if await service.async_request(zeroconf, _ASK_MS) and not found.done():
            addresses = service.parsed_addresses()
            if addresses:
                found.set_result(address_of(addresses[0], service.port or 0))

    def on_change(zeroconf: Zeroconf, service_type: str, name: str, state_change: ServiceStateChange) -> None:
        if state_change is ServiceStateChange.Added and service_type == SERVICE_TYPE:
            task = asyncio.get_running_loop().create_task(ask(zeroconf, name), name=f"ask {name}")
            tasks.add(task)
            task.add_done_callback(tasks.discard)

    try:
        zeroconf = AsyncZeroconf(interfaces=InterfaceChoice.All)
    except OSError:
        logger.warning("cannot look for trackers on this network", exc_info=True)
        return None
    browser = AsyncServiceBrowser(zeroconf.zeroconf, SERVICE_TYPE, handlers=[on_change])
    try:
        async with asyncio.timeout(_LOOK_SEC):
            return await found
    except TimeoutError:
        return None
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await browser.async_cancel()
        await zeroconf.async_close()


def _own_addresses(host: str) -> list[str]:
    if host == "localhost":
        return ["127.0.0.1"]
    if host not in _ANY_HOST:
        return [host]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing: determines the local address of the route
            return [str(probe.getsockname()[0])]
        except OSError:
            return ["127.0.0.1"]
