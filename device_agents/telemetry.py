"""Readings of a Linux host, from /proc and /sys, cheap enough to take around every measurement.

What a machine does not tell stays unset. The files are found once; a reading opens a handful of them.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Sequence
from pathlib import Path

from fleet.v1 import device_pb2
from fleet.wire import timestamp

_OF_PROCESSOR = re.compile(r"cpu|core|soc|pkg|k10temp|zenpower|tctl|x86|cluster|big|little")
"""In the names of thermal zones and hwmon chips: x86_pkg_temp, coretemp, k10temp, cpu-thermal, soc_thermal, ..."""


class HostTelemetry:
    """Reads one host. `root` is "/" except in tests, which bring recorded trees."""

    def __init__(self, root: Path = Path("/"), cpus: Sequence[int] = ()) -> None:
        """Args:
        cpus: those whose clocks count; empty: all.
        """
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

    def read(self) -> device_pb2.Telemetry:
        """Return readings of this moment."""
        telemetry = device_pb2.Telemetry(read_at=timestamp(time.time()))
        temperatures = [milli / 1000 for path in self._sensors if (milli := _read_int(path)) is not None]
        # Sensors without a probe say 0 or nonsense.
        plausible = [temp for temp in temperatures if -40 < temp < 150 and temp != 0]
        if plausible:
            telemetry.temp_c = max(plausible)
        freqs = [khz * 1000 for path in self._freqs if (khz := _read_int(path)) is not None]
        if freqs:
            telemetry.freq_hz = sum(freqs) / len(freqs)
        governor = _read(self._governor)
        if governor:
            telemetry.governor = governor.strip()
        load = _read(self._loadavg)
        if load:
            telemetry.load_1min = float(load.split()[0])
        busy = self._busy_share()
        if busy is not None:
            telemetry.cpu_busy = busy
        available = self._memory_available()
        if available is not None:
            telemetry.memory_available_bytes = available
        return telemetry

    def _busy_share(self) -> float | None:
        text = _read(self._stat)
        if not text or not text.startswith("cpu "):
            return None
        times = [int(word) for word in text[: text.index("\n")].split()[1:9]]
        total, idle = sum(times), times[3] + times[4]
        last, self._last_times = self._last_times, (total, idle)
        if last is None or total <= last[0]:
            return None
        return min(1.0, max(0.0, 1 - (idle - last[1]) / (total - last[0])))

    def _memory_available(self) -> int | None:
        for line in (_read(self._meminfo) or "").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
        return None


def _find_sensors(root: Path) -> list[Path]:
    """Return the sensors of the processors; all that there are where none says that it is one.

    A disk or a radio that is warmer than the processor must not keep a measurement waiting for it to cool down.
    """
    zones = [(path, path.with_name("type")) for path in sorted((root / "sys/class/thermal").glob("thermal_zone*/temp"))]
    chips = [(path, path.with_name("name")) for path in sorted((root / "sys/class/hwmon").glob("hwmon*/temp*_input"))]
    found = [*zones, *chips]
    own = [path for path, label in found if _OF_PROCESSOR.search((_read(label) or "").lower())]
    return own or [path for path, _ in found]


def _read(path: Path) -> str | None:
    """Read the head of a small file; None when it is not there. Plain os calls: a third of the time of open()."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return os.read(descriptor, 4096).decode(errors="replace")
    except OSError:
        return None
    finally:
        os.close(descriptor)


def _read_int(path: Path) -> int | None:
    text = _read(path)
    try:
        return int(text) if text else None
    except ValueError:
        return None
