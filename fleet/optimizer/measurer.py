"""Sends trials to a device and reports their results."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing

from fleet.client.steady import SteadyDevice
from fleet.optimizer.core.events import Measure, Measured, MeasureEnded


class Measurer:
    """Measures on one device at a time."""

    def __init__(self, device: SteadyDevice) -> None:
        self._device = device

    async def measure(self, effect: Measure) -> AsyncGenerator[Measured | MeasureEnded, None]:
        """Measure all trials, in order.

        Raises:
            DeviceUnreachable: see SteadyDevice.measure.
        """
        await asyncio.sleep(effect.pause_sec)
        started = time.monotonic()
        async with aclosing(self._device.measure(effect.artifacts, effect.trials)) as measurements:
            async for measurement in measurements:
                yield Measured(effect.batch, self._device.name, measurement)
        yield MeasureEnded(effect.batch, self._device.name, time.monotonic() - started)
