"""Sends trials to a device and reports their results; a run of errors stops the batch and releases the device."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace

from fleet.building.turns import stepped_aside
from fleet.client.line import TrialLine
from fleet.client.steady import SteadyDevice
from fleet.domain.environment import ENVIRONMENT, environment_of
from fleet.domain.measuring import ErrorKind, Measurement
from fleet.optimizer.core.events import Measure, Measured, MeasureEnded

RUN_OF_ERRORS = 5
"""Number of consecutive crashes that say more about the device than about the candidates."""

_BROKEN = (ErrorKind.CRASHED, ErrorKind.DEVICE_FAULTED, ErrorKind.TIMEOUT, ErrorKind.RUN_FAILED)
_PROBE_SEC = 2.5
"""A device's agent probes its health every second, and the tracker never grants an unhealthy device."""


class Measurer:
    """Measures on one device at a time."""

    def __init__(self, device: SteadyDevice) -> None:
        self._device = device
        self._errors_in_a_row = 0
        self._ended_at = -math.inf
        """Time of the last batch's last result, on the monotonic clock."""

        self._waited_by_then_sec = 0.0

    @property
    def is_calm(self) -> bool:
        """True if the last candidate did not crash."""
        return not self._errors_in_a_row

    async def measure(
        self, effect: Measure, line: TrialLine | None = None
    ) -> AsyncGenerator[Measured | MeasureEnded, None]:
        """Measure all trials in order, or until the device is suspect.

        Args:
            line: of the device, to measure through while another batch has not ended.

        Raises:
            DeviceUnreachable: see SteadyDevice.measure.
        """
        await asyncio.sleep(effect.pause_sec)
        started, waited_sec, is_suspected = time.monotonic(), self._device.waited_sec, False
        async with aclosing((line or self._device).measure(effect.artifacts, effect.trials)) as measurements:
            async for measurement in measurements:
                self._errors_in_a_row = self._errors_in_a_row + 1 if measurement.error in _BROKEN else 0
                yield Measured(effect.batch, self._device.last_name, self._with_environment(measurement))
                if self._errors_in_a_row >= RUN_OF_ERRORS:
                    is_suspected, self._errors_in_a_row = True, 0
                    break
        if is_suspected:
            await self._device.give_back()
            async with stepped_aside():
                await asyncio.sleep(_PROBE_SEC)
        # Exclude the time before the previous batch ended, and the time without a device.
        started, self._ended_at = max(started, self._ended_at), time.monotonic()
        waited_sec, self._waited_by_then_sec = max(waited_sec, self._waited_by_then_sec), self._device.waited_sec
        wall_sec = self._ended_at - started - (self._waited_by_then_sec - waited_sec)
        yield MeasureEnded(effect.batch, self._device.last_name, wall_sec, is_suspected)

    def _with_environment(self, measurement: Measurement) -> Measurement:
        if measurement.error is not None:
            return measurement
        found = environment_of(self._device.last_inventory, measurement.provenance)
        return replace(measurement, provenance={**measurement.provenance, ENVIRONMENT: found})
