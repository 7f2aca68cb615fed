"""GPUs in a real agent: their listing in a fleet, and the errors where they cannot be used."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.contract import fake_nvml
from tests.contract.amd_cards import put_card
from tests.system.fleet_processes import run_fleet, running_fleet

pytestmark = pytest.mark.slow

CONFIG = """
devices:
  - driver: cpu
  - driver: cuda
  - {{driver: cuda, uuid: GPU-b8ea3855-276c-c9cb-b366-c6fa655957c5, name: whole, tvm_library: {stub}}}
  - {{driver: rocm, sys_root: {card}, name: amd}}
"""


def test_unusable_gpus_are_listed_with_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent finds NVML as the linker does; unusable GPUs are faulted with the remedy, the rest is served."""
    fake = fake_nvml.build(tmp_path)
    fake.play(fake_nvml.A100_MIG)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    monkeypatch.setenv("FAKE_NVML", str(fake.script))
    stub = fake_nvml.compile_library("", tmp_path / "libstub.so")
    config = CONFIG.format(stub=stub, card=put_card(tmp_path / "card", "mi300x"))

    with running_fleet(tmp_path, config) as served:
        devices: list[dict[str, Any]] = served.snapshot()["devices"]  # type: ignore[assignment]
        refused = run_fleet(
            *("--tracker", served.address, "acquire", "mig=3g.20gb", "--wait-timeout", "1", "--", "true")
        )

    by_model = {device["inventory"]["device_model"]: device for device in devices}
    assert {"NVIDIA A100-SXM4-40GB MIG 1g.5gb", "AMD Instinct MI300X"} <= set(by_model)
    states = {device["name"].removeprefix("devices/"): device["state"] for device in devices}
    assert states["whole"] == "available"
    assert states["amd"] == "faulted"
    assert "USE_ROCM" in by_model["AMD Instinct MI300X"]["reason"]
    instance = by_model["NVIDIA A100-SXM4-40GB MIG 3g.20gb"]
    assert instance["telemetry"]["temp_c"] == 41
    assert instance["inventory"]["labels"]["mig"] == "3g.20gb"
    if not Path("/proc/driver/nvidia/version").exists():
        assert "libcu" in instance["reason"]
        assert refused.returncode == 124
        assert "is faulted" in refused.stderr


def test_a_missing_gpu_is_reported_in_one_line(tmp_path: Path) -> None:
    """`--on kind=cuda` and `--on kind=rocm` start an agent that names the missing driver or GPU."""
    (tmp_path / "a.so").write_bytes(b"\x7fELF")
    for kind, hint in (("cuda", "/proc/driver/nvidia/version"), ("rocm", "/sys/class/kfd")):
        if Path(hint).exists():
            continue

        done = run_fleet("time", str(tmp_path / "a.so"), "--on", f"kind={kind}", "--args", "float32[1]")

        assert done.returncode == 2
        assert f"no {'NVIDIA driver' if kind == 'cuda' else 'AMD GPU'}" in done.stderr
        assert "Traceback" not in done.stderr
