"""The TVM RPC server on a phone: its files, and how to install, start and stop it without leftovers."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import hashlib
import re
import secrets
import shlex
import struct
from dataclasses import dataclass
from pathlib import Path

from device_agents.drivers.android.adb import Adb
from device_agents.drivers.android.facts import READINGS_COMMAND, parse_readings
from device_agents.machine.terminate import end
from fleet.base.config import data_dir
from fleet.errors import DeviceError, DeviceFaulted, DeviceUnreachable

FOLDER = "/data/local/tmp/tvm-fleet"
"""Writable and executable for adb's user on every phone."""

PROGRAM = "tvm_rpc"
_OPENCL = "libtvm_runtime_opencl.so"
_CXX = "libc++_shared.so"
_SPARE_BYTES = 32 * 1024**2
"""Free space that candidates need in addition to the server."""

_FIRST_PORT, _LAST_PORT = 9090, 9190
_START_SEC = 20.0
_BOUND = re.compile(r"bind to \S+?:(\d+)", re.IGNORECASE)
_OUTPUT_LINES = 20
_CHUNK_BYTES = 4096

_MACHINES = {"aarch64": 183, "armv7l": 40, "x86_64": 62, "x86": 3}
"""ELF's e_machine by architecture."""

_BUILD_HINT = (
    "build it with the Android NDK from TVM's sources (apps/cpp_rpc) and name its directory in 'tvm_rpc_dir': "
    "docs/how-to/boards/android.md"
)


