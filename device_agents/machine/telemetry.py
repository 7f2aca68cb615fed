"""Readings of a Linux host, from /proc and /sys, cheap enough to take around every measurement.

Readings that a machine does not report stay None. The files are located once; a reading opens a handful of them.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from pathlib import Path

from device_agents.machine.files import read_head, read_int, read_word
from fleet.domain.devices import Telemetry

_OF_PROCESSOR = re.compile(r"cpu|core|soc|pkg|k10temp|zenpower|tctl|x86|cluster|big|little")
"""Matches thermal zones and hwmon chips of processors: x86_pkg_temp, coretemp, k10temp, cpu-thermal, soc_thermal."""


class HostTelemetry:
    """Reads one host. `root` is "/" except in tests, which bring recorded trees."""

    def __init__(self, root: Path = Path("/"), cpus: Sequence[int] = ()) -> None:
        """Args: cpus: processors whose clocks are read; empty: all."""
        self._root = root
        self._stat = root / "proc/stat"
        self._meminfo = root / "proc/meminfo"
        self._loadavg = root / "proc/loadavg"
        folder = root / "sys/devices/system/cpu"
        folders = [folder / f"cpu{cpu}" for cpu in cpus] or sorted(folder.glob("cpu[0-9]*"))
        self._freqs = [path for one in folders if (path := one / "cpufreq/scaling_cur_freq").exists()]
        self._governor = (folders[0] if folders else folder / "cpu0") / "cpufreq/scaling_governor"
        self._sensors = _find_sensors(root)
        self._last_times: tuple[int, int] | None = None

    def read(self) -> Telemetry:
        """Return the current readings."""
        temperatures = [milli / 1000 for path in self._sensors if (milli := read_int(path)) is not None]
        # Sensors without a probe report 0 or invalid values.
        plausible = [temp for temp in temperatures if -40 < temp < 150 and temp != 0]
        freqs = [khz * 1000 for path in self._freqs if (khz := read_int(path)) is not None]
        governor, load = read_word(self._governor), read_word(self._loadavg)
        return Telemetry(
            read_at_sec=time.time(),
            temp_c=max(plausible, default=None),
            freq_hz=sum(freqs) / len(freqs) if freqs else None,
            governor=governor or None,
            load_1min=float(load.split()[0]) if load else None,
            cpu_busy=self._busy_share(),
            memory_available_bytes=self._memory_available(),
        )

    def _busy_share(self) -> float | None:
        line = (read_head(self._stat) or b"").partition(b"\n")[0]
        if not line.startswith(b"cpu "):
            return None
        times = [int(word) for word in line.split()[1:9]]
        total, idle = sum(times), times[3] + times[4]
        last, self._last_times = self._last_times, (total, idle)
        if last is None or total <= last[0]:
            return None
        return min(1.0, max(0.0, 1 - (idle - last[1]) / (total - last[0])))

    def _memory_available(self) -> int | None:
        for line in (read_head(self._meminfo) or b"").splitlines():
            if line.startswith(b"MemAvailable:"):
                return int(line.split()[1]) * 1024
        return None


def _find_sensors(root: Path) -> list[Path]:
    """Return the processors' sensors, or all sensors if none is recognised as a processor's.

    A disk or radio that is warmer than the processor must not keep measurements waiting until it cools down.
    """
    zones = [(path, path.with_name("type")) for path in sorted((root / "sys/class/thermal").glob("thermal_zone*/temp"))]
    chips = [(path, path.with_name("name")) for path in sorted((root / "sys/class/hwmon").glob("hwmon*/temp*_input"))]
    found = [*zones, *chips]
    own = [path for path, label in found if _OF_PROCESSOR.search((read_word(label) or "").lower())]
    return own or [path for path, _ in found]
