"""The rocm driver's own behaviour, on trees of files transcribed from real cards."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import struct
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from device_agents.config import make_drivers, parse_config
from device_agents.driver import Driver, NoStrays
from device_agents.drivers.gpu import ForeignProcesses
from device_agents.drivers.rocm.driver import AMDGPU, RocmConfig, RocmDriver
from device_agents.drivers.rocm.sysfs import current_dpm_hz, gfx_name, throttle_words
from fleet.errors import ConfigError, DeviceError
from fleet.testing import eventually
from tests.contract.amd_cards import put_card
from tests.contract.fake_nvml import compile_library


@pytest.fixture(scope="module")
def runtime_stub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Stands for TVM's runtime for ROCm, which TVM's wheel does not have."""
    return compile_library("", tmp_path_factory.mktemp("stub") / "libstub.so")


def make(root: Path, **settings: Any) -> list[Driver]:
    entry = {"driver": "rocm", "sys_root": str(root), **settings}
    return make_drivers(parse_config({"devices": [entry]}), host_name="lab")


@pytest.fixture
async def mi210(tmp_path: Path, runtime_stub: Path) -> AsyncIterator[Driver]:
    (driver,) = make(put_card(tmp_path, "mi210"), tvm_library=str(runtime_stub))
    await driver.open(NoStrays())
    yield driver
    await driver.close()


@pytest.mark.parametrize(
    ("card", "model", "gfx", "units", "wave", "memory", "bus", "temp", "freq", "power"),
    [
        ("mi210", "AMD INSTINCT MI210", "gfx90a", 104, 64, 68702699520, "0000:63:00.0", 43, 800e6, 41),
        ("mi300x", "AMD Instinct MI300X", "gfx942", 304, 64, 206141652992, "0000:47:00.0", 39, 132e6, 142),
        ("rx7900xtx", "AMD Radeon RX 7900 XTX", "gfx1100", 96, 32, 25753026560, "0000:86:00.0", 52, 45e6, 19),
    ],
)
async def test_a_card_is_read_from_the_kernels_files(
    tmp_path: Path,
    card: str,
    model: str,
    gfx: str,
    units: int,
    wave: int,
    memory: int,
    bus: str,
    temp: float,
    freq: float,
    power: float,
) -> None:
    """Model, architecture, size and readings of three generations."""
    (driver,) = make(put_card(tmp_path, card))
    await driver.open(NoStrays())

    inventory, reading = driver.inventory(), await driver.telemetry()
    await driver.close()

    target = json.loads(inventory.target_json)
    assert (inventory.device_model, inventory.core_count, inventory.memory_bytes) == (model, units, memory)
    assert (target["kind"], target["mcpu"], target["thread_warp_size"]) == ("rocm", gfx, wave)
    assert target["max_shared_memory_per_block"] == 65536
    assert target["host"]["kind"] == "llvm"
    assert inventory.labels["gfx"] == gfx
    assert inventory.labels["arch"] == os.uname().machine
    assert inventory.facts["PCI bus"] == bus
    assert (reading.temp_c, reading.freq_hz, reading.power_w) == (temp, freq, power)
    assert 0 < reading.memory_available_bytes < memory


async def test_tvm_takes_the_target(mi210: Driver) -> None:
    """Code can be built for the inventory's target."""
    from cross.targets.target import make_target, parse_target

    assert make_target(parse_target(mi210.inventory().target_json)).kind.name == "rocm"


async def test_the_worker_sees_that_gpu_only(mi210: Driver) -> None:
    """The worker gets the identity that survives reboots."""
    assert mi210.worker_spec().environment == {"ROCR_VISIBLE_DEVICES": "GPU-1901ead3a2ecd4a6"}
    assert mi210.name == "devices/lab-rocm-1901ead3"


async def test_a_card_can_be_named_by_its_address(tmp_path: Path) -> None:
    """Cards without an identity of their own are named by their address."""
    (driver,) = make(put_card(tmp_path, "rx7900xtx"), gpu="0000:86:00.0")
    await driver.open(NoStrays())

    assert driver.inventory().device_model == "AMD Radeon RX 7900 XTX"
    assert driver.name == "devices/lab-rocm-0000-86-00-0"
    await driver.close()


async def test_without_a_runtime_the_device_is_listed_as_faulted(tmp_path: Path) -> None:
    """The device is visible, with the library to build."""
    (driver,) = make(put_card(tmp_path, "mi210"), tvm_library=str(tmp_path / "libtvm_runtime_rocm.so"))
    await driver.open(NoStrays())

    health = await driver.probe()

    await driver.close()
    assert not health.is_healthy
    assert "USE_ROCM" in health.reason


async def test_a_missing_device_file_names_the_remedy(mi210: Driver, tmp_path: Path) -> None:
    """A container without the GPU gets the remedy."""
    assert (await mi210.probe()).is_healthy

    (tmp_path / "dev/kfd").unlink()

    health = await mi210.probe()
    assert "finds no /dev/kfd" in health.reason
    assert "--device /dev/kfd" in health.reason