class FilesMissing(Exception):
    """The server's files on this machine are not complete, or are for another phone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFiles:
    """The files that have to be on the phone."""

    paths: tuple[Path, ...]
    digest: str
    size_bytes: int


def usual_folder(abi: str) -> Path:
    """Return the default folder of the files for phones of an ABI, used unless agent.yaml names one."""
    return data_dir() / "android" / abi


def read_files(folder: Path, *, arch: str, device_type: str) -> ServerFiles:
    """Check the files of a directory.

    Raises:
        FilesMissing: a file is missing or wrong; the message names it and the remedy.
    """
    if not folder.is_dir():
        raise FilesMissing(f"no {PROGRAM} for this phone: there is no directory {folder}; {_BUILD_HINT}")
    paths = tuple(sorted(path for path in folder.glob("*") if path.name == PROGRAM or ".so" in path.name))
    contents = {path.name: path.read_bytes() for path in paths if path.is_file()}
    needed = [PROGRAM, "libtvm_runtime.so", "libtvm_ffi.so"]
    if device_type == "opencl":
        needed.append(_OPENCL)
    if any(_CXX.encode() in content for content in contents.values()):
        needed.append(_CXX)
    missing = [name for name in needed if name not in contents]
    if missing:
        raise FilesMissing(f"{', '.join(missing)} missing in {folder}; {_BUILD_HINT}")
    for name, content in contents.items():
        _check_machine(name, content, arch)
    digest = hashlib.sha256()
    for name, content in contents.items():
        digest.update(name.encode() + b"\0" + hashlib.sha256(content).digest())
    return ServerFiles(
        paths=paths, digest=digest.hexdigest()[:16], size_bytes=sum(len(content) for content in contents.values())
    )


class PhoneServer:
    """Installs, starts and stops the server of one phone."""

    def __init__(self, adb: Adb, serial: str) -> None:
        self._adb = adb
        self._serial = serial
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None
        self._output: collections.deque[str] = collections.deque(maxlen=_OUTPUT_LINES)
        self._bound: asyncio.Future[int] | None = None
        self.local_port = 0
        """Local port that is forwarded to the server while it runs."""

        self.key = ""
        """Known to this agent only, so that no one else on the phone gets a session."""

    @property
    def is_running(self) -> bool:
        """True if the adb command that runs the server is still alive."""
        return self._process is not None and self._process.returncode is None

    async def put(self, files: ServerFiles, free_bytes: int | None) -> None:
        """Copy the files unless the phone has them, and remove older ones.

        Raises:
            DeviceFaulted: no space.
            DeviceUnreachable: the phone went away meanwhile.
        """
        folder = f"{FOLDER}/{files.digest}"
        # A phone with the files answers with the mark; anything else in our folder belongs to another build.
        command = (
            f"mkdir -p {folder} && cd {FOLDER} && for d in *; do [ $d = {files.digest} ] || rm -rf $d; done; "
            f"cat {folder}/.complete 2>/dev/null || true"
        )
        if "complete" in (await self._adb.shell(self._serial, command)).split():
            return
        if free_bytes is not None and free_bytes < files.size_bytes + _SPARE_BYTES:
            raise DeviceFaulted(_full(files, free_bytes))
        try:
            await self._adb.push(self._serial, [str(path) for path in files.paths], folder)
        except DeviceUnreachable as error:
            # adb reports why a push failed only as text. A full phone keeps partial files.
            free_bytes = await self._free_bytes()
            with contextlib.suppress(DeviceError):
                await self._adb.shell(self._serial, f"rm -rf {folder}")
            if free_bytes is not None and free_bytes < _SPARE_BYTES:
                raise DeviceFaulted(_full(files, free_bytes)) from error
            raise
        await self._adb.shell(self._serial, f"chmod 755 {folder}/* && echo complete > {folder}/.complete")

    async def start(self, files: ServerFiles, *, mask: int, threads: int, library_path: str, device_type: str) -> None:
        """Start a fresh server and forward a local port to it.

        Args:
            mask: bit mask of the cores it may use; 0: any.

        Raises:
            DeviceUnreachable: it did not start; the text quotes its output.
        """
        await self.stop()
        folder = f"{FOLDER}/{files.digest}"
        self.key = secrets.token_hex(8)
        settings = [f"LD_LIBRARY_PATH={library_path}{folder}", f"TVM_NUM_THREADS={threads}"]
        if mask:
            # Otherwise TVM would choose cores by their clock, ignoring the mask.
            settings.append("TVM_BIND_THREADS=0")
        if device_type == "opencl":
            settings.append(f"LD_PRELOAD={folder}/{_OPENCL}")
        command = (
            f"cd {folder} && rm -rf work && mkdir -p work && exec {f'taskset {mask:x} ' if mask else ''}"
            f"env {' '.join(settings)} ./{PROGRAM} server --host=127.0.0.1 --port={_FIRST_PORT} "
            f"--port-end={_LAST_PORT} --key={shlex.quote(self.key)} --work-dir={folder}/work 2>&1"
        )
        self._output.clear()
        self._bound = asyncio.get_running_loop().create_future()
        self._process = await self._adb.start("shell", command, serial=self._serial)
        self._reading = asyncio.create_task(self._read(self._process, self._bound), name=f"read-{self._serial}")
        try:
            port = await asyncio.wait_for(asyncio.shield(self._bound), _START_SEC)
            self.local_port = await self._adb.forward(self._serial, port)
        except TimeoutError:
            await self.stop()
            raise DeviceUnreachable(f"{PROGRAM} did not start within {_START_SEC:g} s{self._said()}") from None
        except BaseException:  # also if cancelled or interrupted; raised again
            await self.stop()
            raise

    async def stop(self) -> None:
        """Stop the server and the leftovers of its sessions, as far as the phone is reachable."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)
            self._reading = None
        if self._process is not None:
            await end(self._process)
            self._process = None
        if self.local_port:
            await self._adb.unforward(self._serial, self.local_port)
            self.local_port = 0

    async def kill_all(self) -> None:
        """Kill all processes that run from our folder on the phone, including those of a dead agent.

        Raises:
            DeviceUnreachable: the phone is away.
        """
        # Find processes by their executables: names are not unique, and ps differs between Android versions.
        command = (
            f"for p in $(ls -l /proc/[0-9]*/exe 2>/dev/null | grep -F ' -> {FOLDER}/' | "
            r"sed 's|.*/proc/\([0-9]*\)/exe.*|\1|'); do kill -9 $p; done; true"
        )
        await self._adb.shell(self._serial, command)

    async def _free_bytes(self) -> int | None:
        with contextlib.suppress(DeviceError):
            return parse_readings(await self._adb.shell(self._serial, READINGS_COMMAND)).free_bytes
        return None

    async def _read(self, process: asyncio.subprocess.Process, bound: asyncio.Future[int]) -> None:
        # Read chunks, not lines: kernels print anything, and would block if nobody read their output.
        rest = b""
        while process.stdout is not None and (chunk := await process.stdout.read(_CHUNK_BYTES)):
            *lines, rest = (rest + chunk).split(b"\n")
            rest = rest[-_CHUNK_BYTES:]
            for line in lines:
                text = line[-_CHUNK_BYTES:].decode(errors="replace").strip()
                self._output.append(text)
                found = _BOUND.search(text)
                if found and not bound.done():
                    bound.set_result(int(found[1]))
        if not bound.done():
            bound.set_exception(DeviceUnreachable(f"{PROGRAM} ended while it started{self._said()}"))

    def _said(self) -> str:
        return f"; it wrote: {' | '.join(self._output)[-600:]}" if self._output else ""


def _check_machine(name: str, content: bytes, arch: str) -> None:
    wanted = _MACHINES.get(arch)
    if content[:4] != b"\x7fELF" or len(content) < 20:
        raise FilesMissing(f"{name} is no program or library; {_BUILD_HINT}")
    found = struct.unpack_from("<H", content, 18)[0]
    if wanted is not None and found != wanted:
        built_for = next((known for known, number in _MACHINES.items() if number == found), f"ELF machine {found}")
        raise FilesMissing(f"{name} is built for {built_for}, and the phone is {arch}; {_BUILD_HINT}")


def _full(files: ServerFiles, free_bytes: int) -> str:
    needed_mb, free_mb = (files.size_bytes + _SPARE_BYTES) // 1024**2, free_bytes // 1024**2
    return (
        f"/data of the phone is full: {needed_mb} MB are needed in {FOLDER}, {free_mb} MB free; remove something there"
    )
