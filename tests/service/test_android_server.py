"""The server on a phone as this machine sees it: all its output is read, and none is trusted blindly."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import ClassVar

import pytest

from device_agents.driver import NoStrays
from device_agents.drivers.android.adb import Adb, PhoneList, phones_of
from device_agents.drivers.android.config import AndroidConfig
from device_agents.drivers.android.driver import AndroidDriver, PhoneFinder
from device_agents.drivers.android.facts import MARK
from device_agents.drivers.android.server import PhoneServer, ServerFiles
from fleet.errors import DeviceError, DeviceFaulted, DeviceUnreachable
from fleet.testing import eventually

FILES = ServerFiles(paths=(), digest="0" * 16, size_bytes=0)
BABBLE = "head -c 300000 /dev/zero | tr '\\0' x"


def server_that(folder: Path, *, told: str) -> PhoneServer:
    """Return a server with an adb that prints noise around its address, and this answer to a forward."""
    program = folder / "adb"
    program.write_text(
        "#!/bin/sh\n"
        f'case "$*" in *forward*) echo "{told}"; exit;; esac\n'
        f"{BABBLE}; echo; echo 'bind to 127.0.0.1:9090'; {BABBLE}\n"
        f"touch {folder}/unhindered\nexec sleep 60\n"
    )
    program.chmod(0o755)
    return PhoneServer(Adb(program=str(program)), "SERIAL")


def adb_that_lists(folder: Path, *lines: str) -> Path:
    """Make an adb that lists these phones; make it again to change the list."""
    program, listed, made = folder / "adb", folder / "listed", folder / "made"
    made.write_text("\n".join(["List of devices attached", *lines, ""]))
    made.replace(listed)
    if not program.exists():
        program.write_text(f'#!/bin/sh\ncase "$*" in *"devices -l") exec cat {listed};; *) exec sleep 60;; esac\n')
        program.chmod(0o755)
    return program


async def test_lines_without_end_are_read(tmp_path: Path) -> None:
    """Its output is drained, so megabytes without a line break do not block it."""
    server = server_that(tmp_path, told="12345")

    await server.start(FILES, mask=0, threads=1, library_path="", device_type="cpu")
    try:
        await eventually((tmp_path / "unhindered").exists)
    finally:
        await server.stop()

    assert not server.is_running


async def test_a_forward_without_a_port_is_a_phone_that_cannot_be_reached(tmp_path: Path) -> None:
    """The error names the missing port, and adb's processes are terminated."""
    server = server_that(tmp_path, told="* daemon started successfully *")

    with pytest.raises(DeviceUnreachable, match="reported no port"):
        await server.start(FILES, mask=0, threads=1, library_path="", device_type="cpu")

    assert not server.is_running


@pytest.mark.parametrize(("free_kb", "error"), [(9, DeviceFaulted), (9_000_000, DeviceUnreachable)])
async def test_a_push_that_fails_is_a_full_phone_where_that_has_no_room(
    tmp_path: Path, free_kb: int, error: type[DeviceError]
) -> None:
    """The phone's free space decides, not adb's messages, which vary; no partial file stays there."""
    program = tmp_path / "adb"
    program.write_text(
        '#!/bin/sh\ncase "$*" in\n'
        '*" push "*) echo "adb: error: E0123"; exit 1;;\n'
        f'*"df -k"*) echo "{7 * MARK}Filesystem 1K-blocks Used Available"; echo "/data 9 9 {free_kb}";;\n'
        f'*"rm -rf /data/local/tmp/tvm-fleet/{FILES.digest}"*) touch {tmp_path}/gone;;\nesac\n'
    )
    program.chmod(0o755)

    with pytest.raises(error):
        await PhoneServer(Adb(program=str(program)), "SERIAL").put(FILES, free_bytes=None)

    assert (tmp_path / "gone").exists()


@pytest.mark.parametrize(
    ("script", "timeout_sec", "reason"),
    [
        ("exec cat /dev/zero", 60.0, "wrote more than 1 MiB"),
        (f"{BABBLE}; exec sleep 60", 0.5, "took longer than 0.5 s"),
    ],
)
async def test_a_phone_that_babbles_costs_neither_memory_nor_time(
    tmp_path: Path, script: str, timeout_sec: float, reason: str
) -> None:
    """A command ends at its limit of time or output, even while its pipe is full."""
    program = tmp_path / "adb"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)

    with pytest.raises(DeviceUnreachable, match=reason):
        await Adb(program=str(program)).run("devices", timeout_sec=timeout_sec)


