"""Readings of a GPU from the kernel's hwmon files, for vendors whose driver has them (amdgpu, i915, xe, nouveau):
https://www.kernel.org/doc/html/latest/hwmon/sysfs-interface.html. What is not there stays unset.
"""

from __future__ import annotations

from pathlib import Path

from fleet.v1 import device_pb2


class GpuSensors:
    """Sensors of the device at one PCI address; of none when it is empty."""

    def __init__(self, pci_address: str, root: Path = Path("/")) -> None:
        device = root / "sys/bus/pci/devices" / pci_address
        folders = sorted((device / "hwmon").glob("hwmon*")) if pci_address else []
        self._temperatures = [path for folder in folders for path in sorted(folder.glob("temp*_input"))]
        self._power = _first(folders, "power1_average", "power1_input")
        self._frequency = _first(folders, "freq1_input")

    def replace(self, telemetry: device_pb2.Telemetry) -> None:
        """Put the GPU's readings in the place of its host's, which say nothing about it."""
        for field in ("temp_c", "freq_hz", "governor", "memory_available_bytes"):
            telemetry.ClearField(field)
        temperatures = [milli / 1e3 for path in self._temperatures if (milli := _read(path)) is not None]
        if temperatures:
            telemetry.temp_c = max(temperatures)
        if self._power is not None and (micro := _read(self._power)) is not None:
            telemetry.power_w = micro / 1e6
        if self._frequency is not None and (freq_hz := _read(self._frequency)) is not None:
            telemetry.freq_hz = freq_hz


def _first(folders: list[Path], *names: str) -> Path | None:
    return next((path for folder in folders for name in names if (path := folder / name).is_file()), None)


def _read(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None
