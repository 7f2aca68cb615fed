"""A vendor's driver that hangs, in a real fleet: it costs its own device, not the agent and its other devices."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fleet.testing import eventually_sync
from tests.contract import fake_nvml
from tests.system.fleet_processes import Fleet, run_fleet, running_fleet

pytestmark = pytest.mark.slow

CONFIG = """
devices:
  - {{driver: cpu, name: host}}
  - {{driver: cuda, name: gpu, nvml_library: {library}, tvm_library: {stub}}}
"""


def device_of(fleet: Fleet, device_id: str) -> dict[str, Any]:
    devices: list[dict[str, Any]] = fleet.snapshot()["devices"]  # type: ignore[assignment]
    return next(device for device in devices if device["name"] == f"devices/{device_id}")


def state_of(fleet: Fleet, device_id: str) -> str:
    return str(device_of(fleet, device_id)["state"])


def test_nvml_that_hangs_costs_its_own_device_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other device continues with trials and heartbeats, the GPU recovers by itself, and the agent ends in time."""
    nvml = fake_nvml.build(tmp_path)
    nvml.play(fake_nvml.H200)
    monkeypatch.setenv("FAKE_NVML", str(nvml.script))
    stub = fake_nvml.compile_library("", tmp_path / "libstub.so")
    library = str(tmp_path / "matmul.so")
    built = run_fleet("build", "matmul-64", "--target", "host", "-o", library)
    assert built.returncode == 0, built.stderr

    with running_fleet(tmp_path, CONFIG.format(library=nvml.library, stub=stub)) as fleet:
        try:
            eventually_sync(lambda: state_of(fleet, "gpu") == "available")
            nvml.hang()
            eventually_sync(lambda: state_of(fleet, "gpu") == "faulted")
            before = device_of(fleet, "host")["telemetry"]["read_at"]
            timed = run_fleet("--tracker", fleet.address, "time", library, "--on", "kind=cpu", "--repeat", "3")
            eventually_sync(lambda: device_of(fleet, "host")["telemetry"]["read_at"] != before)
            reason = device_of(fleet, "gpu")["reason"]
            state = state_of(fleet, "host")
            nvml.answer()
            eventually_sync(lambda: state_of(fleet, "gpu") == "available")
            nvml.hang()
            eventually_sync(lambda: state_of(fleet, "gpu") == "faulted")
            code = fleet.agent.stop()
        finally:
            nvml.answer()  # or an agent that fails here would never end

    assert timed.returncode == 0, timed.stderr
    assert "NVML has not answered since" in reason
    assert state == "available"
    assert code == 0
