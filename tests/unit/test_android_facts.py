"""Facts about phones, parsed from the output of their commands."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from device_agents.drivers.android.adb import Link, parse_links
from device_agents.drivers.android.driver import AndroidDriver, has_adb_interface
from device_agents.drivers.android.facts import MARK, default_target, parse_facts, parse_readings
from device_agents.drivers.android.server import FilesMissing, read_files
from fleet.errors import ConfigError

_CORE = "processor\t: {index}\nFeatures\t: fp asimd asimddp\nCPU implementer\t: 0x41\nCPU part\t: {part}\n\n"
_EIGHT_CORES = "".join(_CORE.format(index=i, part="0xd05" if i < 4 else "0xd0d") for i in range(8))
_PROPERTIES = (
    "[ro.product.cpu.abi]: [arm64-v8a]\n[ro.product.manufacturer]: [Google]\n[ro.product.model]: [Pixel 5]\r\n"
    "[ro.board.platform]: [lito]\n[ro.build.version.sdk]: [33]\n[sys.boot_completed]: [1]\n"
)
_FREQS = "".join(f"{i} {1804800 if i < 6 else 2208000}\n" for i in range(8))


def facts_text(*, properties: str = _PROPERTIES, freqs: str = _FREQS) -> str:
    memory = "MemTotal:        7640000 kB\nMemAvailable:    3000000 kB\n"
    gpu = "GLES: Qualcomm, Adreno (TM) 620, OpenGL ES 3.2 V@0502.0\n"
    return MARK.join([properties, _EIGHT_CORES, memory, freqs, "b007\n", gpu])


def test_a_phone_is_described_by_its_properties_and_cores() -> None:
    """Model, architecture, memory, GPU, and which cores are big."""
    facts = parse_facts(facts_text())

    assert ("Google Pixel 5", "lito", "aarch64", "33") == (facts.model, facts.soc, facts.arch, facts.sdk)
    assert facts.is_booted
    assert 7640000 * 1024 == facts.memory_bytes
    assert "Adreno (TM) 620" in facts.gpu
    assert (6, 7) == facts.cores("big")
    assert (0, 1, 2, 3, 4, 5) == facts.cores("little")
    assert "cortex-a77" == facts.mcpu(facts.cores("big"))
    assert "lito" == facts.labels()["soc"]


@pytest.mark.parametrize(("freqs", "text"), [("", "does not tell"), ("0 1000\n1 1000\n", "are alike")])
def test_cores_that_cannot_be_chosen_are_refused(freqs: str, text: str) -> None:
    """The message names a remedy; "all" cores work in any case."""
    facts = parse_facts(facts_text(freqs=freqs))

    assert facts.cores("all")
    with pytest.raises(ValueError, match=text):
        facts.cores("big")


def test_a_phone_that_is_no_known_board_gets_a_target_of_its_own() -> None:
    """The target has its CPU's core and count; for its GPU, the CPU is the host."""
    facts = parse_facts(facts_text())
    cpu = {"kind": "llvm", "mtriple": "aarch64-linux-android", "mcpu": "cortex-a77", "mattr": ["+neon"]}

    assert {**cpu, "num-cores": 2} == default_target(facts, (6, 7), "cpu")
    assert {"kind": "opencl", "host": cpu} == json.loads(json.dumps(default_target(facts, (6, 7), "opencl")))


def test_a_32_bit_phone_needs_a_target() -> None:
    """Its float ABI cannot be guessed."""
    facts = parse_facts(facts_text(properties=_PROPERTIES.replace("arm64-v8a", "armeabi-v7a")))

    with pytest.raises(ValueError, match="needs 'target'"):
        default_target(facts, (0,), "cpu")


