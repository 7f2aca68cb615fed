"""The log that a device writes of its runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from fleet.domain.measuring import Trial
from tests.chaos.board import DeviceLog, trial_id
from tests.chaos.checker import Wrong, check
from tests.chaos.history import What, read
from tests.programs import here

_RUN_FOR_EVER = """
import time
from tests.chaos.board import DeviceLog
from tests.chaos.test_board import trial
with DeviceLog().running(trial("leases/1", 1)):
    print("runs", flush=True)
    time.sleep(100)
"""


@pytest.fixture
def log_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "devices-a.jsonl"
    monkeypatch.setenv("CHAOS_DEVICE", "devices/a")
    monkeypatch.setenv("CHAOS_DEVICE_LOG", str(path))
    return path


def trial(lease: str, epoch: int) -> Trial:
    return Trial(candidate_id=trial_id(lease, epoch, 0), artifact_digest="sha256:0")


def test_two_workers_at_once_are_seen(log_path: Path) -> None:
    """The second worker finds the device taken, and logs it."""
    with DeviceLog().running(trial("leases/1", 1)), DeviceLog().running(trial("leases/2", 2)):
        pass

    history = read([log_path])

    assert [True, False] == [event.is_alone for event in history if event.what is What.BEGIN]
    assert Wrong.OVERLAP in {finding.wrong for finding in check(history)}


@pytest.mark.slow
def test_a_killed_worker_leaves_the_device_free(log_path: Path) -> None:
    """Its run has no end, and the next one is alone."""
    with subprocess.Popen([sys.executable, "-c", _RUN_FOR_EVER], env=here(), stdout=subprocess.PIPE) as worker:
        assert worker.stdout is not None
        worker.stdout.readline()
        worker.kill()

    with DeviceLog().running(trial("leases/2", 2)):
        pass

    history = read([log_path])
    assert [What.BEGIN, What.BEGIN, What.END] == [event.what for event in history]
    assert [("leases/1", 1, True), ("leases/2", 2, True)] == [
        (event.lease, event.epoch, event.is_alone) for event in history if event.what is What.BEGIN
    ]
    assert {Wrong.STRANGER} == {finding.wrong for finding in check(history)}, "no client has written anything"
