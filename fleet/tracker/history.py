"""The last hour of every device's readings, in memory only: at most 15 kB per device.

Agents report every few seconds. One report every ten seconds is kept, and only the numbers in it that people plot. Each
number has a ring of its own, made when the device first reports it.
"""

from __future__ import annotations

import math
from array import array

from fleet.tracker.core.records import Changes
from fleet.tracker.observers import Observer
from fleet.v1 import device_pb2
from fleet.wire.times import timestamp

SAMPLE_SEC = 10.0
SAMPLES = 360
KEPT = ("temp_c", "freq_hz", "reference_sec", "power_w", "cpu_busy", "load_1min")
"""The fields of Telemetry that are stored."""


class History(Observer):
    """Ring buffers of samples, by device."""

    def __init__(self) -> None:
        self._rings: dict[str, _Ring] = {}

    def on_telemetry(self, device_name: str, telemetry: device_pb2.Telemetry, at_sec: float) -> None:
        """Store these readings unless the last stored ones are younger than ten seconds."""
        ring = self._rings.setdefault(device_name, _Ring())
        if at_sec < ring.newest_sec - SAMPLE_SEC:
            # The clock was set back: samples from the future would keep new ones out.
            ring = self._rings[device_name] = _Ring()
        if at_sec - ring.newest_sec >= SAMPLE_SEC:
            ring.add(telemetry, at_sec)

    def on_change(self, changes: Changes) -> None:
        """Drop the history of forgotten devices."""
        for name, device in changes.devices.items():
            if device is None:
                self._rings.pop(name, None)

    def samples(self, device_name: str, now_sec: float) -> list[device_pb2.Telemetry]:
        """Return the readings of the last hour, oldest first; none for a device that never reported."""
        ring = self._rings.get(device_name)
        return ring.samples(now_sec - SAMPLES * SAMPLE_SEC) if ring else []


class _Ring:
    """Ring buffers of full length from the start, so that a tracker's memory does not grow for an hour."""

    def __init__(self) -> None:
        self._times = array("d", [-math.inf]) * SAMPLES
        self._values: dict[str, array[float]] = {}
        self._next = 0
        """Index of the next sample."""
        self.newest_sec = -math.inf

    def add(self, telemetry: device_pb2.Telemetry, now_sec: float) -> None:
        for name in KEPT:
            if name not in self._values and telemetry.HasField(name):
                self._values[name] = array("f", [math.nan]) * SAMPLES
        self._times[self._next] = now_sec
        for name, values in self._values.items():
            values[self._next] = getattr(telemetry, name) if telemetry.HasField(name) else math.nan
        self._next = (self._next + 1) % SAMPLES
        self.newest_sec = now_sec

    def samples(self, since_sec: float) -> list[device_pb2.Telemetry]:
        indices = ((self._next + offset) % SAMPLES for offset in range(SAMPLES))
        return [self._sample(index) for index in indices if self._times[index] > since_sec]

    def _sample(self, index: int) -> device_pb2.Telemetry:
        known = {name: values[index] for name, values in self._values.items() if not math.isnan(values[index])}
        sample = device_pb2.Telemetry(read_at=timestamp(self._times[index]))
        for name, value in known.items():
            setattr(sample, name, value)
        return sample
