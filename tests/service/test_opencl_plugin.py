"""The plug-in as a library: compiled once, refused by another TVM, found by stock TVM; and the process that lists
devices.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from device_agents.driver import NoStrays
from device_agents.drivers.opencl import driver as opencl
from device_agents.drivers.opencl.devices import OpenClDevice, find_opencl_devices
from device_agents.runtimes.opencl.build import built_for, ensure_plugin, plugin_path
from device_agents.runtimes.opencl.loader import load_runtime
from fleet.errors import BuildError, ConfigError, DeviceError
from fleet.testing import eventually, eventually_sync
from tests.service.opencl_presence import require_opencl

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

_STOCK = """
import numpy as np
import tvm
from tvm import te

size = 32
left, right = (te.placeholder((size, size), "float32", name) for name in "AB")
total = te.compute((size, size), lambda i, j: left[i, j] + right[i, j], "C")
target = tvm.target.Target({"kind": "opencl", "host": {"kind": "llvm"}})
device = tvm.device("opencl", 0)
assert device.exist
with target:
    from tvm.s_tir import dlight
    mod = tvm.IRModule({"main": te.create_prim_func([left, right, total])})
    mod = dlight.ApplyDefaultSchedule(dlight.gpu.Fallback())(mod)
built = tvm.compile(mod, target=target)
a, b = np.random.default_rng(0).standard_normal((2, size, size)).astype("float32")
arrays = [tvm.runtime.tensor(value, device) for value in (a, b, np.zeros_like(a))]
built["main"](*arrays)
np.testing.assert_allclose(a + b, arrays[2].numpy(), rtol=1e-6)
assert built.mod.time_evaluator("main", device, number=3)(*arrays).mean > 0
built.export_library(LIBRARY)
again = tvm.runtime.load_module(LIBRARY)
arrays[2] = tvm.runtime.tensor(np.zeros_like(a), device)
again["main"](*arrays)
np.testing.assert_allclose(a + b, arrays[2].numpy(), rtol=1e-6)
print(device.device_name)
"""

_SLOW_COMPILER = """#!/bin/sh
while [ "$1" != -o ]; do shift; done
cat > "$2"
sleep 1
echo compiled >> "$2"
"""


@pytest.fixture(autouse=True)
def packages() -> None:
    require_opencl()


@pytest.fixture(scope="module")
def plugin() -> Path:
    return ensure_plugin()


def run_python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=200, env={**os.environ, **environment}
    )


def test_stock_tvm_runs_opencl(plugin: Path, tmp_path: Path) -> None:
    """`import tvm` finds the plug-in by its entry point: it compiles, runs, times, exports, loads without our help."""
    code = f"LIBRARY = {str(tmp_path / 'sum.so')!r}\n{_STOCK}"

    done = run_python(code)

    assert done.returncode == 0, done.stderr
    assert "pthread" in done.stdout
    assert "No timer implementation" not in done.stderr


def test_stock_tvm_compiles_the_plugin_at_first_use(tmp_path: Path) -> None:
    """Importing does not wait for a compiler; the first use of a device does, once for all concurrent processes."""
    cache = {"FLEET_CACHE_DIR": str(tmp_path)}

    imported = run_python("import tvm; import os; print(os.listdir(os.environ['FLEET_CACHE_DIR']))", **cache)
    code = "import tvm; assert tvm.device('opencl', 0).exist and not tvm.device('opencl', 99).exist"
    with ThreadPoolExecutor(2) as both:
        done = list(both.map(lambda _: run_python(code, **cache), range(2)))

    assert imported.stdout.strip() == "[]", imported.stderr
    assert [0, 0] == [process.returncode for process in done], done[0].stderr + done[1].stderr
    assert [plugin_path(tmp_path / "opencl")] == list((tmp_path / "opencl").glob("[!.]*"))


def test_a_builder_that_is_killed_leaves_the_work_to_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After kill -9 of one builder, a waiting one compiles, and no partial file stays.

    A slow compiler that copies its input stands in: only the builders matter here.
    """
    folder, tools = tmp_path / "opencl", tmp_path / "bin"
    tools.mkdir()
    compiler = tools / "g++"
    compiler.write_text(_SLOW_COMPILER)
    compiler.chmod(0o755)
    monkeypatch.setenv("PATH", str(tools), prepend=os.pathsep)
    code = (
        "import pathlib, sys; from device_agents.runtimes.opencl.build import ensure_plugin; "
        "ensure_plugin(pathlib.Path(sys.argv[1]))"
    )
    command = [sys.executable, "-c", code, str(folder)]
    with subprocess.Popen(command) as first:
        eventually_sync(lambda: list(folder.glob(".build-*/*.so")) != [])
        with subprocess.Popen(command) as second:
            first.kill()
            assert second.wait(timeout=100) == 0

    made = plugin_path(folder)
    assert sorted(path.name for path in folder.iterdir()) == [".lock", made.name]
    assert made.read_text().endswith("compiled\n")


