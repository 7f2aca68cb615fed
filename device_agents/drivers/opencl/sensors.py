"""Readings of a GPU from the kernel's hwmon files, for vendors with a driver that has them (amdgpu, i915, xe, nouveau):
https://www.kernel.org/doc/html/latest/hwmon/sysfs-interface.html. Missing readings stay unset.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from device_agents.machine.files import read_int
from fleet.domain.devices import Telemetry


class GpuSensors:
    """Sensors of the device at one PCI address; none if the address is empty."""

    def __init__(self, pci_address: str, root: Path = Path("/")) -> None:
        device = root / "sys/bus/pci/devices" / pci_address
        folders = sorted((device / "hwmon").glob("hwmon*")) if pci_address else []
        self._temperatures = [path for folder in folders for path in sorted(folder.glob("temp*_input"))]
        self._power = _first(folders, "power1_average", "power1_input")
        self._frequency = _first(folders, "freq1_input")

    def read(self, host: Telemetry) -> Telemetry:
        """Return the host's readings, with the GPU's in place of readings that do not apply to it."""
        temperatures = [milli / 1e3 for path in self._temperatures if (milli := read_int(path)) is not None]
        microwatts, hertz = (None if path is None else read_int(path) for path in (self._power, self._frequency))
        return replace(
            host,
            temp_c=max(temperatures, default=None),
            freq_hz=None if hertz is None else float(hertz),
            power_w=None if microwatts is None else microwatts / 1e6,
            governor=None,
            memory_available_bytes=None,
        )


def _first(folders: list[Path], *names: str) -> Path | None:
    return next((path for folder in folders for name in names if (path := folder / name).is_file()), None)