async def test_a_phone_that_came_back_between_two_looks_has_arrived_again(tmp_path: Path) -> None:
    """The phone was never seen away, but its new connection lacks the earlier forwards."""
    program = adb_that_lists(tmp_path, "R58 device transport_id:1")
    phones = PhoneList(Adb(program=str(program)))

    await phones.open(60)
    try:
        assert phones.arrivals == {"R58": 1}
        adb_that_lists(tmp_path, "R58 device transport_id:2")
        await eventually(lambda: phones.arrivals == {"R58": 2})
    finally:
        await phones.close()


class OddAtFirst(Adb):
    """An adb that fails its first list with an unexpected error."""

    odd: ClassVar[list[str]] = ["odd"]

    async def run(self, *words: str, serial: str = "", timeout_sec: float = 20.0) -> str:
        if self.odd:
            raise RuntimeError(self.odd.pop())
        return await super().run(*words, serial=serial, timeout_sec=timeout_sec)


async def test_phone_discovery_recovers_from_unexpected_errors(tmp_path: Path) -> None:
    """The list recovers, since no other code would find later phones."""
    phones = PhoneList(OddAtFirst(program=str(adb_that_lists(tmp_path, "R58 device"))))

    await phones.open(60)
    try:
        before = phones.trouble
        await eventually(lambda: phones.state("R58") == "device")
    finally:
        await phones.close()

    assert before == "listing phones failed: odd"
    assert not phones.trouble


async def test_a_phone_with_malformed_properties_is_queried_again(tmp_path: Path) -> None:
    """A later valid answer counts, since the driver itself is the only reader."""
    program, said = tmp_path / "adb", tmp_path / "said"
    program.write_text(
        "#!/bin/sh\n"
        'case "$*" in\n'
        '*"devices -l") echo "List of devices attached"; echo "R58 device";;\n'
        f"*shell*) exec cat {said};;\n"
        "*) exec sleep 60;;\n"
        "esac\n"
    )
    program.chmod(0o755)
    said.write_text(MARK.join(["", "", f"MemTotal: {'9' * 400} kB\n", "", "", ""]))
    driver = AndroidDriver("phone", AndroidConfig(adb=str(program), serial="R58"), "host")

    await driver.open(NoStrays())
    try:
        before = await driver.probe()
        said.write_text(MARK * 5)

        async def is_booting() -> bool:
            return (await driver.probe()).reason == "the phone is booting"

        await eventually(is_booting)
    finally:
        await driver.close()

    assert before.reason.startswith("setting the phone up failed: ")


@pytest.mark.parametrize("named", [{}, {"adb_server_port": 5137}])
async def test_a_phone_with_an_entry_of_its_own_is_no_second_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: dict[str, int]
) -> None:
    """The entries may name their adb server by its port or not, and by this program or another."""
    monkeypatch.setenv("ANDROID_ADB_SERVER_PORT", "5137")
    program, other = adb_that_lists(tmp_path, "R58 device", "X1 device"), tmp_path / "other"
    other.symlink_to(program)
    finder = PhoneFinder(AndroidConfig(adb=str(program), **named), "host")
    phones = phones_of(Adb(program=str(other)))

    await phones.open(60)
    try:
        phones.claimed.add("R58")
        found = await finder.look()
    finally:
        await finder.close()
        await phones.close()

    assert ["devices/host-x1"] == [driver.name for driver in found]


async def test_a_phone_connected_between_two_waits_is_found(tmp_path: Path) -> None:
    """A phone that appears while another one is set up, or before the agent waits, was once never served."""
    program = adb_that_lists(tmp_path, "R58 device")
    finder = PhoneFinder(AndroidConfig(adb=str(program)), "host")
    listed = phones_of(Adb(program=str(program)))

    try:
        first = await finder.look()
        adb_that_lists(tmp_path, "R58 device", "X1 device")
        await eventually(lambda: "X1" in listed.links)
        await asyncio.wait_for(finder.wait(), 60)
        second = await finder.look()
    finally:
        await finder.close()

    assert [["devices/host-r58"], ["devices/host-x1"]] == [[each.name for each in found] for found in (first, second)]
