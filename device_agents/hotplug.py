"""Devices that come while the agent runs: asks the watchers, and hands new drivers to the agent."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from device_agents.driver import Driver, Watcher
from fleet.errors import FleetError

logger = logging.getLogger(__name__)

_RETRY_SEC = 5.0


class Hotplug:
    """Follows all watchers of an agent."""

    def __init__(self, watchers: Sequence[Watcher], take_in: Callable[[Driver], Awaitable[None]]) -> None:
        """Args:
        take_in: opens and serves one more device; a name that is served already is none.
        """
        self._watchers = watchers
        self._take_in = take_in
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def preloads(self) -> list[str]:
        """What workers of devices to come need loaded."""
        return [watcher.preload for watcher in self._watchers if watcher.preload]

    async def first(self) -> list[Driver]:
        """Return what is there now.

        Raises:
            FleetError: a watcher cannot look.
        """
        return [driver for watcher in self._watchers for driver in await watcher.look()]

    def start(self) -> None:
        """Begin to follow."""
        self._tasks = [
            asyncio.create_task(self._follow(watcher), name=f"watch-{index}")
            for index, watcher in enumerate(self._watchers)
        ]

    async def close(self) -> None:
        """End following. Idempotent."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for watcher in self._watchers:
            await watcher.close()

    async def _follow(self, watcher: Watcher) -> None:
        while True:
            try:
                await watcher.wait()
                for driver in await watcher.look():
                    await self._serve(driver)
            except Exception as error:  # noqa: BLE001 - outermost loop of this task: it goes on looking
                _complain("looking for new devices failed", error)
                await asyncio.sleep(_RETRY_SEC)

    async def _serve(self, driver: Driver) -> None:
        logger.info("device appeared", extra={"device": driver.name})
        try:
            await self._take_in(driver)
        except Exception as error:  # noqa: BLE001 - outermost edge of one device: others came with it
            _complain("a new device is not served", error)


def _complain(text: str, error: Exception) -> None:
    expected = isinstance(error, FleetError)
    logger.warning(text, exc_info=None if expected else error, extra={"error": str(error)})
