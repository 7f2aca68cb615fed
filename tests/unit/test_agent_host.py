"""Facts that the agent reads from recorded machines."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from device_agents.machine.host import read_host, slug
from device_agents.machine.telemetry import HostTelemetry

X86_FLAGS = "fpu sse4_1 sse4_2 ssse3 cx16 popcnt avx avx2 bmi1 bmi2 f16c fma movbe abm"
AVX512 = " avx512f avx512bw avx512cd avx512dq avx512vl"


def record(root: Path, files: dict[str, str]) -> Path:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return root


@pytest.fixture
def raspberry_pi(tmp_path: Path) -> Path:
    core = "processor\t: 0\nFeatures\t: fp asimd evtstrm crc32 cpuid\nCPU implementer\t: 0x41\nCPU part\t: 0xd08\n\n"
    files = {
        "proc/cpuinfo": core * 4 + "Hardware\t: BCM2835\nModel\t\t: Raspberry Pi 4 Model B Rev 1.4\n",
        "proc/device-tree/model": "Raspberry Pi 4 Model B Rev 1.4\0",
        "proc/meminfo": "MemTotal:        3884288 kB\nMemAvailable:    3000000 kB\n",
        "proc/loadavg": "0.52 0.40 0.30 1/100 1234\n",
        "proc/stat": "cpu  100 0 100 700 100 0 0 0 0 0\ncpu0 1 2 3\n",
        "etc/machine-id": "abc\n",
        "proc/sys/kernel/random/boot_id": "boot-1\n",
        "sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq": "1500000\n",
        "sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq": "600000\n",
        "sys/devices/system/cpu/cpu1/cpufreq/scaling_cur_freq": "1500000\n",
        "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "ondemand\n",
        "sys/class/thermal/thermal_zone0/temp": "48312\n",
        "sys/class/thermal/thermal_zone1/temp": "0\n",
    }
    return record(tmp_path, files)


def test_a_raspberry_pi_is_recognised(raspberry_pi: Path) -> None:
    """Its model, its core's name for LLVM, and a triple for builds on other machines."""
    host = read_host(raspberry_pi, arch="aarch64", usable_cpus={0, 1, 2, 3})

    assert (host.model, host.mcpu, host.core_count) == ("Raspberry Pi 4 Model B Rev 1.4", "cortex-a72", 4)
    assert json.loads(host.target_json(4)) == {
        "kind": "llvm",
        "mcpu": "cortex-a72",
        "num-cores": 4,
        "mtriple": "aarch64-linux-gnu",
        "mattr": ["+neon"],
    }
    labels = host.labels("pi4", 4)
    assert labels["model"] == "raspberry-pi-4-model-b-rev-1.4"
    assert labels["asimd"] == "true"
    assert host.max_freq_hz == 1.5e9
    assert host.memory_bytes == 3884288 * 1024


def test_software_of_a_raspberry_pi(raspberry_pi: Path) -> None:
    """The kernel, the system with its image's build, and the boot loader, as facts for people and records."""
    record(
        raspberry_pi,
        {
            "proc/sys/kernel/osrelease": "6.6.31+rpt-rpi-v8\n",
            "etc/os-release": "PRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\nID=debian\nBUILD_ID='2026-11'\n",
            "proc/device-tree/chosen/bootloader/version": "4fd8f1f3f7a05f7756e7d53c2dbb1b0a9e9f6d5e\0",
        },
    )

    facts = read_host(raspberry_pi, arch="aarch64", usable_cpus={0}).facts()

    assert facts["kernel"] == "6.6.31+rpt-rpi-v8"
    assert facts["system"] == "Debian GNU/Linux 12 (bookworm) 2026-11"
    assert facts["firmware"] == "4fd8f1f3f7a05f7756e7d53c2dbb1b0a9e9f6d5e"
    assert "microcode" not in facts


def test_firmware_and_microcode_of_a_pc(tmp_path: Path) -> None:
    """The microcode is the first core's; unknown versions are left out."""
    files = {
        "proc/cpuinfo": "model name\t: CPU\nmicrocode\t: 0x2b000603\n",
        "sys/class/dmi/id/bios_version": "F12\n",
        "etc/os-release": "PRETTY_NAME='Arch Linux'\nBUILD_ID=rolling\n",
    }

    host = read_host(record(tmp_path, files), arch="x86_64", usable_cpus={0})

    assert host.software == {"system": "Arch Linux rolling", "firmware": "F12", "microcode": "0x2b000603"}


