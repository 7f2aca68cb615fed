"""The cuda driver's own behaviour, on GPUs of a compiled stand-in for NVML that the real pynvml loads."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from device_agents.config import make_drivers, parse_config
from device_agents.driver import Driver, NoStrays
from device_agents.drivers.cuda.driver import NVML, CudaConfig, CudaDriver, gpus_of_entry, short_uuid
from device_agents.drivers.cuda.nvml import throttle_words
from device_agents.drivers.gpu import ForeignProcesses
from device_agents.registry import find_devices
from fleet.errors import ConfigError, DeviceError, DeviceUnreachable
from fleet.testing import eventually
from tests.contract import fake_nvml
from tests.contract.fake_nvml import A100_MIG, FakeNvml

H200_UUID = "GPU-5d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77"


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> FakeNvml:
    return fake_nvml.build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture(scope="module")
def runtime_stub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Stands for TVM's runtime for CUDA, which cannot be loaded without NVIDIA's driver."""
    return fake_nvml.compile_library("", tmp_path_factory.mktemp("stub") / "libstub.so")


@pytest.fixture
def nvml(library: FakeNvml) -> Iterator[FakeNvml]:
    with fake_nvml.playing(library):
        yield library


def impatient_driver(nvml: FakeNvml, runtime_stub: Path) -> CudaDriver:
    """A driver without cached readings that waits only briefly for NVML."""
    config = CudaConfig(uuid=H200_UUID, nvml_library=nvml.library, tvm_library=runtime_stub)
    foreign = ForeignProcesses(fresh_sec=0.0, can_tell=True)  # also where the tests run in a container
    return CudaDriver("h200", config, "lab", source=replace(NVML, limit_sec=0.2), probe_sec=0.0, foreign=foreign)


def make(nvml: FakeNvml, **settings: Any) -> list[Driver]:
    entry = {"driver": "cuda", "nvml_library": str(nvml.library), **settings}
    return make_drivers(parse_config({"devices": [entry]}), host_name="lab")


@pytest.fixture
async def h200(nvml: FakeNvml, runtime_stub: Path) -> AsyncIterator[Driver]:
    (driver,) = make(nvml, tvm_library=str(runtime_stub))
    await driver.open(NoStrays())
    yield driver
    await driver.close()


async def test_the_inventory_of_a_gpu(h200: Driver) -> None:
    """Model, architecture and limits are those of the GPU; the artifact's architecture is its host's."""
    inventory = h200.inventory()
    target = json.loads(inventory.target_json)

    assert h200.name == "devices/lab-cuda-5d5ba0d6"
    assert (inventory.device_model, inventory.memory_bytes, inventory.core_count) == ("NVIDIA H200", 150754820096, 132)
    assert (target["kind"], target["arch"], target["l2_cache_size_bytes"]) == ("cuda", "sm_90", 50 * 1024**2)
    assert (target["max_shared_memory_per_block"], target["max_threads_per_block"]) == (49152, 1024)
    assert target["host"]["kind"] == "llvm"
    assert inventory.labels["sm"] == "sm_90"
    assert inventory.labels["arch"] == os.uname().machine
    assert inventory.facts["PCI bus"] == "00000000:3b:00.0"
    assert inventory.facts["driver"] == "580.65.06, for CUDA up to 13.0"


async def test_tvm_takes_the_target(h200: Driver) -> None:
    """Code can be built for the inventory's target."""
    from cross.targets.target import make_target, parse_target

    target = make_target(parse_target(h200.inventory().target_json))

    assert target.kind.name == "cuda"
    assert target.host.kind.name == "llvm"


async def test_the_worker_sees_that_gpu_only(h200: Driver) -> None:
    """The worker gets its UUID, and no limit on address space, which CUDA cannot live with."""
    spec = h200.worker_spec()

    assert spec.environment["CUDA_VISIBLE_DEVICES"] == H200_UUID
    assert not spec.limits_address_space
    assert spec.settings["l2_bytes"] == 50 * 1024**2


async def test_mig_instances_are_devices_of_their_own(nvml: FakeNvml) -> None:
    """A GPU with MIG is not served as a whole; heat and clocks of an instance are those of its GPU."""
    nvml.play(A100_MIG)
    drivers = make(nvml)
    for driver in drivers:
        await driver.open(NoStrays())

    inventories = [driver.inventory() for driver in drivers]
    readings = [await driver.telemetry() for driver in drivers]
    for driver in drivers:
        await driver.close()

    assert [inventory.device_model for inventory in inventories] == [
        "NVIDIA A100-SXM4-40GB MIG 1g.5gb",
        "NVIDIA A100-SXM4-40GB MIG 3g.20gb",
        "NVIDIA A100-SXM4-40GB",
    ]
    assert [inventory.core_count for inventory in inventories] == [14, 42, 108]
    assert [inventory.labels.get("mig") for inventory in inventories] == ["1g.5gb", "3g.20gb", None]
    assert [reading.temp_c for reading in readings] == [41, 41, 38]
    assert len({driver.name for driver in drivers}) == 3


