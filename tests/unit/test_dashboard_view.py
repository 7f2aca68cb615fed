"""The dashboard's picture, as text."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from fleet.dashboard import formatting
from fleet.dashboard.view import render
from fleet.domain.devices import DeviceState, DeviceStatus, Telemetry
from fleet.domain.jobs import JobState, JobStatus, OptimizerStatus
from fleet.domain.leases import LeaseTerms, PendingRequest
from fleet.domain.snapshot import Snapshot
from fleet.domain.waits import Forecast

NOW_SEC = 1_700_000_000.0
GOLDEN = Path(__file__).parent.parent / "golden"


def busy_fleet() -> Snapshot:
    """A fleet with one of everything."""
    return Snapshot(
        version=7,
        tracker_version="0.1.0",
        started_at_sec=NOW_SEC - 11_520,
        taken_at_sec=NOW_SEC - 0,
        grant_count=42,
        request_count=20,
        devices=(
            DeviceStatus(
                name="devices/lab1-cpu",
                state=DeviceState.LEASED,
                holder="ann@desk",
                granted_at_sec=NOW_SEC - 75,
                telemetry=Telemetry(
                    trials=900, trials_per_min=412.4, temp_c=61.2, load_1min=0.93, last_error="TIMEOUT after 10 s"
                ),
            ),
            DeviceStatus(name="devices/pi4-01", state=DeviceState.AVAILABLE),
            DeviceStatus(name="devices/pi4-02", state=DeviceState.OFFLINE, reason="its agent is not attached"),
            DeviceStatus(name="devices/pi4-03", state=DeviceState.FAULTED, reason="the sensor reads 105 °C"),
        ),
        requests=(
            PendingRequest(
                request_id="r",
                holder="bob@lab",
                terms=LeaseTerms(selector="kind=cpu,arch=x86_64", priority=5),
                position=0,
                asked_at_sec=NOW_SEC - 12,
                reason="devices/lab1-cpu is held by ann@desk for 75 s",
                forecast=Forecast(from_sec=NOW_SEC + 180, expected_sec=NOW_SEC + 725, by_sec=NOW_SEC + 1500),
            ),
            PendingRequest(
                request_id="r", holder="cy@lab", terms=LeaseTerms(selector="cpu"), position=1, asked_at_sec=NOW_SEC - 3
            ),
        ),
        jobs=(
            JobStatus(
                name="jobs/1",
                title="squeezenet.onnx",
                state=JobState.RUNNING,
                started_at_sec=NOW_SEC - 190,
                trials_done=48,
                trials_total=64,
                trials_failed=2,
                best_us=3456.0,
                untuned_us=270_000.0,
                activity="measuring fused_conv2d_relu",
            ),
            JobStatus(name="jobs/0", title="tiny.onnx", state=JobState.FAILED, trials_total=8),
        ),
    )


def text_of(snapshot: Snapshot, width: int) -> str:
    """Draw it as text without trailing spaces."""
    console = Console(file=io.StringIO(), width=width, color_system=None, legacy_windows=False)
    console.print(render(snapshot, NOW_SEC, address="127.0.0.1:9290", width=width))
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    return "\n".join(line.rstrip() for line in lines) + "\n"


@pytest.mark.parametrize("width", [80, 100, 140])
def test_a_busy_fleet_looks_as_agreed(width: int) -> None:
    """The picture of one of everything is the committed one, at every width."""
    assert (GOLDEN / f"dashboard_{width}.txt").read_text() == text_of(busy_fleet(), width)


@pytest.mark.parametrize("width", [80, 100])
def test_every_line_fits_the_terminal(width: int) -> None:
    """No line wraps, and the essential fields are not cut."""
    text = text_of(busy_fleet(), width)
    assert max(map(len, text.splitlines())) <= width
    for needed in ("lab1-cpu", "leased", "ann@desk", "1 min", "412", "61 °C", "bob@lab", "48/64 (2 bad)", "78.1x"):
        assert needed in text


def test_an_empty_fleet_shows_how_to_add_devices() -> None:
    """Without devices the way to attach one is shown."""
    text = text_of(Snapshot(), 100)
    assert "no devices yet; attach one with: fleet agent serve --tracker 127.0.0.1:9290" in text


@pytest.mark.parametrize(
    ("state", "word"),
    [
        (DeviceState.AVAILABLE, "free"),
        (DeviceState.LEASED, "leased"),
        (DeviceState.OFFLINE, "offline"),
        (DeviceState.FAULTED, "faulted"),
    ],
)
def test_every_state_of_a_device_has_a_word(state: DeviceState, word: str) -> None:
    """Each state is shown by its own word."""
    assert word in text_of(Snapshot(devices=(DeviceStatus(name="devices/x", state=state),)), 100)


@pytest.mark.parametrize("state", JobState)
def test_every_state_of_a_job_has_a_word(state: JobState) -> None:
    """Each state is shown by its own word."""
    assert f" {state.value.lower()} " in text_of(Snapshot(jobs=(JobStatus(name="jobs/x", state=state),)), 100)


def test_disturbances_of_measurements_are_displayed() -> None:
    """The device shows a present disturbance, and the job its repeated measurements."""
    throttled = DeviceStatus(
        name="devices/hot", telemetry=Telemetry(throttle_reasons=("thermal",), last_error="older news")
    )
    shared = DeviceStatus(name="devices/shared", telemetry=Telemetry(foreign_processes=2))
    job = JobStatus(name="jobs/x", trials_done=8, trials_total=9, trials_failed=1, trials_repeated=3)

    text = text_of(Snapshot(devices=(throttled, shared), jobs=(job,)), 120)

    assert "throttled: thermal" in text
    assert "used by 2 foreign processes" in text
    assert "8/9 (1 bad, 3 again)" in text


def test_a_jobs_bar_is_as_long_as_its_trials_or_its_time() -> None:
    """Older optimizers report trials alone; a job limited by time has no number of trials."""
    counted = text_of(Snapshot(jobs=(JobStatus(name="jobs/x", trials_done=4, trials_total=8),)), 120)
    timed = text_of(Snapshot(jobs=(JobStatus(name="jobs/x", trials_done=37, share_done=0.5),)), 120)

    assert counted.count("━") == timed.count("━") > 0
    assert " 37 " in timed


@pytest.mark.parametrize(
    ("rest_sec", "text"), [(7_500.0, "in 2 h 05 min"), (41.9, "in 41 s"), (0.9, "soon"), (-3.0, "soon")]
)
def test_a_waiting_request_shows_its_expected_start(rest_sec: float, text: str) -> None:
    """A request that is late is expected soon."""
    at_sec = NOW_SEC + rest_sec
    forecast = Forecast(from_sec=at_sec, expected_sec=at_sec, by_sec=at_sec)

    assert f" {text}\n" in text_of(Snapshot(requests=(PendingRequest(request_id="r", forecast=forecast),)), 80)


def test_numbers_in_names_are_sorted_as_numbers() -> None:
    """ "pi-2" stands before "pi-10", as people count their boards."""
    names = ["pi-10", "pi-2", "pi-2-b", "box", "pi"]

    assert sorted(names, key=formatting.natural_key) == ["box", "pi", "pi-2", "pi-2-b", "pi-10"]


def test_optimizers_are_listed_under_the_jobs() -> None:
    """Each with its running jobs and builders; `fleet tune` is none, and ended jobs do not count."""
    jobs = (
        JobStatus(name="jobs/1", optimizer="lab1:17", builder_count=4),
        JobStatus(name="jobs/2", optimizer="lab1:17", builder_count=4),
        JobStatus(name="jobs/3", optimizer="lab0:9"),
        JobStatus(name="jobs/4", optimizer="lab2:5", state=JobState.FINISHED),
        JobStatus(name="jobs/5"),
    )

    text = text_of(Snapshot(jobs=jobs), 100)

    assert text.rstrip().endswith("lab0:9 runs 1 job\nlab1:17 runs 2 jobs with 4 builders")
    assert "lab2" not in text


def test_the_next_batch_of_a_running_job_is_shown_with_its_reason() -> None:
    """Below the jobs, by title or number. Ended jobs have none."""
    jobs = (
        JobStatus(name="jobs/1", title="tiny.onnx", decision="matmul 64 on cpu: most to gain"),
        JobStatus(name="jobs/2", decision="softmax on pi4: first batch"),
        JobStatus(name="jobs/3", decision="relu on pi4: first batch", state=JobState.FINISHED),
    )

    lines = text_of(Snapshot(jobs=jobs), 100).splitlines()

    assert lines[-2:] == ["tiny.onnx: matmul 64 on cpu: most to gain", "2: softmax on pi4: first batch"]


def test_idle_optimizers_are_listed_too() -> None:
    """A user sees that a submitted job would be run; beyond eight they are counted."""
    idle = [OptimizerStatus(name=f"lab{number}:5", builder_count=2) for number in range(8)]
    busy = OptimizerStatus(name="a:1", builder_count=3)

    text = text_of(Snapshot(jobs=(JobStatus(name="jobs/1", optimizer="a:1"),), optimizers=(busy, *idle)), 100)

    assert "a:1 runs 1 job with 3 builders\nlab0:5 is idle with 2 builders" in text
    assert text.rstrip().endswith("and 1 more")
    assert "lab0:5 is idle" in text_of(Snapshot(optimizers=(idle[0],)), 100)