def test_readings_of_a_raspberry_pi(raspberry_pi: Path) -> None:
    """Readings have the message's units; sensors without a probe do not count; load covers the time since the last
    reading.
    """
    telemetry = HostTelemetry(raspberry_pi)
    first = telemetry.read()
    (raspberry_pi / "proc/stat").write_text("cpu  130 0 120 750 100 0 0 0 0 0\n")
    second = telemetry.read()

    assert first.temp_c == pytest.approx(48.312)
    assert first.freq_hz == pytest.approx(1.05e9)
    assert first.governor == "ondemand"
    assert first.load_1min == pytest.approx(0.52)
    assert first.memory_available_bytes == 3000000 * 1024
    assert first.cpu_busy is None
    assert second.cpu_busy == pytest.approx(0.5)


def test_unknown_machine_facts_stay_unset(tmp_path: Path) -> None:
    """Unknown is not zero."""
    reading = HostTelemetry(tmp_path).read()
    host = read_host(tmp_path, arch="x86_64", usable_cpus={0})

    for name in ("temp_c", "freq_hz", "governor", "load_1min", "cpu_busy", "memory_available_bytes"):
        assert getattr(reading, name) is None
    assert (host.mcpu, host.core_count, host.max_freq_hz) == ("x86-64", 1, None)


@pytest.mark.parametrize(
    ("flags", "mcpu"),
    [
        (X86_FLAGS + AVX512, "x86-64-v4"),
        (X86_FLAGS, "x86-64-v3"),
        (X86_FLAGS.replace("fma", ""), "x86-64-v2"),
        ("fpu sse2", "x86-64"),
    ],
)
def test_the_x86_level_follows_from_the_features(tmp_path: Path, flags: str, mcpu: str) -> None:
    """All features of a level, or the one below."""
    record(tmp_path, {"proc/cpuinfo": f"model name\t: Some  CPU @ 3GHz\nflags\t\t: {flags}\n"})

    assert read_host(tmp_path, arch="x86_64", usable_cpus={0}).mcpu == mcpu


def test_hyper_threads_of_one_core_count_once(tmp_path: Path) -> None:
    """Kernels get one thread per physical core that this process may use."""
    path = "sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
    record(tmp_path, {path.format(cpu): f"{cpu % 4},{cpu % 4 + 4}\n" for cpu in range(8)})

    assert read_host(tmp_path, arch="x86_64", usable_cpus=set(range(8))).core_count == 4
    assert read_host(tmp_path, arch="x86_64", usable_cpus={0, 4}).core_count == 1


def test_the_big_cores_name_a_big_little_machine(tmp_path: Path) -> None:
    """The last core in Linux's list is a big one."""
    cores = "".join(f"CPU implementer : 0x41\nCPU part\t: {part}\n\n" for part in ("0xd03", "0xd03", "0xd09", "0xd09"))
    record(tmp_path, {"proc/cpuinfo": cores})

    host = read_host(tmp_path, arch="aarch64", usable_cpus={0, 1, 2, 3})

    assert host.mcpu == host.model == "cortex-a73"


def test_fingerprints_tell_machines_and_boots_apart(tmp_path: Path) -> None:
    """Equal for all processes of one boot of one machine."""

    def fingerprint(machine: str, boot: str) -> str:
        record(tmp_path, {"etc/machine-id": machine, "proc/sys/kernel/random/boot_id": boot})
        return read_host(tmp_path, arch="x86_64", usable_cpus={0}).fingerprint

    assert fingerprint("a", "1") == fingerprint("a", "1")
    assert len({fingerprint("a", "1"), fingerprint("a", "2"), fingerprint("b", "1")}) == 3


def test_slugs_are_fit_for_selectors() -> None:
    """Slugs have no commas, equals signs, marks or spaces."""
    assert slug("Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz") == "intel-xeon-platinum-8481c-cpu-2.70ghz"
    assert slug("") == "unknown"