async def test_readings_follow_the_gpu(h200: Driver, nvml: FakeNvml) -> None:
    """Clock, heat, power and why it is slower than it could be."""
    nvml.change("0.clock", 1755)
    nvml.change("0.temp", 71)
    nvml.change("0.power", 698500)
    nvml.change("0.throttle", "0x24")

    reading = await h200.telemetry()

    assert (reading.freq_hz, reading.temp_c, reading.power_w) == (1755e6, 71, 698.5)
    assert reading.memory_available_bytes == 150123446272
    assert list(reading.throttle_reasons) == ["power-cap", "thermal"]


def test_idle_and_chosen_clocks_are_no_throttling() -> None:
    """A reason counts as throttling only if it slows a kernel down against the user's will."""
    assert throttle_words(0x1 | 0x2 | 0x100) == ()
    assert throttle_words(0xFF & ~0x3) == (
        *("power-cap", "hardware-slowdown", "sync-boost", "thermal"),
        *("thermal-hardware", "power-brake"),
    )


async def test_processes_of_others_are_counted_ours_are_not(impatient: Driver, nvml: FakeNvml) -> None:
    """Descendants of this agent are its own, at any depth."""
    child = subprocess.Popen(["sleep", "60"])  # noqa: ASYNC220 - returns at once
    try:
        nvml.change("0.pids", f"{os.getpid()},{child.pid},{os.getppid()},1")

        assert (await impatient.telemetry()).foreign_processes == 2
    finally:
        child.kill()
        child.wait()


def test_process_ids_are_omitted_in_a_container() -> None:
    """The driver's process ids are useless in another namespace, so they are left out rather than wrong."""
    assert ForeignProcesses(can_tell=False).count(lambda: [1, 2, 3]) is None


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("0.lost", 1, "GPU is lost"),
        ("0.rows_pending", 1, "waits to be remapped"),
        ("0.rows_failed", 1, "should be replaced"),
        ("0.xid", 79, "fallen off the bus"),
    ],
)
async def test_a_faulty_gpu_reports_the_remedy(
    impatient: Driver, nvml: FakeNvml, key: str, value: int, said: str
) -> None:
    """It stays listed with the remedy, takes no lease, and its readings raise no error."""
    assert (await impatient.probe()).is_healthy

    nvml.change(key, value)

    first, again = await impatient.probe(), await impatient.probe()
    assert not first.is_healthy
    assert said in first.reason
    assert not again.is_healthy
    assert (await impatient.telemetry()).read_at_sec > 0


async def test_errors_of_kernels_leave_the_gpu_healthy(impatient: Driver, nvml: FakeNvml) -> None:
    """Xid 31 is an invalid read of a kernel: the candidate's fault."""
    await impatient.probe()

    nvml.change("0.xid", 31)

    assert (await impatient.probe()).is_healthy


async def test_an_unknown_uuid_lists_those_found(nvml: FakeNvml) -> None:
    """The message names a typo, or a GPU that moved to another machine."""
    nvml.play(A100_MIG)
    (driver,) = make(nvml, uuid="GPU-deadbeef")

    with pytest.raises(DeviceError, match=r"GPU-deadbeef.*GPU-b8ea3855.*A100"):
        await driver.open(NoStrays())


@pytest.mark.parametrize(
    ("script", "said"),
    [("gpus 0\n", "lists no GPU"), ("init 9\n", "kernel module is not loaded"), ("init 18\n", "reboot after")],
)
def test_a_driver_without_gpus_is_refused(nvml: FakeNvml, script: str, said: str) -> None:
    """Each failure is reported with its remedy."""
    nvml.play(script)

    with pytest.raises(ConfigError, match=said):
        make(nvml)


@pytest.mark.slow
def test_no_driver_is_refused_with_the_remedy() -> None:
    """A machine without NVIDIA's library names the package to install, in a process that never loaded ours."""
    code = "from device_agents.config import *\nmake_drivers(parse_config({'devices': [{'driver': 'cuda'}]}))"
    if any(Path("/proc/driver/nvidia/gpus").glob("*")):
        pytest.skip("this machine has an NVIDIA driver")

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert "DeviceMissing: agent.yaml: devices[0]: there is no NVIDIA driver on this machine; install" in done.stderr