def test_readings_prefer_the_hottest_processor_of_now() -> None:
    """Current temperatures of processors precede cached ones and batteries; throttling is reported by name."""
    thermal = (
        "IsStatusOverride: false\nThermal Status: 2\nCached temperatures:\n"
        " Temperature{mValue=99.0, mType=0, mName=CPU0, mStatus=0}\nCurrent temperatures from HAL:\n"
        " Temperature{mValue=61.2, mType=0, mName=CPU0, mStatus=0}\n"
        " Temperature{mValue=64.5, mType=1, mName=GPU0, mStatus=0}\n"
        " Temperature{mValue=71.0, mType=9, mName=modem, mStatus=0}\n"
    )
    disk = "Filesystem 1K-blocks Used Available Use% Mounted on\n/dev/block/dm-5 100000 90000 10000 90% /data\n"
    parts = ["  level: 43\n  scale: 100\n  temperature: 371\n", thermal, "36000\n", "1000000\n3000000\n", "schedutil\n"]
    found = parse_readings(MARK.join([*parts, "2.50 1.00 1.00 2/900 1\n", "MemAvailable: 10 kB\n", disk]))
    readings = found.telemetry

    assert (64.5, 43.0, ("thermal: moderate",)) == (
        readings.temp_c,
        readings.battery_percent,
        readings.throttle_reasons,
    )
    assert (2e9, "schedutil", 2.5) == (readings.freq_hz, readings.governor, readings.load_1min)
    assert (10 * 1024, 10000 * 1024) == (readings.memory_available_bytes, found.free_bytes)


def test_a_phone_that_tells_little_leaves_readings_unset() -> None:
    """Unknown is not zero; the battery's temperature is better than none."""
    assert parse_readings("") == parse_readings(MARK * 7)
    assert parse_readings("").telemetry.temp_c is None
    assert 37.1 == parse_readings("temperature: 371").telemetry.temp_c


def test_phones_are_read_from_adbs_list() -> None:
    """Serials with spaces, explained states and messages about the daemon's start are read, too."""
    text = (
        "* daemon not running; starting now at tcp:5037\n* daemon started successfully\nList of devices attached\n"
        "R58                    device usb:1-1 product:a model:Pixel_0 device:b transport_id:12\n"
        "adb-R58 (2)._adb-tls-connect._tcp device product:a model:b device:c transport_id:3\n"
        "X1                     no permissions (user in plugdev group); see [http://x] usb:1-2 transport_id:1\n"
        "OLD                    offline\n\n"
    )

    assert {
        "R58": Link("device", "12"),
        "adb-R58 (2)._adb-tls-connect._tcp": Link("device", "3"),
        "X1": Link("no permissions (user in plugdev group); see [http://x]", "1"),
        "OLD": Link("offline"),
    } == parse_links(text)


def test_phones_on_usb_are_seen_without_starting_adb(tmp_path: Path) -> None:
    """They are recognised by the interface that USB debugging adds."""
    interface = tmp_path / "sys/bus/usb/devices/1-2:1.1"
    interface.mkdir(parents=True)
    for name, value in (("bInterfaceClass", "ff"), ("bInterfaceSubClass", "42"), ("bInterfaceProtocol", "01")):
        (interface / name).write_text(f"{value}\n")

    assert has_adb_interface(tmp_path)
    (interface / "bInterfaceSubClass").write_text("06\n")
    assert not has_adb_interface(tmp_path)


def test_a_missing_library_is_named(tmp_path: Path) -> None:
    """A library that only the other libraries need is named, too."""
    (tmp_path / "tvm_rpc").write_bytes(b"\x7fELF" + bytes(60) + b"libc++_shared.so\0")

    with pytest.raises(FilesMissing, match=r"libtvm_runtime\.so, libtvm_ffi\.so, libc\+\+_shared\.so missing"):
        read_files(tmp_path, arch="aarch64", device_type="cpu")


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"cores": "medium"}, "expected all, big, little"),
        ({"device_type": "vulkan"}, "expected cpu or opencl"),
        ({"name": "x"}, "give its 'serial' too"),
        ({"target": "adreno"}, "unknown board"),
    ],
)
def test_bad_settings_are_refused(values: dict[str, str], text: str) -> None:
    """Settings are checked before any phone is queried."""
    with pytest.raises(ConfigError, match=text):
        AndroidDriver.from_config(values, where="agent.yaml", host_name="h")
