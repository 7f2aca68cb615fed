"""Platforms that this machine can build for: its linkers, tried for every one, and its compilers for GPUs."""

from __future__ import annotations

import json
import platform
import shlex
import subprocess
import sys

from cross.compile.cuda_code import architecture_range, compilers
from cross.compile.link_check import BOARDS, LinkAttempt
from cross.compile.rocm_code import find_device_library, find_linker
from fleet.base.findings import Finding, State
from fleet.domain.tvm_versions import tvm_version
from fleet.errors import ConfigError

_LINK_CHECK_SEC = 60.0


def diagnose() -> list[Finding]:
    """Return one finding for each platform and kind of GPU. Takes some seconds."""
    return [*linkers(), *gpu_compilers()]


def linkers() -> list[Finding]:
    """Link an object of TVM's for each platform with every linker found. This machine's own platform needs one."""
    if tvm_version() is None:
        return [_finding("linkers", "not tried: TVM is not installed", advice="pip install 'tvm-fleet[tune]'")]
    done = _run([sys.executable, "-m", "cross.compile.link_check"])
    try:
        attempts = [LinkAttempt(**attempt) for attempt in json.loads(done.stdout)]
    except ValueError:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        return [_finding("linkers", f"cannot be tried: {last}", advice="see the check 'tvm runtime'")]
    return [_linkers_of(name, [attempt for attempt in attempts if attempt.platform == name]) for name in BOARDS]


def gpu_compilers() -> list[Finding]:
    """Return the compilers for GPU code."""
    return [_cuda_compilers(), _rocm_compiler()]


def _linkers_of(platform_name: str, attempts: list[LinkAttempt]) -> Finding:
    name, is_own = f"linker for {platform_name}", platform_name == platform.machine()
    seen = "; ".join(
        f"{attempt.linker} does not link: {attempt.error.splitlines()[-1]}"
        if attempt.error
        else f"{attempt.linker} links ({attempt.link_ms:.0f} ms)"
        for attempt in attempts
        if attempt.linker
    )
    if attempts and not attempts[0].error:
        return _finding(name, seen)
    advice = attempts[0].error if attempts and not attempts[0].linker else ""
    works = next((attempt.linker for attempt in attempts if not attempt.error), None)
    if works is not None:
        advice = f"the first one is used: choose {works} with $FLEET_LINKER_{platform_name.upper()}, or repair it"
    advice = advice or "install gcc, lld, or the Python package ziglang: pip install 'tvm-fleet[cross]'"
    return _finding(name, seen or "none", advice=advice, state=State.PROBLEM if is_own else State.WARNING)


def _cuda_compilers() -> Finding:
    found = compilers()
    seen = "; ".join(f"{compiler.name} for {architecture_range(compiler.architectures())}" for compiler in found)
    advice = "needed to build for NVIDIA GPUs: pip install nvidia-cuda-nvrtc, or install the CUDA toolkit"
    return _finding("compiler for cuda", seen or "neither nvcc nor NVRTC", advice="" if found else advice)


def _rocm_compiler() -> Finding:
    try:
        return _finding("compiler for rocm", f"{shlex.join(find_linker())}, {find_device_library()}")
    except ConfigError as error:
        return _finding("compiler for rocm", "incomplete", advice=f"needed to build for AMD GPUs: {error}")


def _finding(name: str, seen: str, *, advice: str = "", state: State = State.WARNING) -> Finding:
    return Finding(name=name, state=state if advice else State.OK, seen=seen, advice=advice)


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    """Run a command. A command that cannot be started or that hangs counts as failed."""
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=_LINK_CHECK_SEC, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return subprocess.CompletedProcess(command, 1, "", str(error))
