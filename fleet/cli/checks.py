"""What `fleet doctor` looks at: each check is a function that returns findings, whatever it runs into."""

from __future__ import annotations

import asyncio
import enum
import json
import os
import platform
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from cross.cuda_code import architecture_range
from cross.link_check import BOARDS, LinkTrial
from fleet.client.aio import connect, default_address
from fleet.config import TRACKER_PORT, cache_dir, data_dir
from fleet.errors import ConfigError, FleetError

_PYTHON = (3, 11)
_LITTLE_DISK_BYTES = 2_000_000_000
_NO_DISK_BYTES = 200_000_000
_TRACKER_TIMEOUT_SEC = 1.0
_PROCESS_TIMEOUT_SEC = 60.0
_MULTICAST_GROUP = "224.0.0.251"

_LOAD_RUNTIME = """
import ctypes, importlib.util, pathlib
import tvm_ffi
library = pathlib.Path(importlib.util.find_spec("tvm").submodule_search_locations[0]) / "lib"
for name in ("libtvm_runtime.so", "libtvm_runtime_extra.so"):
    ctypes.CDLL(str(library / name), ctypes.RTLD_GLOBAL)
print("loaded from", library)
"""

_OPTIONAL_PACKAGES = {
    "onnx": "reading models: pip install 'tvm-fleet[tune]'",
    "xgboost": "the cost model: pip install 'tvm-fleet[tune]'",
    "onnxruntime": "comparing with ONNX Runtime: pip install 'tvm-fleet[compare]'",
}


class State(enum.StrEnum):
    """How a check ended."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What one check saw."""

    name: str
    state: State
    seen: str
    advice: str = ""
    """What to do about it."""


def run_checks(tracker_address: str | None, *, is_quick: bool = False) -> list[Finding]:
    """Run all checks, or only those that take a moment."""
    quick: list[Callable[[], list[Finding]]] = [python, tvm_versions, packages, drivers, directories, multicast, load]
    slow: list[Callable[[], list[Finding]]] = [
        *(tvm_runtime, linkers, gpu_compilers, opencl),
        lambda: tracker(tracker_address),
    ]
    return [finding for check in (quick if is_quick else quick + slow) for finding in check()]


def python() -> list[Finding]:
    """Check the interpreter."""
    seen = f"{platform.python_version()} at {sys.executable}"
    if sys.version_info[:2] < _PYTHON:
        return [Finding(name="python", state=State.PROBLEM, seen=seen, advice="install Python 3.11 or newer")]
    return [Finding(name="python", state=State.OK, seen=seen)]


def tvm_versions() -> list[Finding]:
    """Check that TVM and tvm-ffi are a pair that does not crash."""
    from fleet import tvm_versions as versions

    tvm, ffi = versions.tvm_version(), versions.tvm_ffi_version()
    if tvm is None and ffi is None:
        advice = "needed to tune and to serve devices: pip install 'tvm-fleet[tune]'"
        return [Finding(name="tvm", state=State.WARNING, seen="not installed", advice=advice)]
    try:
        versions.check_versions()
    except ConfigError as error:
        return [Finding(name="tvm", state=State.PROBLEM, seen=f"apache-tvm {tvm}, tvm-ffi {ffi}", advice=str(error))]
    return [Finding(name="tvm", state=State.OK, seen=f"apache-tvm {tvm}, tvm-ffi {ffi}")]


def tvm_runtime() -> list[Finding]:
    """Load TVM's runtime in a process of its own, which may crash."""
    from fleet import tvm_versions as versions

    if versions.tvm_version() is None:
        return []
    done = _run([sys.executable, "-c", _LOAD_RUNTIME])
    if done.returncode == 0:
        return [Finding(name="tvm runtime", state=State.OK, seen=done.stdout.strip())]
    how = f"signal {-done.returncode}" if done.returncode < 0 else f"exit code {done.returncode}"
    last = (done.stderr.strip().splitlines() or ["no message"])[-1]
    advice = "reinstall it: pip install --force-reinstall 'tvm-fleet[agent]'"
    return [Finding(name="tvm runtime", state=State.PROBLEM, seen=f"loading ended by {how}: {last}", advice=advice)]


