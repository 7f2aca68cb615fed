"""The tracker's history of readings: an hour, sparsely, and not one sample more."""

from __future__ import annotations

import pytest

from fleet.tracker.core.records import Changes
from fleet.tracker.history import SAMPLE_SEC, SAMPLES, History
from fleet.v1 import device_pb2
from fleet.wire.times import timestamp_sec

NAME = "devices/pi"


def test_one_sample_in_ten_seconds_is_kept() -> None:
    """Reports come every few seconds and more often when health changes: the ring is not for all of them."""
    history = History()
    for second in range(100):
        history.on_telemetry(NAME, device_pb2.Telemetry(temp_c=second), float(second))

    assert [sample.temp_c for sample in history.samples(NAME, 100.0)] == [0, 10, 20, 30, 40, 50, 60, 70, 80, 90]


def test_an_hour_is_kept_and_older_ones_make_room() -> None:
    """Memory is bounded, and the order stays that of time."""
    history = History()
    for index in range(SAMPLES + 100):
        history.on_telemetry(NAME, device_pb2.Telemetry(temp_c=index % 50), index * SAMPLE_SEC)

    samples = history.samples(NAME, (SAMPLES + 99) * SAMPLE_SEC)

    times = [timestamp_sec(sample.read_at) for sample in samples]
    assert times == sorted(times)
    assert len(samples) == SAMPLES
    assert times[-1] == (SAMPLES + 99) * SAMPLE_SEC


def test_samples_older_than_an_hour_are_omitted() -> None:
    """A device that was away shows a gap, not yesterday."""
    history = History()
    history.on_telemetry(NAME, device_pb2.Telemetry(temp_c=1), 0.0)
    history.on_telemetry(NAME, device_pb2.Telemetry(temp_c=2), 5000.0)

    assert [sample.temp_c for sample in history.samples(NAME, 5000.0)] == [2]


def test_missing_readings_stay_unknown() -> None:
    """Unknown is not zero, also for a reading that a device only begins to tell later."""
    history = History()
    history.on_telemetry(NAME, device_pb2.Telemetry(temp_c=40), 0.0)
    history.on_telemetry(NAME, device_pb2.Telemetry(freq_hz=1e9, reference_sec=0.001), 10.0)
    history.on_telemetry(NAME, device_pb2.Telemetry(temp_c=41), 20.0)

    first, second, third = history.samples(NAME, 20.0)

    assert [first.HasField("temp_c"), second.HasField("temp_c"), third.HasField("temp_c")] == [True, False, True]
    assert not first.HasField("freq_hz")
    assert second.freq_hz == pytest.approx(1e9)
    assert second.reference_sec == pytest.approx(0.001)


def test_a_forgotten_device_has_no_past() -> None:
    """A device that is gone for good takes no memory."""
    history = History()
    history.on_telemetry(NAME, device_pb2.Telemetry(temp_c=40), 0.0)

    history.on_change(Changes(devices={NAME: None}))

    assert history.samples(NAME, 0.0) == []


def test_a_clock_that_is_set_back_begins_a_new_hour() -> None:
    """A board without a clock of its own may start in the future; a correction of milliseconds does not count."""
    history = History()
    history.on_telemetry(NAME, device_pb2.Telemetry(temp_c=1), 1e9)
    history.on_telemetry(NAME, device_pb2.Telemetry(temp_c=2), 1e9 - 0.5)
    assert [sample.temp_c for sample in history.samples(NAME, 1e9)] == [1]

    history.on_telemetry(NAME, device_pb2.Telemetry(temp_c=3), 1000.0)
    history.on_telemetry(NAME, device_pb2.Telemetry(temp_c=4), 1010.0)

    assert [sample.temp_c for sample in history.samples(NAME, 1010.0)] == [3, 4]
