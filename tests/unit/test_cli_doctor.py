"""The doctor's checks on machines that lack something."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fleet.base.findings import Finding, State
from fleet.cli import checks
from fleet.cli.main import app
from fleet.domain import tvm_versions


def states(findings: list[Finding]) -> dict[str, State]:
    return {finding.name: finding.state for finding in findings}


def test_a_crashing_version_pair_is_reported_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The TVM and tvm-ffi versions that segfault are found without loading them."""
    monkeypatch.setattr(tvm_versions, "tvm_ffi_version", lambda: "0.1.15")
    finding = tvm_versions.diagnose()[0]
    assert finding.state is State.PROBLEM
    assert "pip install apache-tvm==" in finding.advice


def test_a_machine_without_tvm_can_still_watch_the_fleet(monkeypatch: pytest.MonkeyPatch) -> None:
    """TVM missing altogether is a warning."""
    monkeypatch.setattr(tvm_versions, "tvm_version", lambda: None)
    monkeypatch.setattr(tvm_versions, "tvm_ffi_version", lambda: None)
    assert states(tvm_versions.diagnose()) == {"tvm": State.WARNING}
    assert checks.tvm_runtime() == []


def test_a_data_directory_that_cannot_be_is_a_problem(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The message names the directory and the variable to change it."""
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("FLEET_DATA_DIR", str(blocked / "data"))
    finding = checks.directories()[0]
    assert finding.state is State.PROBLEM
    assert str(blocked) in finding.seen
    assert "FLEET_DATA_DIR" in finding.advice


def test_a_tracker_that_was_named_has_to_answer() -> None:
    """A tracker asked for by address and absent is a problem; a bad address is another."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        assert states(checks.tracker(address, timeout_sec=0.1)) == {"tracker": State.PROBLEM}
    assert "cannot read" in checks.tracker("nonsense")[0].seen


def test_this_machines_cpu_is_found() -> None:
    """The doctor shows the driver's own inventory."""
    found = {finding.name: finding for finding in checks.drivers()}
    assert "cpu" in found["drivers"].seen
    assert found["device cpu"].state is State.OK
    assert '"kind": "llvm"' in found["device cpu"].seen


def test_the_command_prints_findings_and_fails_on_problems(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """JSON has a finding per check; one problem makes exit code 1."""
    monkeypatch.setenv("FLEET_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("FLEET_CACHE_DIR", str(tmp_path))
    good = CliRunner().invoke(app, ["doctor", "--quick", "--json"])
    assert good.exit_code == 0
    assert {"python", "tvm", "data directory"} <= {finding["name"] for finding in json.loads(good.stdout)["findings"]}

    monkeypatch.setattr(tvm_versions, "tvm_ffi_version", lambda: "0.1.15")
    bad = CliRunner().invoke(app, ["doctor", "--quick"])
    assert bad.exit_code == 1
    assert "problem" in bad.stdout


@pytest.mark.slow
def test_a_piped_doctor_names_its_slow_checks() -> None:
    """Before, it was silent for half a minute on a busy machine."""
    done = subprocess.run([sys.executable, "-m", "fleet", "doctor"], capture_output=True, text=True, check=False)

    steps = ["loading TVM's runtime", "trying linkers and compilers", "looking for OpenCL devices"]
    assert [step for step in steps if step not in done.stderr.splitlines()] == []
    assert "python" in done.stdout