def packages() -> list[Finding]:
    """Check for packages that only parts need."""
    findings = []
    for name, purpose in _OPTIONAL_PACKAGES.items():
        try:
            findings.append(Finding(name=name, state=State.OK, seen=metadata.version(name)))
        except metadata.PackageNotFoundError:
            advice = f"needed for {purpose}"
            findings.append(Finding(name=name, state=State.WARNING, seen="not installed", advice=advice))
    return findings


def linkers() -> list[Finding]:
    """Link an object of TVM's for each platform with every linker found. This machine's own platform needs one."""
    from fleet import tvm_versions as versions

    if versions.tvm_version() is None:
        return [_finding("linkers", "not tried: TVM is not installed", advice="pip install 'tvm-fleet[tune]'")]
    done = _run([sys.executable, "-m", "cross.link_check"])
    try:
        trials = [LinkTrial(**trial) for trial in json.loads(done.stdout)]
    except ValueError:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        return [_finding("linkers", f"cannot be tried: {last}", advice="see the check 'tvm runtime'")]
    return [_linkers_of(name, [trial for trial in trials if trial.platform == name]) for name in BOARDS]


def gpu_compilers() -> list[Finding]:
    """Check what code for GPUs can be built with."""
    return [_cuda_compilers(), _rocm_compiler()]


def opencl() -> list[Finding]:
    """Check which OpenCL devices there are, and that a runtime for them is there or compiles."""
    from device_agents.opencl_build import ensure_plugin
    from device_agents.opencl_devices import find_opencl_devices
    from device_agents.opencl_loader import upstream_library

    try:
        found = find_opencl_devices()
    except FleetError as error:
        return [_finding("opencl", f"no devices: {error}")]
    seen = ", ".join(f"{device.type} {device.name}" for device in found)
    try:
        runtime = upstream_library() or ensure_plugin()
    except FleetError as error:
        return [_finding("opencl", f"{seen}; no runtime for them", advice=str(error))]
    return [_finding("opencl", f"{seen}, run by {runtime.name}")]


def drivers() -> list[Finding]:
    """Check which drivers there are and what hardware the cpu driver finds."""
    from device_agents.registry import known_drivers

    names = Finding(name="drivers", state=State.OK, seen=", ".join(known_drivers()))
    try:
        return [names, asyncio.run(_cpu_device())]
    except (FleetError, OSError) as error:
        advice = "describe the device in an agent.yaml and serve it with: fleet agent serve --config agent.yaml"
        return [names, Finding(name="device cpu", state=State.PROBLEM, seen=str(error), advice=advice)]


def tracker(address: str | None) -> list[Finding]:
    """Check whether a tracker answers, and else whether its port is free."""
    address = address or default_address()
    try:
        seen = asyncio.run(_ask_tracker(address))
    except FleetError as error:
        return [_no_tracker(address, error)]
    return [Finding(name="tracker", state=State.OK, seen=seen)]


def directories() -> list[Finding]:
    """Check that files can be written and that there is room for them."""
    return [_directory("data directory", data_dir()), _directory("cache directory", cache_dir())]


