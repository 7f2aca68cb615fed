"""The OpenCL driver without hardware: devices that it serves by default, its settings, targets and sensors."""

from __future__ import annotations

import dataclasses
import importlib.machinery
import importlib.util
from pathlib import Path

import pytest

from device_agents.driver import NoStrays
from device_agents.drivers.opencl import driver as opencl
from device_agents.drivers.opencl.devices import OpenClDevice
from device_agents.drivers.opencl.driver import OpenClDriver, target_of
from device_agents.drivers.opencl.sensors import GpuSensors
from device_agents.machine.host import read_host
from fleet.domain.devices import Telemetry
from fleet.errors import ConfigError

CPU = OpenClDevice(
    index=1,
    name="pthread-skylake-avx512-Intel(R) Xeon(R) Processor",
    platform="Portable Computing Language",
    vendor="GenuineIntel",
    type="cpu",
    version="OpenCL 3.0 PoCL HSTR: pthread-x86_64-pc-linux-gnu-skylake-avx512",
    driver_version="3.1+debian",
    compute_units=2,
    work_group_size=4096,
    clock_mhz=2700,
    memory_bytes=6_671_261_696,
    largest_buffer_bytes=2_147_483_648,
    local_memory_bytes=2_097_152,
    cache_bytes=503_316_480,
    extensions=("cl_khr_fp64",),
    pci_address="",
)
GPU = dataclasses.replace(
    CPU,
    index=0,
    name="Some GPU [0x1234]",
    platform="Some Platform",
    vendor="Some Vendor",
    type="gpu",
    work_group_size=512,
    local_memory_bytes=65536,
    extensions=("cl_khr_fp16",),
    pci_address="0000:03:00.0",
)
NVIDIA = dataclasses.replace(GPU, name="Some GeForce", platform="NVIDIA CUDA")


@pytest.fixture
def devices(monkeypatch: pytest.MonkeyPatch) -> list[OpenClDevice]:
    found = [GPU, CPU]
    monkeypatch.setattr(opencl, "find_opencl_devices", lambda: found)
    return found


def root_with(folder: Path, *paths: str) -> Path:
    for path in paths:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).touch()
    return folder


def made(**settings: str) -> list[OpenClDriver]:
    return OpenClDriver.from_config(settings, where="devices[0]", host_name="here")


def test_without_a_driver_but_pocl_no_device_is_queried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty machine and one with PoCL alone are not searched, and no CPU is served by default."""
    monkeypatch.setattr(opencl, "find_opencl_devices", lambda: pytest.fail("asked"))

    assert OpenClDriver.find(tmp_path) == []
    assert OpenClDriver.find(root_with(tmp_path, "etc/OpenCL/vendors/pocl.icd")) == []


def test_by_itself_it_serves_gpus_that_no_other_driver_serves(tmp_path: Path, devices: list[OpenClDevice]) -> None:
    """The driver creates the same device again from a found entry; an NVIDIA GPU with its driver loaded is left to
    cuda.
    """
    devices.insert(0, NVIDIA)
    root = root_with(tmp_path, "etc/OpenCL/vendors/some.icd")

    both = OpenClDriver.find(root)
    one = OpenClDriver.find(root_with(root, "proc/driver/nvidia/version"))

    assert {"NVIDIA CUDA", "Some Platform"} == {entry["platform"] for entry in both}
    assert [{"type": "gpu", "platform": "Some Platform"}] == one
    assert ["here-opencl"] == [driver.device_id for driver in made(**one[0])]


def test_an_entry_alone_means_every_device(devices: list[OpenClDevice]) -> None:
    """Several devices are numbered; a CPU takes turns with the driver cpu, a GPU with no other driver."""
    drivers = made()

    assert ["here-opencl-0", "here-opencl-1"] == [driver.device_id for driver in drivers]
    assert ["devices/here-opencl-0", "host-cores"] == [driver.resource for driver in drivers]
    assert ["bench"] == [driver.device_id for driver in made(name="bench", device="*xeon*")]


def test_settings_without_a_match_list_the_choices(devices: list[OpenClDevice]) -> None:
    """A pattern or a type that is wrong is an error that shows the choice."""
    with pytest.raises(ConfigError, match=r"found are gpu 'Some GPU \[0x1234\]' of 'Some Platform'; cpu"):
        made(platform="Other*")
    with pytest.raises(ConfigError, match="expected one of gpu"):
        made(type="gpus")


@pytest.mark.parametrize(("device", "threads", "shared"), [(CPU, 256, 2_097_152), (GPU, 512, 65536)])
def test_the_target_keeps_to_the_device(device: OpenClDevice, threads: int, shared: int) -> None:
    """The target has the device's limits and the host that launches the kernels."""
    target = target_of(device, read_host())

    assert (target["kind"], target["max_threads_per_block"], target["max_num_threads"]) == ("opencl", threads, threads)
    assert target["max_shared_memory_per_block"] == shared
    assert target["host"]["kind"] == "llvm"


async def test_a_runtime_of_tvms_own_is_preferred(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a user built TVM's own runtime beside its other libraries, workers load it and nothing is compiled."""
    library = tmp_path / "lib" / "libtvm_runtime_opencl.so"
    root_with(tmp_path, "lib/libtvm_runtime_opencl.so", "__init__.py")
    spec = importlib.machinery.ModuleSpec("tvm", None, is_package=True)
    spec.submodule_search_locations = [str(tmp_path)]
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: spec if name == "tvm" else real(name, *rest))
    monkeypatch.setattr(opencl, "ensure_plugin", lambda: pytest.fail("compiled"))
    driver = OpenClDriver("gpu", GPU, "here")

    await driver.open(NoStrays())

    assert driver.worker_spec().settings["library"] == str(library)
    assert driver.inventory().facts["runtime"] == "TVM's own"
    await driver.close()


def test_a_gpus_readings_take_the_place_of_its_hosts(tmp_path: Path) -> None:
    """Temperature, power and clock are the GPU's in our units, or unset; the host's load stays."""
    sensors = tmp_path / "sys/bus/pci/devices/0000:03:00.0/hwmon/hwmon4"
    sensors.mkdir(parents=True)
    for name, value in {"temp1_input": 51000, "temp2_input": 63000, "power1_average": 87_500_000}.items():
        (sensors / name).write_text(f"{value}\n")
    host = Telemetry(temp_c=40.0, freq_hz=3e9, governor="performance", load_1min=0.5)

    telemetry = GpuSensors(GPU.pci_address, tmp_path).read(host)

    assert (telemetry.temp_c, telemetry.power_w, telemetry.load_1min) == (63.0, 87.5, 0.5)
    assert (telemetry.freq_hz, telemetry.governor) == (None, None)


def test_a_device_without_an_address_has_no_readings(tmp_path: Path) -> None:
    """The sensors of other devices are not taken for its own."""
    (tmp_path / "sys/bus/pci/devices/hwmon/hwmon0").mkdir(parents=True)
    (tmp_path / "sys/bus/pci/devices/hwmon/hwmon0/temp1_input").write_text("50000")

    assert GpuSensors("", tmp_path).read(Telemetry()) == Telemetry()