@pytest.mark.skipif(os.geteuid() != 0, reason="a small file system is mounted for it")
def test_a_full_disk_is_reported(tmp_path: Path) -> None:
    """The message names the folder and the variable that selects another one."""
    folder = tmp_path / "small"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "nr_inodes=2", "tmpfs", folder], check=False).returncode:
        pytest.skip("mounting is not allowed here")
    try:
        with pytest.raises(ConfigError, match=r"small: No space left on device.*FLEET_CACHE_DIR"):
            ensure_plugin(folder)
    finally:
        subprocess.run(["umount", folder], check=True)


def test_a_plugin_for_another_tvm_is_refused(tmp_path: Path) -> None:
    """It is refused before its code runs: classes of another release have another layout."""
    source, library = tmp_path / "other.c", tmp_path / "libother.so"
    source.write_text(
        'const char* fleet_opencl_built_for() { return "apache-tvm 0.1.0, apache-tvm-ffi 0.1.0"; }\n'
        "int fleet_opencl_install() { __builtin_trap(); }\n"
    )
    subprocess.run(["gcc", "-shared", "-fPIC", source, "-o", library], check=True)

    with pytest.raises(ConfigError, match=r"built for apache-tvm 0\.1\.0.*remove it") as refused:
        load_runtime(library)

    assert built_for() in str(refused.value)