def multicast() -> list[Finding]:
    """Check that trackers can be found without an address."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        membership = socket.inet_aton(_MULTICAST_GROUP) + socket.inet_aton("0.0.0.0")
        try:
            probe.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, membership)
        except OSError as error:
            advice = "discovery by zeroconf will not work here; name the tracker with --tracker HOST:PORT"
            seen = f"no multicast: {error.strerror}"
            return [Finding(name="discovery", state=State.WARNING, seen=seen, advice=advice)]
    return [Finding(name="discovery", state=State.OK, seen="multicast works")]


def load() -> list[Finding]:
    """Check that the machine is quiet enough to measure on."""
    one_minute, cores = os.getloadavg()[0], os.cpu_count() or 1
    seen = f"load {one_minute:.1f} on {cores} cores"
    if one_minute > cores / 2:
        advice = "times measured on a busy machine are noisy; stop what else runs"
        return [Finding(name="load", state=State.WARNING, seen=seen, advice=advice)]
    return [Finding(name="load", state=State.OK, seen=seen)]


class _NoStrays:
    """The doctor starts no workers, so there is nothing to sweep."""

    async def sweep(self) -> None:
        return


async def _cpu_device() -> Finding:
    from device_agents.registry import load_driver

    driver = load_driver("cpu", where="doctor").from_config({}, where="doctor", host_name=socket.gethostname())[0]
    await driver.open(_NoStrays())
    try:
        inventory = driver.inventory()
    finally:
        await driver.close()
    memory_gb = inventory.memory_bytes / 1e9
    seen = f"{inventory.device_model}, {inventory.core_count} cores, {memory_gb:.1f} GB, {inventory.target_json}"
    return Finding(name="device cpu", state=State.OK, seen=seen)


async def _ask_tracker(address: str) -> str:
    async with connect(address, connect_timeout_sec=_TRACKER_TIMEOUT_SEC) as client:
        snapshot = await client.snapshot()
    return f"version {snapshot.tracker_version} answers at {address} with {len(snapshot.devices)} devices"


def _no_tracker(address: str, error: FleetError) -> Finding:
    if isinstance(error, ConfigError):
        return Finding(
            name="tracker", state=State.PROBLEM, seen=str(error), advice="correct $FLEET_TRACKER or --tracker"
        )
    if address != f"127.0.0.1:{TRACKER_PORT}":
        advice = "check the address, or start one there with: fleet tracker serve"
        return Finding(name="tracker", state=State.PROBLEM, seen=f"none answers at {address}", advice=advice)
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", TRACKER_PORT))
        except OSError as refused:
            seen = f"port {TRACKER_PORT} is taken by something that is no tracker ({refused.strerror})"
            return Finding(name="tracker", state=State.WARNING, seen=seen, advice="use another: fleet up --port 9291")
    return Finding(name="tracker", state=State.OK, seen=f"none runs, port {TRACKER_PORT} is free for: fleet up")


def _directory(name: str, path: Path) -> Finding:
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path) as file:
            file.write(b"fleet")
        free_bytes = shutil.disk_usage(path).free
    except OSError as error:
        advice = "make it writable, or set FLEET_DATA_DIR and FLEET_CACHE_DIR"
        return Finding(name=name, state=State.PROBLEM, seen=f"{path}: {error.strerror}", advice=advice)
    seen = f"{path}, {free_bytes / 1e9:.1f} GB free"
    if free_bytes < _LITTLE_DISK_BYTES:
        state = State.PROBLEM if free_bytes < _NO_DISK_BYTES else State.WARNING
        return Finding(name=name, state=state, seen=seen, advice="make room")
    return Finding(name=name, state=State.OK, seen=seen)


def _finding(name: str, seen: str, *, advice: str = "", state: State = State.WARNING) -> Finding:
    return Finding(name=name, state=state if advice else State.OK, seen=seen, advice=advice)


def _linkers_of(platform_name: str, trials: list[LinkTrial]) -> Finding:
    name, is_own = f"linker for {platform_name}", platform_name == platform.machine()
    seen = "; ".join(
        f"{trial.linker} does not link: {trial.error.splitlines()[-1]}"
        if trial.error
        else f"{trial.linker} links ({trial.link_ms:.0f} ms)"
        for trial in trials
        if trial.linker
    )
    if trials and not trials[0].error:
        return _finding(name, seen)
    advice = trials[0].error if trials and not trials[0].linker else ""
    works = next((trial.linker for trial in trials if not trial.error), None)
    if works is not None:
        advice = f"the first one is used: choose {works} with $FLEET_LINKER_{platform_name.upper()}, or repair it"
    advice = advice or "install gcc, lld, or the Python package ziglang: pip install 'tvm-fleet[cross]'"
    return _finding(name, seen or "none", advice=advice, state=State.PROBLEM if is_own else State.WARNING)


def _cuda_compilers() -> Finding:
    from cross.cuda_code import compilers

    found = compilers()
    seen = "; ".join(f"{compiler.name} for {architecture_range(compiler.architectures())}" for compiler in found)
    advice = "needed to build for NVIDIA GPUs: pip install nvidia-cuda-nvrtc, or install the CUDA toolkit"
    return _finding("compiler for cuda", seen or "neither nvcc nor NVRTC", advice="" if found else advice)


def _rocm_compiler() -> Finding:
    from cross.rocm_code import find_device_library, find_linker

    try:
        return _finding("compiler for rocm", f"{shlex.join(find_linker())}, {find_device_library()}")
    except ConfigError as error:
        return _finding("compiler for rocm", "incomplete", advice=f"needed to build for AMD GPUs: {error}")


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=_PROCESS_TIMEOUT_SEC, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return subprocess.CompletedProcess(command, 1, "", str(error))
