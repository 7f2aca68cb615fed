"""Observes a device around one measurement, and writes the observations into the result."""

from __future__ import annotations

import time
from typing import Self

from device_agents.measuring.contention import find_contention, waited_sec_by_thread
from device_agents.measuring.cooldown import Rest
from device_agents.measuring.disturbances import find_disturbances
from device_agents.serving.device import ServedDevice
from fleet.domain.devices import Telemetry
from fleet.domain.measuring import Disturbance
from fleet.v1 import measurement_pb2
from fleet.wire.devices import telemetry_to_proto
from fleet.wire.measurements import disturbance_to_proto
from fleet.wire.times import duration

_COUNTED = "cycles"
"""Time source that nothing disturbs: the device counts the same cycles however busy or hot it is."""

_HOST_TIMED = ("", "wall")
"""Time sources that a busy host disturbs."""


class Observation:
    """Covers the time from right before a candidate runs until right after; costs two readings, under a millisecond."""

    def __init__(self, device: ServedDevice, worker_pid: int, before: Telemetry) -> None:
        self._device = device
        self._worker_pid = worker_pid
        self._before = self._after = before
        self._drift = device.reference.drift
        self._waited_before = waited_sec_by_thread(worker_pid)
        self._started_sec = time.monotonic()
        self._contention: Disturbance | None = None

    @classmethod
    async def start(cls, device: ServedDevice, worker_pid: int) -> Self:
        """Begin the observation before the candidate runs."""
        return cls(device, worker_pid, await device.readings())

    async def stop(self) -> None:
        """End the observation after the candidate ran or died."""
        run_sec = time.monotonic() - self._started_sec
        self._contention = find_contention(self._waited_before, waited_sec_by_thread(self._worker_pid), run_sec)
        self._after = await self._device.readings()

    def fill(self, measurement: measurement_pb2.Measurement, rest: Rest) -> None:
        """Add readings, the cool-down and disturbances to the worker's result."""
        reference = self._device.reference
        provenance = measurement.provenance
        provenance.before.CopyFrom(telemetry_to_proto(self._before))
        provenance.after.CopyFrom(telemetry_to_proto(self._after))
        reference_sec = reference.current_sec(time.monotonic())
        if reference_sec is not None:
            # newer than the reading if the reference kernel ran right after
            provenance.after.reference_sec = reference_sec
        provenance.worker_pid = self._worker_pid
        provenance.bitstream_digest = self._device.bitstream_digest
        provenance.owner_facts_json = self._device.driver.given_facts_json
        if rest.waited_sec:
            provenance.cooldown.CopyFrom(duration(rest.waited_sec))
        if self._device.is_simulated or measurement.time_source == _COUNTED:
            return
        noticed = [rest.disturbance, *find_disturbances(self._before, self._after)]
        if measurement.time_source in _HOST_TIMED:
            noticed.append(self._contention)
        noticed.append(self._drift or reference.drift)
        provenance.disturbances.extend(map(disturbance_to_proto, filter(None, noticed)))
