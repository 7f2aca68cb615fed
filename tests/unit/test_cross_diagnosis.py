"""Targets that a machine can build for, as `fleet doctor` reports them."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import pytest

from cross.compile import diagnosis
from fleet.base.findings import State


@pytest.mark.slow
def test_no_linker_is_a_problem(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A missing linker for this machine's own platform is a problem, and the advice names packages."""
    hide_ziglang = tmp_path / "sitecustomize.py"
    hide_ziglang.write_text("import sys\nsys.modules['ziglang'] = None\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))

    found = {finding.name: finding for finding in diagnosis.linkers()}

    own = found[f"linker for {platform.machine()}"]
    assert own.state is State.PROBLEM
    assert "ld.lld" in own.advice
    assert "ziglang" in own.advice
    assert found["linker for android"].state is State.WARNING


@pytest.mark.slow
def test_a_broken_linker_is_detected_by_a_trial_link(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A linker is tried, not only found; the advice names a working alternative."""
    broken = tmp_path / f"{platform.machine()}-linux-gnu-gcc"
    broken.write_text("#!/bin/sh\necho 'no libc here' >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")

    found = {finding.name: finding for finding in diagnosis.linkers()}

    own = found[f"linker for {platform.machine()}"]
    assert own.state is State.PROBLEM
    assert "no libc here" in own.seen
    assert "gcc links" in own.seen
    assert "choose gcc" in own.advice
    assert found["linker for armv7l"].state is State.OK


def test_missing_gpu_packages_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without compiler and device libraries for GPUs, the doctor says which packages bring them."""
    monkeypatch.setattr("cross.compile.diagnosis.compilers", lambda: ())
    monkeypatch.setenv("HIP_DEVICE_LIB_PATH", str(tmp_path))

    found = {finding.name: finding for finding in diagnosis.gpu_compilers()}

    assert "nvidia-cuda-nvrtc" in found["compiler for cuda"].advice
    assert "rocm-device-libs" in found["compiler for rocm"].advice
