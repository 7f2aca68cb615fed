"""Serves devices that appear while the agent runs: polls the finders, and passes new drivers to the agent."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from device_agents.driver import DeviceFinder, Driver
from fleet.errors import FleetError

logger = logging.getLogger(__name__)


class Hotplug:
    """Polls all finders of an agent."""

    def __init__(
        self, finders: Sequence[DeviceFinder], take_in: Callable[[Driver], Awaitable[None]], *, retry_sec: float
    ) -> None:
        """Args: take_in: opens and serves an additional device; ignores one whose name is already served."""
        self._finders = finders
        self._take_in = take_in
        self._retry_sec = retry_sec
        self._tasks: list[asyncio.Task[None]] = []

    async def first(self) -> list[Driver]:
        """Return the devices that are present.

        Raises:
            FleetError: a finder cannot look.
        """
        return [driver for finder in self._finders for driver in await finder.look()]

    def start(self) -> None:
        """Start polling."""
        self._tasks = [
            asyncio.create_task(self._follow(finder), name=f"find-devices-{index}")
            for index, finder in enumerate(self._finders)
        ]

    async def close(self) -> None:
        """Stop polling. Idempotent."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for finder in self._finders:
            await finder.close()

    async def _follow(self, finder: DeviceFinder) -> None:
        while True:
            try:
                await finder.wait()
                for driver in await finder.look():
                    await self._serve(driver)
            except Exception as error:  # noqa: BLE001 - outermost loop of this task: it goes on looking
                _complain("looking for new devices failed", error)
                await asyncio.sleep(self._retry_sec)

    async def _serve(self, driver: Driver) -> None:
        logger.info("device appeared", extra={"device": driver.name})
        try:
            await self._take_in(driver)
        except Exception as error:  # noqa: BLE001 - outermost edge of one device: others came with it
            _complain("a new device is not served", error)


def _complain(text: str, error: Exception) -> None:
    expected = isinstance(error, FleetError)
    logger.warning(text, exc_info=None if expected else error, extra={"error": str(error)})