async def test_without_cudas_libraries_the_device_is_listed_as_faulted(nvml: FakeNvml, tmp_path: Path) -> None:
    """The device is visible with the package to install, and cannot be leased."""
    (driver,) = make(nvml, tvm_library=str(tmp_path / "libtvm_runtime_cuda.so"))
    await driver.open(NoStrays())

    health = await driver.probe()

    await driver.close()
    assert not health.is_healthy
    assert "libtvm_runtime_cuda.so" in health.reason
    assert "tvm_library" in health.reason


async def test_without_a_driver_no_device_is_searched(tmp_path: Path) -> None:
    """Without /proc/driver/nvidia no library is loaded and no device served."""
    assert CudaDriver.find(tmp_path) == []
    assert not [entry for entry in find_devices(tmp_path) if entry["driver"] == "cuda"]


def reading_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "read-NVML"}


async def test_a_gpu_has_one_thread_that_ends_with_it(nvml: FakeNvml, runtime_stub: Path) -> None:
    """Any number of concurrent calls share it."""
    before = reading_threads()
    (driver,) = make(nvml, tvm_library=str(runtime_stub))
    await driver.open(NoStrays())

    await asyncio.gather(*(driver.probe() for _ in range(3)), *(driver.telemetry() for _ in range(3)))

    (thread,) = reading_threads() - before
    assert thread.daemon
    await driver.close()
    await eventually(lambda: not thread.is_alive())


@pytest.fixture
async def impatient(nvml: FakeNvml, runtime_stub: Path) -> AsyncIterator[CudaDriver]:
    """A driver with a short time limit, opened. At the end NVML answers again."""
    driver = impatient_driver(nvml, runtime_stub)
    await driver.open(NoStrays())
    yield driver
    nvml.answer()
    await driver.close()


async def test_nvml_that_hangs_costs_its_device_until_it_answers(impatient: Driver, nvml: FakeNvml) -> None:
    """Health reports the time and the remedy, readings are empty, no request is repeated, and the device recovers by
    itself.
    """
    before = reading_threads()
    nvml.hang()

    async with asyncio.timeout(60):
        healths = [await impatient.probe() for _ in range(5)]
        reading = await impatient.telemetry()

    assert [health.is_healthy for health in healths] == [False] * 5
    assert len({health.reason for health in healths}) == 1
    assert "NVML has not answered since 20" in healths[0].reason
    assert "nvidia-smi -r" in healths[0].reason
    assert reading.read_at_sec > 0
    assert reading.temp_c is None
    assert reading_threads() <= before
    nvml.answer()

    async def is_well() -> bool:
        return (await impatient.probe()).is_healthy and (await impatient.telemetry()).temp_c is not None

    await eventually(is_well)


async def test_closing_does_not_wait_for_nvml_that_hangs(nvml: FakeNvml, runtime_stub: Path) -> None:
    """The agent ends in time; the thread ends when NVML returns."""
    before = reading_threads()
    driver = impatient_driver(nvml, runtime_stub)
    await driver.open(NoStrays())
    nvml.hang()
    await driver.probe()
    (thread,) = reading_threads() - before

    async with asyncio.timeout(60):
        await driver.close()

    assert thread.is_alive()
    nvml.answer()
    await eventually(lambda: not thread.is_alive())


async def test_nvml_that_hangs_at_the_start_is_a_device_that_is_missing(nvml: FakeNvml) -> None:
    """It holds up no agent, with a UUID in the entry or without; asking again leaves no second thread behind."""
    config, source = CudaConfig(nvml_library=nvml.library), replace(NVML, start_sec=0.2)
    named = CudaDriver("lab-cuda-5d5ba0d6", replace(config, uuid=H200_UUID), "lab", source=source)
    before = reading_threads()
    nvml.hang()

    for _ in range(3):
        with pytest.raises(ConfigError, match=r"devices\[0\]: NVML has not answered since"):
            gpus_of_entry(config, "devices[0]", source)
        with pytest.raises(DeviceUnreachable, match="NVML has not answered since"):
            await named.open(NoStrays())

    assert len(reading_threads() - before) == 2
    nvml.answer()
    await eventually(lambda: len(reading_threads() - before) == 1)

    async def opens() -> bool:
        with contextlib.suppress(DeviceUnreachable):  # while the hanging call returns
            await named.open(NoStrays())
            return True
        return False

    await eventually(opens)
    assert [driver.name for driver in make(nvml)] == [named.name]
    await named.close()


def test_short_names() -> None:
    """GPUs and both generations of MIG's names get short ones."""
    assert short_uuid(H200_UUID) == "5d5ba0d6"
    assert short_uuid("MIG-c6d4f1ef-42e4-5de3-91c7-45d71c87eb3f") == "c6d4f1ef"
    assert short_uuid("MIG-GPU-b8ea3855-276c-c9cb/7/0") == "b8ea3855"
