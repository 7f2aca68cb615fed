"""Files of a Raspberry Pi in /proc and /sys that its driver reads."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

_CPUFREQ = "sys/devices/system/cpu/cpu{}/cpufreq/{}"


def pi_files(*, model: str, part: str, cores: int = 4, max_khz: int = 1_800_000) -> dict[str, str]:
    """Return path to content.

    Args:
        model: of the device tree: "Raspberry Pi 4 Model B Rev 1.4".
        part: of the CPU as in /proc/cpuinfo: "0xd08" is the Cortex-A72.
    """
    files = {
        "sys/firmware/devicetree/base/model": f"{model}\0",
        "proc/cpuinfo": "".join(_processor(index, part) for index in range(cores)) + f"Model\t\t: {model}\n",
        "sys/class/thermal/thermal_zone0/temp": "48312\n",
        "sys/devices/platform/soc/soc:firmware/get_throttled": "0\n",
        "sys/class/hwmon/hwmon1/name": "rpi_volt\n",
        "sys/class/hwmon/hwmon1/in0_lcrit_alarm": "0\n",
    }
    for index in range(cores):
        files[_CPUFREQ.format(index, "scaling_cur_freq")] = f"{max_khz}\n"
        files[_CPUFREQ.format(index, "scaling_governor")] = "ondemand\n"
        files[_CPUFREQ.format(index, "cpuinfo_max_freq")] = f"{max_khz}\n"
        files[f"sys/devices/system/cpu/cpu{index}/topology/thread_siblings_list"] = f"{index}\n"
    return files


def put_files(root: Path, files: Mapping[str, str]) -> Path:
    """Write the files below `root`, and those of any Linux that drivers need."""
    any_linux = {
        "proc/meminfo": "MemTotal:        3884612 kB\nMemAvailable:    3400000 kB\n",
        "proc/loadavg": "0.10 0.12 0.09 1/150 4321\n",
        "proc/stat": "cpu  100 0 50 9000 10 0 5 0 0 0\n",
        "proc/sys/kernel/random/boot_id": "0b1c6f0e-2a44-4a57-9d1d-6d1f4c2b7a10\n",
        "etc/machine-id": "0123456789abcdef0123456789abcdef\n",
    }
    for name, content in {**any_linux, **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return root


def _processor(index: int, part: str) -> str:
    is_64_bit = part.startswith("0xd")
    features = (
        "fp asimd evtstrm crc32 cpuid" if is_64_bit else "half thumb fastmult vfp edsp neon vfpv3 tls vfpv4 idiva idivt"
    )
    return (
        f"processor\t: {index}\nBogoMIPS\t: 108.00\nFeatures\t: {features}\nCPU implementer\t: 0x41\n"
        f"CPU architecture: {8 if is_64_bit else 7}\nCPU variant\t: 0x0\nCPU part\t: {part}\nCPU revision\t: 3\n\n"
    )


PI_4 = pi_files(model="Raspberry Pi 4 Model B Rev 1.4", part="0xd08")
PI_2 = pi_files(model="Raspberry Pi 2 Model B Rev 1.1", part="0xc07", max_khz=900_000)