@pytest.mark.parametrize("name", ["dev/kfd", "dev/dri/renderD128"])
async def test_a_closed_device_file_names_the_groups(
    mi210: Driver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """A user outside the groups render and video sees the device and the remedy."""
    closed = tmp_path / name
    closed.chmod(0)
    if os.geteuid() == 0:  # permissions do not stop root
        allowed = os.access
        monkeypatch.setattr(os, "access", lambda path, mode: path != closed and allowed(path, mode))

    health = await mi210.probe()

    assert not health.is_healthy
    assert f"may not open /{name}" in health.reason
    assert "usermod -aG render,video" in health.reason


async def test_a_card_that_the_kernel_lost_is_faulted(mi210: Driver, tmp_path: Path) -> None:
    """A card that has fallen off the bus answers with all bits set."""
    (tmp_path / "sys/class/drm/renderD128/device/vendor").write_text("0xffff\n")

    assert "does not answer" in (await mi210.probe()).reason
    assert (await mi210.telemetry()).read_at_sec > 0


def hang_sensor(root: Path) -> Path:
    sensor = next(root.glob("sys/class/drm/renderD128/device/hwmon/hwmon*/temp1_input"))
    sensor.unlink()
    os.mkfifo(sensor)
    return sensor


def let_answer(sensor: Path) -> None:
    pipe = sensor.rename(sensor.with_name("hung"))
    sensor.write_text("43000\n")
    with contextlib.suppress(OSError):  # the read has not come so far
        os.close(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK))


async def test_a_sensor_that_hangs_costs_its_card_until_it_answers(tmp_path: Path, runtime_stub: Path) -> None:
    """A pipe without a writer stands for a read that hangs, as when a card's firmware hangs."""
    config = RocmConfig(gpu="0000:63:00.0", sys_root=put_card(tmp_path, "mi210"), tvm_library=runtime_stub)
    driver = RocmDriver("mi210", config, "lab", source=replace(AMDGPU, limit_sec=0.2))
    await driver.open(NoStrays())
    sensor = hang_sensor(tmp_path)

    async with asyncio.timeout(60):
        reading = await driver.telemetry()
        health = await driver.probe()

    assert reading.read_at_sec > 0
    assert reading.power_w is None
    assert "amdgpu has not answered since 20" in health.reason
    assert "dmesg" in health.reason
    let_answer(sensor)

    async def is_well() -> bool:
        return (await driver.probe()).is_healthy and (await driver.telemetry()).temp_c is not None

    await eventually(is_well)
    await driver.close()


async def test_processes_of_others_are_counted_ours_are_not(tmp_path: Path) -> None:
    """Only processes that hold memory of this GPU count."""
    config = RocmConfig(gpu="0000:63:00.0", sys_root=put_card(tmp_path, "mi210"))
    foreign = ForeignProcesses(can_tell=True)  # also where the tests run in a container
    driver = RocmDriver("mi210", config, "lab", foreign=foreign)
    await driver.open(NoStrays())
    for pid, vram in ((os.getpid(), 4096), (1, 8192), (os.getppid(), 0)):
        folder = tmp_path / f"sys/class/kfd/kfd/proc/{pid}"
        folder.mkdir(parents=True)
        (folder / "vram_51140").write_text(f"{vram}\n")

    assert (await driver.telemetry()).foreign_processes == 1
    await driver.close()


async def test_throttling_is_reported_with_its_reasons(mi210: Driver, tmp_path: Path) -> None:
    """The firmware's table has the reasons: here power, and the hottest spot."""
    metrics = struct.pack("<HBB108xQ", 120, 1, 3, 1 << 0 | 1 << 36)
    (tmp_path / "sys/class/drm/renderD128/device/gpu_metrics").write_bytes(metrics)

    assert list((await mi210.telemetry()).throttle_reasons) == ["power-cap", "thermal"]


def test_metrics_of_other_versions_are_not_compared() -> None:
    """Their fields lie elsewhere: unknown rather than wrong."""
    assert throttle_words(struct.pack("<HBB108xQ", 264, 1, 4, (1 << 64) - 2)) == ()
    assert throttle_words(b"\x78\x00\x01\x03") == ()
    assert throttle_words(None) == ()


async def test_an_unknown_gpu_lists_those_found(tmp_path: Path) -> None:
    """The error helps with a typo, or a card that moved to another machine."""
    (driver,) = make(put_card(tmp_path, "mi300x"), gpu="deadbeef")

    with pytest.raises(DeviceError, match=r"deadbeef.*3cbe002bd3b6313d \(AMD Instinct MI300X\)"):
        await driver.open(NoStrays())


def test_a_machine_without_amd_gpus_is_refused(tmp_path: Path) -> None:
    """It is refused without the driver, and with a driver that lists only the processor."""
    with pytest.raises(ConfigError, match="compute driver is not loaded"):
        make(tmp_path)
    node = tmp_path / "sys/class/kfd/kfd/topology/nodes/0"
    node.mkdir(parents=True)
    (node / "gpu_id").write_text("0\n")
    with pytest.raises(ConfigError, match="lists no GPU"):
        make(tmp_path)


def test_found_without_any_library(tmp_path: Path) -> None:
    """The kernel's files are enough."""
    assert RocmDriver.find(tmp_path) == []
    assert RocmDriver.find(put_card(tmp_path, "rx7900xtx")) == [{"gpu": "a1ffc9d1799c317f"}]


def test_names_and_clocks() -> None:
    """KFD counts in decimal, LLVM in hexadecimal; the star marks the clock of now."""
    assert [gfx_name(version) for version in (90010, 90402, 100300, 110501)] == [
        *("gfx90a", "gfx942", "gfx1030", "gfx1151")
    ]
    assert current_dpm_hz("0: 500Mhz *\n1: 1700Mhz\n") == 500e6
    assert current_dpm_hz("") is None
