"""Fixtures of phones: a private adb server, plugging in and out, and a directory of tvm_rpc to push."""

from __future__ import annotations

import asyncio
import shutil
import socket
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from device_agents.runtimes.opencl.build import ensure_plugin
from fleet.testing import eventually
from tests.android.fake_phone import FakePhone
from tests.android.rpc_servers import build_server, library_folders

_LIBRARIES = ("libtvm_ffi.so", "libtvm_runtime.so", "libtvm_runtime_extra.so")


def make_rpc_dir(folder: Path) -> Path:
    """Fill a directory with this machine's tvm_rpc and its libraries, as a user does for a phone."""
    folder.mkdir()
    shutil.copy(build_server(), folder / "tvm_rpc")
    for name in _LIBRARIES:
        source = next(place / name for place in library_folders() if (place / name).exists())
        (folder / name).symlink_to(source)
    return folder


@dataclass
class AdbHost:
    """A machine that phones are plugged into: a real adb server on a port of its own."""

    folder: Path
    server_port: int
    phones: list[FakePhone] = field(default_factory=list)

    async def adb(self, *words: str) -> str:
        """Run the real adb client, ignoring its exit code."""
        process = await asyncio.create_subprocess_exec(
            *("adb", "-P", str(self.server_port), *words),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        output, _ = await asyncio.wait_for(process.communicate(), 30)
        return output.decode()

    async def phone(self, name: str = "phone", **knobs: object) -> FakePhone:
        """Make a phone and plug it in."""
        phone = FakePhone(self.folder / name, **knobs)  # type: ignore[arg-type]
        self.phones.append(phone)
        await phone.start()
        await self.plug_in(phone)
        return phone

    async def plug_in(self, phone: FakePhone) -> None:
        if not phone.is_running:
            await phone.start()
        await eventually(lambda: self._connect(phone), timeout_sec=40)

    async def reconnect(self, phone: FakePhone) -> None:
        """Have the adb server forget a phone and list it again; the phone must answer, not only be listed."""

        async def answers() -> bool:
            await self.adb("disconnect", phone.serial)
            await self.adb("connect", phone.serial)
            return (await self.adb("-s", phone.serial, "get-state")).strip() == "device"

        await eventually(answers, timeout_sec=40)

    async def _connect(self, phone: FakePhone) -> bool:
        """Connect the adb server to a phone; on a busy machine it may give up on a late answer."""
        await self.adb("connect", phone.serial)
        return any(line.startswith(phone.serial) for line in (await self.adb("devices")).splitlines())

    async def unplug(self, phone: FakePhone) -> None:
        """Pull the cable: the phone disappears from adb's list."""
        await phone.stop()
        await self.adb("disconnect", phone.serial)

    async def kill_server(self) -> None:
        await self.adb("kill-server")

    def settings(self, phone: FakePhone | None, rpc_dir: Path | None, **more: object) -> dict[str, object]:
        """An entry of agent.yaml; without a serial it stands for all phones."""
        entry: dict[str, object] = {"adb_server_port": self.server_port, "emulated": True, **more}
        if phone is not None:
            entry["serial"] = phone.serial
        if rpc_dir is not None:
            entry["tvm_rpc_dir"] = str(rpc_dir)
        return entry


@asynccontextmanager
async def serve_adb(folder: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[AdbHost]:
    """Run an adb server with keys of its own."""
    assert shutil.which("adb"), "adb is missing: apt-get install adb"
    home = folder / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    host = AdbHost(folder, port)
    await host.adb("start-server")
    try:
        yield host
    finally:
        for phone in host.phones:
            await phone.stop()
            phone.kill_all()
        await host.kill_server()


def add_opencl(rpc_dir: Path) -> None:
    """Add an OpenCL runtime under the name of TVM's own: this project's, which must be installed by a call."""
    plugin = rpc_dir / "libfleet_opencl.so"
    plugin.symlink_to(ensure_plugin())
    source = rpc_dir / "install.c"
    source.write_text(
        "extern int fleet_opencl_install(void);\n"
        "__attribute__((constructor)) static void install(void) { fleet_opencl_install(); }\n"
    )
    target = rpc_dir / "libtvm_runtime_opencl.so"
    # The library itself names all its dependencies: PoCL's linker of kernels loads it, too.
    libraries = ["-ltvm_runtime", "-ltvm_ffi", "-l:libfleet_opencl.so"]
    command = ["gcc", "-shared", "-fPIC", "-o", str(target), str(source), f"-L{rpc_dir}", "-Wl,--no-as-needed"]
    subprocess.run([*command, *libraries, "-Wl,--allow-shlib-undefined"], check=True, timeout=60)
    source.unlink()
