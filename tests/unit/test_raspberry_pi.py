"""Readings of the Raspberry Pi's driver, from trees as the vendor's kernel shows them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from device_agents.driver import NoStrays
from device_agents.drivers.raspberry_pi.driver import RaspberryPiDriver
from device_agents.drivers.raspberry_pi.throttling import Throttling, reasons_in
from device_agents.registry import find_devices
from fleet.base.machine import architecture
from fleet.errors import DeviceError
from tests.emulated.pi_files import PI_4, pi_files, put_files

_WORD = "sys/devices/platform/soc/soc:firmware/get_throttled"


async def _opened(root: Path, **settings: object) -> RaspberryPiDriver:
    values = {"sys_root": str(root), **settings}
    driver = RaspberryPiDriver.from_config(values, where="test", host_name="desk")[0]
    await driver.open(NoStrays())
    return driver


@pytest.mark.parametrize(
    ("word", "before", "reasons"),
    [
        (0x0, 0x0, []),
        (0x1, 0x0, ["under-voltage"]),
        (0x5, 0x0, ["under-voltage", "throttled"]),
        (0x8, 0x0, ["soft-temperature-limit"]),
        (0xF0000, 0xF0000, []),
        (0x50000, 0x40000, ["under-voltage"]),
        (0x20002, 0x0, ["frequency-capped"]),
    ],
)
def test_the_firmware_word_gives_present_and_past_throttling(word: int, before: int, reasons: list[str]) -> None:
    """A dip between two readings is reported once; dips before the agent's start are not reported."""
    assert reasons == reasons_in(word, before)


def test_a_pi_is_found_and_is_no_mere_cpu(tmp_path: Path) -> None:
    """An agent without configuration serves it once, with its own driver."""
    kinds = [entry["driver"] for entry in find_devices(put_files(tmp_path, PI_4))]

    assert "raspberry_pi" in kinds
    assert "cpu" not in kinds


def test_any_other_machine_has_none(tmp_path: Path) -> None:
    """A PC has no device tree, and another board names another maker."""
    assert RaspberryPiDriver.find(tmp_path) == []
    other = pi_files(model="Hardkernel ODROID-N2", part="0xd09")
    assert RaspberryPiDriver.find(put_files(tmp_path, other)) == []


async def test_the_target_is_refined_by_detected_facts(tmp_path: Path) -> None:
    """Builders compile for its core and triple."""
    driver = await _opened(put_files(tmp_path, PI_4), threads=1)

    inventory = driver.inventory()

    target = json.loads(inventory.target_json)
    assert (target["mtriple"], target["mcpu"], target["num-cores"]) == ("aarch64-linux-gnu", "cortex-a72", 1)
    assert inventory.labels["board"] == "rpi4-64"
    assert inventory.labels["mcpu"] == "cortex-a72"
    assert "emulated" not in inventory.labels
    assert not inventory.is_simulated
    assert inventory.device_model.startswith("Raspberry Pi 4 Model B")


async def test_an_emulated_board_is_reported_as_emulated(tmp_path: Path) -> None:
    """Its times are not mistaken for a board's, and its records are kept apart."""
    inventory = (await _opened(put_files(tmp_path, PI_4), emulated=True, threads=2)).inventory()

    assert inventory.is_simulated
    assert inventory.labels["emulated"] == "true"
    assert inventory.device_model == "emulated Raspberry Pi 4 Model B Rev 1.4 x2"


async def test_telemetry_tells_heat_governor_and_throttling(tmp_path: Path) -> None:
    """All that a record needs to be believed or measured again."""
    driver = await _opened(put_files(tmp_path, PI_4))
    (tmp_path / _WORD).write_text("80008\n")

    reading = await driver.telemetry()

    assert reading.temp_c == pytest.approx(48.312)
    assert reading.governor == "ondemand"
    assert reading.freq_hz == pytest.approx(1.8e9)
    assert list(reading.throttle_reasons) == ["soft-temperature-limit"]


async def test_where_the_firmware_is_not_asked_the_voltage_alarm_tells(tmp_path: Path) -> None:
    """Kernels other than the vendor's have no get_throttled."""
    put_files(tmp_path, {name: content for name, content in PI_4.items() if name != _WORD})
    driver = await _opened(tmp_path)
    (tmp_path / "sys/class/hwmon/hwmon1/in0_lcrit_alarm").write_text("1\n")

    assert list((await driver.telemetry()).throttle_reasons) == ["under-voltage"]
    assert driver.inventory().facts["throttling told by"] == "hwmon (under-voltage only)"


async def test_vcgencmd_is_asked_between_measurements(tmp_path: Path) -> None:
    """It takes milliseconds: the heartbeat runs it, and a reading only repeats its result."""
    tool = tmp_path / "usr/bin/vcgencmd"
    tool.parent.mkdir(parents=True)
    tool.write_text("#!/bin/sh\necho throttled=0x50005\n")
    tool.chmod(0o755)
    throttling = Throttling(tmp_path)
    throttling.open()

    assert throttling.read() == []
    await throttling.ask_firmware()

    assert throttling.source == "vcgencmd"
    assert throttling.read() == ["under-voltage", "throttled"]


async def test_a_firmware_that_does_not_answer_is_left_alone(tmp_path: Path) -> None:
    """It delays the heartbeat only once, and is not queried again."""
    tool = tmp_path / "usr/bin/vcgencmd"
    tool.parent.mkdir(parents=True)
    tool.write_text("#!/bin/sh\nexec sleep 60\n")
    tool.chmod(0o755)
    throttling = Throttling(tmp_path, vcgencmd_sec=0.1)
    throttling.open()

    await throttling.ask_firmware()
    tool.write_text(f"#!/bin/sh\ntouch {tmp_path}/asked\n")
    for _ in range(2):
        await throttling.ask_firmware()

    assert throttling.read() == []
    assert not (tmp_path / "asked").exists()


async def test_a_machine_that_is_no_pi_is_refused_by_name(tmp_path: Path) -> None:
    """The error has the machine's own name, for the person that configured it."""
    put_files(tmp_path, pi_files(model="Hardkernel ODROID-N2", part="0xd09"))

    with pytest.raises(DeviceError, match="no Raspberry Pi: its device tree says 'Hardkernel ODROID-N2'"):
        await _opened(tmp_path)


@pytest.mark.parametrize(
    ("machine", "pointer_bytes", "said"),
    [("aarch64", 8, "aarch64"), ("aarch64", 4, "armv7l"), ("armv8l", 4, "armv7l"), ("armv7l", 4, "armv7l")],
)
def test_a_32_bit_system_on_a_64_bit_kernel_is_a_32_bit_machine(machine: str, pointer_bytes: int, said: str) -> None:
    """Raspberry Pi OS runs so; the architecture is that of the programs, not that of a 64-bit kernel."""
    assert said == architecture(machine, pointer_bytes)


async def test_kernels_can_be_kept_on_some_cores(tmp_path: Path) -> None:
    """The worker is pinned and the target counts these cores only, as on any CPU."""
    driver = await _opened(put_files(tmp_path, PI_4), cpus=[0])

    assert driver.worker_spec().cpus == (0,)
    assert json.loads(driver.inventory().target_json)["num-cores"] == 1
