"""Checks of `fleet doctor`. Each check returns findings, even if it fails unexpectedly."""

from __future__ import annotations

import asyncio
import os
import platform
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from fleet.base.config import TRACKER_PORT, cache_dir, config_file, data_dir
from fleet.base.findings import Finding, State
from fleet.base.settings import KEYS, look_up
from fleet.base.version import installed_version
from fleet.client.aio import connect
from fleet.domain import tvm_versions
from fleet.errors import ConfigError, FleetError

_PYTHON = (3, 11)
_LITTLE_DISK_BYTES = 2_000_000_000
_NO_DISK_BYTES = 200_000_000
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
    ("onnx",): "reading models: pip install 'tvm-fleet[tune]'",
    ("xgboost", "xgboost-cpu"): "the cost model: pip install 'tvm-fleet[tune]'",
    ("onnxruntime",): "comparing with ONNX Runtime: pip install 'tvm-fleet[compare]'",
}
"""Possible names of a module's distribution, the module's own name first."""


def run_checks(
    tracker_address: str | None, narrate: Callable[[str], None] = lambda _: None, *, is_quick: bool = False
) -> list[Finding]:
    """Run all checks, or only the quick ones.

    Args:
        narrate: called with the name of each slow step.
    """
    quick: list[Callable[[], list[Finding]]] = [
        configuration,
        python,
        tvm_versions.diagnose,
        packages,
        drivers,
        jail,
        directories,
        multicast,
        load,
    ]
    findings = [finding for check in quick for finding in check()]
    slow: dict[str, Callable[[], list[Finding]]] = {
        "loading TVM's runtime": tvm_runtime,
        "trying linkers and compilers": building,
        "looking for OpenCL devices": opencl,
        "connecting to the tracker": lambda: tracker(tracker_address),
    }
    for step, check in () if is_quick else slow.items():
        narrate(step)
        findings += check()
    return findings


def python() -> list[Finding]:
    """Check the interpreter."""
    seen = f"{platform.python_version()} at {sys.executable}"
    if sys.version_info[:2] < _PYTHON:
        return [Finding(name="python", state=State.PROBLEM, seen=seen, advice="install Python 3.11 or newer")]
    return [Finding(name="python", state=State.OK, seen=seen)]


def tvm_runtime() -> list[Finding]:
    """Load TVM's runtime in a child process, because it may crash."""
    if tvm_versions.tvm_version() is None:
        return []
    done = _run([sys.executable, "-c", _LOAD_RUNTIME])
    if done.returncode == 0:
        return [Finding(name="tvm runtime", state=State.OK, seen=done.stdout.strip())]
    how = f"signal {-done.returncode}" if done.returncode < 0 else f"exit code {done.returncode}"
    last = (done.stderr.strip().splitlines() or ["no message"])[-1]
    advice = "reinstall it: pip install --force-reinstall 'tvm-fleet[agent]'"
    return [Finding(name="tvm runtime", state=State.PROBLEM, seen=f"loading ended by {how}: {last}", advice=advice)]


def packages() -> list[Finding]:
    """Check for packages that only some commands need."""
    findings = []
    for names, purpose in _OPTIONAL_PACKAGES.items():
        seen = next((f"{found} ({name})" for name in names if (found := installed_version(name))), None)
        if seen is not None:
            findings.append(Finding(name=names[0], state=State.OK, seen=seen))
        else:
            advice = f"needed for {purpose}"
            findings.append(Finding(name=names[0], state=State.WARNING, seen="not installed", advice=advice))
    return findings


def building() -> list[Finding]:
    """Check the targets that this machine can build for."""
    from cross.compile.diagnosis import diagnose

    return diagnose()


def opencl() -> list[Finding]:
    """Check for OpenCL devices, and for a runtime that is installed or can be compiled."""
    from device_agents.registry import diagnose_driver

    return diagnose_driver("opencl")


def drivers() -> list[Finding]:
    """Check the drivers, and the hardware that the cpu driver finds."""
    from device_agents.registry import diagnose, diagnose_driver

    return [*diagnose(), *diagnose_driver("cpu")]


def jail() -> list[Finding]:
    """Check the jail of candidates on this machine."""
    from device_agents.jail.diagnosis import diagnose

    return diagnose()


def configuration() -> list[Finding]:
    """Check that this account's settings can be read."""
    try:
        found = [look_up(key) for key in KEYS]
    except ConfigError as error:
        advice = f"correct it; {config_file()} may also be removed"
        return [Finding(name="configuration", state=State.PROBLEM, seen=str(error), advice=advice)]
    asked = [f"{each.key} from {each.where}" for each in found if each.asked is not None]
    return [Finding(name="configuration", state=State.OK, seen=", ".join(asked) or "defaults")]


def tracker(address: str | None, *, timeout_sec: float = 1.0) -> list[Finding]:
    """Check whether a tracker answers; if none does, whether its port is free."""
    try:
        address = look_up("tracker", address).value
        seen = asyncio.run(_ask_tracker(address, timeout_sec))
    except FleetError as error:
        return [_no_tracker(address or "", error)]
    return [Finding(name="tracker", state=State.OK, seen=seen)]


def directories() -> list[Finding]:
    """Check that files can be written and that there is space for them."""
    return [_directory("data directory", data_dir()), _directory("cache directory", cache_dir())]


def multicast() -> list[Finding]:
    """Check that trackers can be discovered by mDNS."""
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
        advice = "times measured on a busy machine are noisy; stop other programs"
        return [Finding(name="load", state=State.WARNING, seen=seen, advice=advice)]
    return [Finding(name="load", state=State.OK, seen=seen)]


async def _ask_tracker(address: str, timeout_sec: float) -> str:
    async with connect(address, connect_timeout_sec=timeout_sec) as client:
        snapshot = await client.snapshot()
    return f"version {snapshot.tracker_version} answers at {address} with {len(snapshot.devices)} devices"


def _no_tracker(address: str, error: FleetError) -> Finding:
    if isinstance(error, ConfigError):
        return Finding(name="tracker", state=State.PROBLEM, seen=str(error), advice="see: fleet config show")
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


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=_PROCESS_TIMEOUT_SEC, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return subprocess.CompletedProcess(command, 1, "", str(error))