def test_missing_and_failing_compilers_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing compiler is reported with its package, a failing one with its output."""
    tools = tmp_path / "bin"
    tools.mkdir()
    monkeypatch.setenv("PATH", str(tools))
    with pytest.raises(ConfigError, match=r"apt install g\+\+"):
        ensure_plugin(tmp_path)

    for said, expected in (
        ("fatal error: CL/cl.h: No such file", (ConfigError, "apt install opencl-c-headers")),
        ("cannot find -l:libOpenCL.so.1", (ConfigError, "apt install ocl-icd-libopencl1")),
        ("module.cc:1: error: so it is", (BuildError, "so it is")),
    ):
        compiler = tools / "g++"
        compiler.write_text(f"#!/bin/sh\necho '{said}' >&2\nexit 1\n")
        compiler.chmod(0o755)
        with pytest.raises(expected[0], match=expected[1]):
            ensure_plugin(tmp_path)
    assert list((tmp_path).glob("*.so")) == []


def test_missing_drivers_and_loaders_have_different_errors(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A missing driver and a missing loader are reported with their packages; a crashing driver ends only the child
    process.
    """
    monkeypatch.setenv("OCL_ICD_VENDORS", str(tmp_path))
    with pytest.raises(ConfigError, match="pocl-opencl-icd"):
        find_opencl_devices()

    crash = (sys.executable, "-c", "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    with pytest.raises(DeviceError, match="an OpenCL driver fails"):
        find_opencl_devices(crash)
    other = "import device_agents.drivers.opencl.devices as d; d.LOADER = 'libNoSuchOpenCL.so'; d.main()"
    with pytest.raises(ConfigError, match="ocl-icd-libopencl1"):
        find_opencl_devices((sys.executable, "-c", other))


def test_driver_output_on_stdout_is_ignored() -> None:
    """Some greet on stdout, in whatever encoding, also at the end of their process."""
    chatty = (
        "import atexit, os, device_agents.drivers.opencl.devices as d\n"
        "d.LOADER = 'libNoSuchOpenCL.so'\n"
        "say, find = lambda: os.write(1, b'driver 1.0 \\xa9\\n'), d.list_devices\n"
        "atexit.register(say)\n"
        "d.list_devices = lambda: say() and find()\n"
        "d.main()"
    )
    with pytest.raises(ConfigError, match="ocl-icd-libopencl1"):
        find_opencl_devices((sys.executable, "-c", chatty))


async def test_a_hanging_driver_does_not_block_the_agent() -> None:
    """One hanging query starts no second one; the agent goes on, and the device recovers once the driver answers."""
    gpu = replace(find_opencl_devices()[0], type="gpu")
    answering, looks = threading.Event(), []

    def hang() -> list[OpenClDevice]:
        looks.append("begun")
        answering.wait(100)
        return [gpu]

    async def is_well() -> bool:
        return (await driver.probe()).is_healthy

    driver = opencl.OpenClDriver(
        "gpu", gpu, "here", source=replace(opencl.DRIVERS, limit_sec=0.05), check_sec=0.0, list_devices=hang
    )
    await driver.open(NoStrays())
    try:
        async with asyncio.timeout(60):
            hung = [await driver.probe() for _ in range(3)]
            looks_while_hung = list(looks)
            answering.set()
            await eventually(is_well)
    finally:
        answering.set()
        await driver.close()

    assert [health.is_healthy for health in hung] == [False, False, False]
    assert "OpenCL driver has not answered" in hung[0].reason
    assert looks_while_hung == ["begun"]


async def test_a_device_that_is_gone_is_shown_as_such() -> None:
    """A GPU is checked now and then; the reason names the remedy, and one that returns is healthy again."""
    gpu = replace(find_opencl_devices()[0], type="gpu")
    listed: list[OpenClDevice] = []
    driver = opencl.OpenClDriver("gpu", gpu, "here", check_sec=0.0, list_devices=lambda: listed)
    await driver.open(NoStrays())

    gone = await driver.probe()
    listed.append(gpu)
    back = await driver.probe()
    await driver.close()

    assert not gone.is_healthy
    assert "clinfo -l" in gone.reason
    assert back.is_healthy


def test_both_sides_list_the_same_devices_in_the_same_order(plugin: Path) -> None:
    """An index means the same device to the agent, which lists them, and to the worker, which opens one."""
    code = (
        "import json, tvm\n"
        "names = []\n"
        "while tvm.device('opencl', len(names)).exist:\n"
        "    names.append(tvm.device('opencl', len(names)).device_name)\n"
        "print(json.dumps(names))"
    )
    listed = run_python(
        "import json, device_agents.drivers.opencl.devices as listing\n"
        "print(json.dumps([device.name for device in listing.list_devices()]))",
        POCL_DEVICES="pthread basic",
    )

    opened = run_python(code, POCL_DEVICES="pthread basic")

    assert opened.stdout.strip(), opened.stderr
    assert listed.stdout == opened.stdout
    assert len(json.loads(opened.stdout)) == 2


_HAND_MADE = """
import struct, tvm, tvm_ffi

def text(value):
    return struct.pack("<Q", len(value)) + value.encode()

def module(code, launch_tag="blockIdx.x"):
    handle = struct.pack("<QBBH", 1, 3, 64, 1)
    kernel = text("main_kernel") + text("main_kernel") + handle + struct.pack("<Q", 1) + text(launch_tag)
    content = text("cl") + struct.pack("<Q", 1) + kernel + struct.pack("<Q", 0)
    return content + text("// Function: main_kernel\\n" + code)

def load(content):
    return tvm_ffi.get_global_func("ffi.Module.load_from_bytes.opencl")(content)
"""


@pytest.mark.parametrize(
    ("attempt", "complaint"),
    [
        ("load(module('kernel void main_kernel(read_only image2d_t a) {}'))['main_kernel']", "uses images (image2d_t)"),
        ("load(module('kernel void main_kernel(global float* a) {}')[:-9])", "the OpenCL module is damaged at byte"),
        ("load(module('', 'clusterCtaIdx.x'))['main_kernel']", "cannot launch by clusterCtaIdx.x"),
        (
            "tvm.runtime.empty((4, 4), 'float32', tvm.device('opencl', 0), 'global.texture')",
            "no images (textures): memory of scope global.texture",
        ),
        ("tvm.runtime.empty((4,), 'float32', tvm.device('opencl', 7))", "there is no OpenCL device 7; 1 found"),
    ],
)
def test_unsupported_features_are_errors_with_a_message(plugin: Path, attempt: str, complaint: str) -> None:
    """Missing images, clusters and devices, and damaged modules, are errors with a message, never a crash."""
    done = run_python(f"{_HAND_MADE}\n{attempt}")

    assert done.returncode == 1, done.stderr
    assert complaint in done.stderr


def test_artifacts_are_the_same_with_and_without_it(plugin: Path, tmp_path: Path) -> None:
    """A machine without OpenCL builds the same bytes, so digests are the same everywhere."""
    code = (
        "from fleet.building.build_candidate import BuildTask, build_candidate\n"
        "from fleet.workloads.programs import matmul\n"
        "import tvm_ffi\n"
        "from cross.targets.target import parse_target\n"
        'target = parse_target(\'{"kind": "opencl", "host": {"kind": "llvm"}}\')\n'
        f"task = BuildTask(mod_json=matmul(32).mod_json, target=target, trace_json=None, out_dir={str(tmp_path)!r})\n"
        "built = build_candidate(task)\n"
        "print(tvm_ffi.get_global_func('ffi.Module.create.opencl', allow_missing=True) is not None)\n"
        "print(built.artifact.digest)\n"
    )

    with_it = run_python(code)
    without_it = run_python(code, TVM_DEVICE_BACKEND_AUTOLOAD="0")

    assert with_it.stdout.startswith("True\nsha256:"), with_it.stderr
    assert with_it.stdout.replace("True", "False") == without_it.stdout
