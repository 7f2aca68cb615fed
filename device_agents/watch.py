"""Watches a device around one measurement, and writes into the result what it saw."""

from __future__ import annotations

import time
from typing import Self

from device_agents.contention import describe_waiting, waited_sec_by_thread
from device_agents.cooldown import Rest
from device_agents.disturbances import find_disturbances
from device_agents.served import ServedDevice
from fleet.v1 import device_pb2, measurement_pb2
from fleet.wire import duration

_COUNTED = "cycles"
"""What the device counts is the same however busy or hot anything is."""

_HOST_TIMED = ("", "wall")
"""Sources of time that feel it when the host is busy."""


class Watch:
    """From right before a candidate runs until right after. Costs two readings, a fraction of a millisecond."""

    def __init__(self, device: ServedDevice, worker_pid: int, before: device_pb2.Telemetry) -> None:
        self._device = device
        self._worker_pid = worker_pid
        self._before = device_pb2.Telemetry()
        self._before.CopyFrom(before)
        self._after = self._before
        self._drift = device.reference.describe()
        self._waited_before = waited_sec_by_thread(worker_pid)
        self._started_sec = time.monotonic()
        self._waiting = ""

    @classmethod
    async def start(cls, device: ServedDevice, worker_pid: int) -> Self:
        """The candidate is about to run."""
        return cls(device, worker_pid, await device.readings())

    async def stop(self) -> None:
        """The candidate ran, or died."""
        run_sec = time.monotonic() - self._started_sec
        self._waiting = describe_waiting(self._waited_before, waited_sec_by_thread(self._worker_pid), run_sec)
        self._after = device_pb2.Telemetry()
        self._after.CopyFrom(await self._device.readings())

    def fill(self, measurement: measurement_pb2.Measurement, rest: Rest) -> None:
        """Write down readings, rest and disturbances. What the worker wrote there stays."""
        reference = self._device.reference
        provenance = measurement.provenance
        provenance.before.CopyFrom(self._before)
        provenance.after.CopyFrom(self._after)
        reference_sec = reference.current_sec(time.monotonic())
        if reference_sec is not None:
            provenance.after.reference_sec = reference_sec  # newer than the readings where it ran right after
        provenance.worker_pid = self._worker_pid
        provenance.bitstream_digest = self._device.driver.bitstream_digest
        if rest.waited_sec:
            provenance.cooldown.CopyFrom(duration(rest.waited_sec))
        if self._device.is_simulated or measurement.time_source == _COUNTED:
            return
        noticed = [rest.disturbance, *find_disturbances(self._before, self._after)]
        if measurement.time_source in _HOST_TIMED:
            noticed.append(self._waiting)
        noticed.append(self._drift or reference.describe())
        provenance.disturbances.extend(filter(None, noticed))
