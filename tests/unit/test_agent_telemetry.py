"""Readings of a Linux host, from recorded trees."""

from __future__ import annotations

from pathlib import Path

from device_agents.machine.telemetry import HostTelemetry


def write(root: Path, path: str, content: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(content)


def sensor(root: Path, folder: str, label: str, name: str, temp_c: float) -> None:
    write(root, f"sys/class/{folder}/{label}", f"{name}\n")
    reading = "temp" if "thermal" in folder else "temp1_input"
    write(root, f"sys/class/{folder}/{reading}", f"{temp_c * 1000:.0f}\n")


def test_the_hottest_sensor_of_the_processors_counts(tmp_path: Path) -> None:
    """A disk's or a radio's temperature does not affect kernels."""
    sensor(tmp_path, "hwmon/hwmon0", "name", "nvme", 68)
    sensor(tmp_path, "hwmon/hwmon1", "name", "coretemp", 51)
    sensor(tmp_path, "thermal/thermal_zone0", "type", "iwlwifi_1", 63)
    sensor(tmp_path, "thermal/thermal_zone1", "type", "x86_pkg_temp", 52)

    assert HostTelemetry(tmp_path).read().temp_c == 52


def test_unnamed_sensors_count_if_no_sensor_has_a_name(tmp_path: Path) -> None:
    """A board with one nameless sensor still has a temperature; nonsense and dead sensors do not."""
    write(tmp_path, "sys/class/thermal/thermal_zone0/temp", "47500\n")
    write(tmp_path, "sys/class/thermal/thermal_zone1/temp", "0\n")
    write(tmp_path, "sys/class/thermal/thermal_zone2/temp", "254000\n")

    assert HostTelemetry(tmp_path).read().temp_c == 47.5
    assert HostTelemetry(tmp_path / "nothing").read().temp_c is None


def test_clock_and_governor_match_those_of_the_devices_own_processors(tmp_path: Path) -> None:
    """The little cores of a phone clock differently, and are not where the kernels run."""
    for cpu, (khz, governor) in enumerate([(600_000, "schedutil"), (600_000, "schedutil"), (2_400_000, "performance")]):
        folder = f"sys/devices/system/cpu/cpu{cpu}/cpufreq"
        write(tmp_path, f"{folder}/scaling_cur_freq", f"{khz}\n")
        write(tmp_path, f"{folder}/scaling_governor", f"{governor}\n")

    own, everywhere = HostTelemetry(tmp_path, [2]).read(), HostTelemetry(tmp_path).read()

    assert (own.freq_hz, own.governor) == (2.4e9, "performance")
    assert (everywhere.freq_hz, everywhere.governor) == (1.2e9, "schedutil")
