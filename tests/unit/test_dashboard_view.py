"""The dashboard's picture, as text."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from fleet import wire
from fleet.dashboard import words
from fleet.dashboard.view import render
from fleet.v1 import device_pb2, fleet_service_pb2, job_pb2, lease_pb2

NOW_SEC = 1_700_000_000.0
GOLDEN = Path(__file__).parent.parent / "golden"


def busy_fleet() -> fleet_service_pb2.Snapshot:
    """A fleet with one of everything."""
    ago = lambda sec: wire.timestamp(NOW_SEC - sec)  # noqa: E731
    return fleet_service_pb2.Snapshot(
        version=7,
        tracker_version="0.1.0",
        started_at=ago(11_520),
        taken_at=ago(0),
        grant_count=42,
        request_count=20,
        devices=[
            device_pb2.Device(
                name="devices/lab1-cpu",
                state=device_pb2.DEVICE_STATE_LEASED,
                holder="ann@desk",
                granted_at=ago(75),
                telemetry=device_pb2.Telemetry(
                    trials=900, trials_per_min=412.4, temp_c=61.2, load_1min=0.93, last_error="TIMEOUT after 10 s"
                ),
            ),
            device_pb2.Device(name="devices/pi4-01", state=device_pb2.DEVICE_STATE_AVAILABLE),
            device_pb2.Device(
                name="devices/pi4-02", state=device_pb2.DEVICE_STATE_OFFLINE, reason="its agent is not attached"
            ),
            device_pb2.Device(
                name="devices/pi4-03", state=device_pb2.DEVICE_STATE_FAULTED, reason="the sensor reads 105 °C"
            ),
        ],
        requests=[
            lease_pb2.PendingRequest(
                holder="bob@lab",
                selector="kind=cpu,arch=x86_64",
                priority=5,
                position=0,
                asked_at=ago(12),
                reason="devices/lab1-cpu is held by ann@desk for 75 s",
            ),
            lease_pb2.PendingRequest(holder="cy@lab", selector="cpu", position=1, asked_at=ago(3)),
        ],
        jobs=[
            job_pb2.Job(
                name="jobs/1",
                title="squeezenet.onnx",
                state=job_pb2.JOB_STATE_RUNNING,
                started_at=ago(190),
                trials_done=48,
                trials_total=64,
                trials_failed=2,
                best_us=3456.0,
                untuned_us=270_000.0,
                activity="measuring fused_conv2d_relu",
            ),
            job_pb2.Job(name="jobs/0", title="tiny.onnx", state=job_pb2.JOB_STATE_FAILED, trials_total=8),
        ],
    )


def text_of(snapshot: fleet_service_pb2.Snapshot, width: int, away_sec: float | None = None) -> str:
    """Draw it as text without trailing spaces."""
    console = Console(file=io.StringIO(), width=width, color_system=None, legacy_windows=False)
    console.print(render(snapshot, NOW_SEC, address="127.0.0.1:9290", width=width, away_sec=away_sec))
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    return "\n".join(line.rstrip() for line in lines) + "\n"


@pytest.mark.parametrize("width", [80, 100, 140])
def test_a_busy_fleet_looks_as_agreed(width: int) -> None:
    """The picture of one of everything is the committed one, at every width."""
    assert (GOLDEN / f"dashboard_{width}.txt").read_text() == text_of(busy_fleet(), width)


@pytest.mark.parametrize("width", [80, 100])
def test_nothing_is_wider_than_the_terminal(width: int) -> None:
    """No line wraps, and what must be read is not cut."""
    text = text_of(busy_fleet(), width)
    assert max(map(len, text.splitlines())) <= width
    for needed in ("lab1-cpu", "leased", "ann@desk", "1 min", "412", "61 °C", "bob@lab", "48/64 (2 bad)", "78.1x"):
        assert needed in text


def test_an_empty_fleet_says_how_to_fill_it() -> None:
    """Without devices the way to attach one is shown."""
    text = text_of(fleet_service_pb2.Snapshot(), 100)
    assert "no devices yet; attach one with: fleet agent serve --tracker 127.0.0.1:9290" in text


def test_an_absent_tracker_is_said_so() -> None:
    """While the tracker is away the last picture stays, under a line that says so."""
    text = text_of(busy_fleet(), 100, away_sec=3.4)
    assert "tracker away since 3 s, trying again" in text
    assert "lab1-cpu" in text


def test_every_state_has_a_word() -> None:
    """Each state of the protos is shown by its own word."""
    for state in device_pb2.DeviceState.values():
        device = device_pb2.Device(name="devices/x", state=state)  # type: ignore[arg-type]
        text = text_of(fleet_service_pb2.Snapshot(devices=[device]), 100)
        assert ("unknown" in text) is (state == device_pb2.DEVICE_STATE_UNSPECIFIED)
    for job_state in job_pb2.JobState.values():
        job = job_pb2.Job(name="jobs/x", state=job_state)  # type: ignore[arg-type]
        text = text_of(fleet_service_pb2.Snapshot(jobs=[job]), 100)
        assert ("unknown" in text) is (job_state == job_pb2.JOB_STATE_UNSPECIFIED)


def test_what_disturbs_measurements_is_said() -> None:
    """By the device, while it lasts, and by the job, which measured again."""
    throttled = device_pb2.Device(
        name="devices/hot", telemetry=device_pb2.Telemetry(throttle_reasons=["thermal"], last_error="older news")
    )
    shared = device_pb2.Device(name="devices/shared", telemetry=device_pb2.Telemetry(foreign_processes=2))
    job = job_pb2.Job(name="jobs/x", trials_done=8, trials_total=9, trials_failed=1, trials_repeated=3)

    text = text_of(fleet_service_pb2.Snapshot(devices=[throttled, shared], jobs=[job]), 120)

    assert "throttled: thermal" in text
    assert "used by 2 foreign processes" in text
    assert "8/9 (1 bad, 3 again)" in text


@pytest.mark.parametrize(
    ("sec", "expected"),
    [(-1, "0 s"), (59.9, "59 s"), (60, "1 min"), (3599, "59 min"), (7500, "2 h 05 min"), (100_000, "1 d 3 h")],
)
def test_durations_read_easily(sec: float, expected: str) -> None:
    """Durations have at most two units."""
    assert expected == words.duration(sec)


@pytest.mark.parametrize(
    ("us", "expected"), [(0, "-"), (0.85, "0.85 us"), (12.34, "12.3 us"), (4560, "4.56 ms"), (1.2e6, "1.2 s")]
)
def test_latencies_read_easily(us: float, expected: str) -> None:
    """Latencies have three digits and a fitting unit."""
    assert expected == words.latency(us)
