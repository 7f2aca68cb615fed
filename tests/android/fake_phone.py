"""A fake Android phone for the real adb client and server.

It speaks adb's transport over TCP on loopback: CNXN, AUTH, OPEN, OKAY, WRTE, CLSE, and behind OPEN the services
`shell,v2`, `sync:` (push and pull) and `tcp:`. Its file system is a directory of this machine; commands run in this
machine's shell, with Android's paths in them replaced, and with `getprop`, `dumpsys` and `df` of its own.
Protocol: https://android.googlesource.com/platform/packages/modules/adb/+/refs/heads/main/protocol.txt
and SYNC.TXT beside it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import stat
import struct
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

_HEADER = struct.Struct("<6I")
_VERSION = 0x01000000
_MAX_DATA = 256 * 1024
_TOKEN, _PUBLIC_KEY = 1, 3
_STDOUT, _STDERR, _EXIT = 1, 2, 3
_PATHS = ("/data/", "/sys/", "/proc/cpuinfo", "/proc/meminfo", "/proc/loadavg")
"""Paths of Android's own files; all others are this machine's."""

_PROPERTIES = {
    "ro.product.model": "Pixel 0",
    "ro.product.manufacturer": "Fake",
    "ro.product.device": "fake",
    "ro.product.cpu.abi": "x86_64",
    "ro.board.platform": "sdm000",
    "ro.soc.model": "SOC0",
    "ro.build.version.sdk": "34",
    "sys.boot_completed": "1",
}
_BATTERY = "Current Battery Service state:\n  status: 2\n  level: 87\n  scale: 100\n  temperature: 312\n"
_THERMAL = (
    "IsStatusOverride: false\nThermal Status: 0\nCurrent temperatures from HAL:\n"
    "\tTemperature{mValue=41.5, mType=0, mName=CPU0, mStatus=0}\n"
    "\tTemperature{mValue=33.0, mType=3, mName=skin, mStatus=0}\n"
)
_SCRIPTS = {
    "getprop": "cat {root}/system/properties",
    "dumpsys": "cat {root}/system/dumpsys-$1",
    "df": 'if [ -f {root}/system/df ]; then cat {root}/system/df; else exec /bin/df "$@"; fi',
}


@dataclass
class FakePhone:
    """One phone. Change its knobs at any time; `await start()` plugs it in."""

    root: Path
    properties: dict[str, str] = field(default_factory=lambda: dict(_PROPERTIES))
    is_authorized: bool = True
    is_silent: bool = False
    """Accepts the connection and stays silent: adb calls that offline."""

    is_full: bool = False
    """/data has no space left for the first file that comes."""

    port: int = 0
    _server: asyncio.Server | None = None
    _links: set[_Link] = field(default_factory=set)

    @property
    def serial(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def start(self) -> FakePhone:
        """Listen, on the same port as before."""
        self.furnish()
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    @property
    def is_running(self) -> bool:
        return self._server is not None

    async def stop(self) -> None:
        """Vanish, as when the cable is pulled. Processes on the phone get SIGHUP, as from adbd."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for link in list(self._links):
            await link.close(signal.SIGHUP)

    async def reboot(self) -> None:
        """Vanish with all processes, and return."""
        for link in list(self._links):
            await link.close(signal.SIGKILL)
        await self.stop()
        self.kill_all()
        await self.start()

    def make_room(self) -> None:
        """Free space in /data."""
        self.is_full = False
        (self.root / "system/df").unlink(missing_ok=True)

    def kill_all(self) -> None:
        """Kill the processes from this phone's file system."""
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def processes(self) -> list[int]:
        """Return the process ids of programs below the phone's root."""
        found = []
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if entry.name.isdigit() and str(entry.joinpath("exe").readlink()).startswith(f"{self.root}/data/"):
                    found.append(int(entry.name))
        return found

    def write_file(self, path: str, content: str) -> None:
        """Write a file of the phone: "/sys/...", "/system/dumpsys-battery"."""
        file = self.root / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)

    def local(self, text: str) -> str:
        """Replace Android's paths in a command by this machine's."""
        for path in _PATHS:
            text = text.replace(path, f"{self.root}{path}")
        return text

    def store(self, name: str, content: bytes, mode: int) -> str:
        """Take a pushed file; return an error message, or ""."""
        path = Path(self.local(name))
        if self.is_full:
            self.write_file("system/df", "Filesystem 1K-blocks Used Available\n/data 100 100 0\n")
            return "No space left on device"
        if not path.is_relative_to(self.root):
            return "Read-only file system"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        path.write_bytes(content)
        path.chmod(stat.S_IMODE(mode) | 0o600)
        return ""

    def stat(self, name: str) -> bytes:
        """Return mode, size and time of a file, zeros if there is none."""
        try:
            found = Path(self.local(name)).stat()
        except OSError:
            return bytes(12)
        return struct.pack("<3I", found.st_mode, found.st_size, int(found.st_mtime))

    def load(self, name: str) -> bytes:
        """Return a file's content."""
        return Path(self.local(name)).read_bytes()

    def furnish(self) -> None:
        """Write the files that the phone's commands read, from its properties and existing files."""
        (self.root / "data/local/tmp").mkdir(parents=True, exist_ok=True)
        self.write_file("system/properties", "".join(f"[{k}]: [{v}]\n" for k, v in self.properties.items()))
        if not (self.root / "system/dumpsys-battery").exists():
            self.write_file("system/dumpsys-battery", _BATTERY)
            self.write_file("system/dumpsys-thermalservice", _THERMAL)
            for source in ("cpuinfo", "meminfo", "loadavg"):
                self.write_file(f"proc/{source}", Path("/proc", source).read_text())
            for index, khz in enumerate((1_000_000, 2_000_000)):
                folder = f"sys/devices/system/cpu/cpu{index}/cpufreq"
                self.write_file(f"{folder}/cpuinfo_max_freq", f"{khz}\n")
                self.write_file(f"{folder}/scaling_cur_freq", f"{khz}\n")
                self.write_file(f"{folder}/scaling_governor", "schedutil\n")
        for name, text in _SCRIPTS.items():
            self.write_file(f"system/bin/{name}", f"#!/bin/sh\n{text.format(root=self.root)}\n")
            (self.root / "system/bin" / name).chmod(0o755)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = _Link(self, reader, writer)
        self._links.add(link)
        try:
            await link.run()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            self._links.discard(link)
            await link.close(signal.SIGHUP)


class _Link:
    """One connection of an adb server."""

    def __init__(self, phone: FakePhone, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.phone = phone
        self._reader = reader
        self._writer = writer
        self._streams: dict[int, _Stream] = {}
        self._last_id = 0
        self._is_closed = False

    async def run(self) -> None:
        while True:
            head = await self._reader.readexactly(_HEADER.size)
            command, arg0, arg1, size, _, _ = _HEADER.unpack(head)
            data = await self._reader.readexactly(size)
            await self._handle(command.to_bytes(4, "little"), arg0, arg1, data)

    def send(self, command: bytes, arg0: int, arg1: int, data: bytes = b"") -> None:
        number = int.from_bytes(command, "little")
        checksum = sum(data) & 0xFFFFFFFF
        self._writer.write(_HEADER.pack(number, arg0, arg1, len(data), checksum, number ^ 0xFFFFFFFF) + data)

    async def close(self, signal_number: int) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        for stream in list(self._streams.values()):
            await stream.end(signal_number)
        self._writer.close()

    async def _handle(self, command: bytes, arg0: int, arg1: int, data: bytes) -> None:
        if command == b"CNXN":
            self._greet()
        elif command == b"AUTH":
            # For a signature with a known key: none is known. For a public key: the phone's owner has not confirmed it
            # yet.
            if arg0 != _PUBLIC_KEY:
                self.send(b"AUTH", _TOKEN, 0, os.urandom(20))
        elif command == b"OPEN":
            self._last_id += 1
            stream = _Stream(self, self._last_id, arg0, data.rstrip(b"\0").decode())
            self._streams[self._last_id] = stream
            stream.start()
        elif command in (b"WRTE", b"OKAY", b"CLSE") and arg1 in self._streams:
            await self._streams[arg1].take(command, data)

    def _greet(self) -> None:
        if self.phone.is_silent:
            return
        if not self.phone.is_authorized:
            self.send(b"AUTH", _TOKEN, 0, os.urandom(20))
            return
        names = ("ro.product.name", "ro.product.model", "ro.product.device")
        banner = "".join(f"{name}={self.phone.properties.get(name, 'fake')};" for name in names)
        self.send(b"CNXN", _VERSION, _MAX_DATA, f"device::{banner}features=shell_v2,cmd".encode())

    def forget(self, stream_id: int) -> None:
        self._streams.pop(stream_id, None)


class _Stream:
    """One service in use."""

    def __init__(self, link: _Link, own_id: int, peer_id: int, service: str) -> None:
        self._link = link
        self._ids = (own_id, peer_id)
        self._service = service
        self._incoming = asyncio.StreamReader()
        self._may_send = asyncio.Event()
        self._lock = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self._process: asyncio.subprocess.Process | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name=f"phone {self._service[:40]}")

    async def take(self, command: bytes, data: bytes) -> None:
        if command == b"WRTE":
            self._incoming.feed_data(data)
            self._link.send(b"OKAY", *self._ids)
        elif command == b"OKAY":
            self._may_send.set()
        else:
            self._link.forget(self._ids[0])
            self._incoming.feed_eof()
            await self.end(signal.SIGHUP)

    async def end(self, signal_number: int) -> None:
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal_number)
        if self._task is not None and self._task is not asyncio.current_task():
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def write(self, data: bytes) -> None:
        """Send, and wait until the other side has received it."""
        for start in range(0, len(data), _MAX_DATA):
            self._may_send.clear()
            self._link.send(b"WRTE", *self._ids, data[start : start + _MAX_DATA])
            await self._may_send.wait()

    async def _run(self) -> None:
        kind, _, rest = self._service.partition(":")
        serve = {"shell": self._shell, "sync": self._sync, "tcp": self._tcp}.get(kind.split(",")[0])
        if serve is None:
            self._link.send(b"CLSE", 0, self._ids[1])
            return
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            await serve(rest)
        self._link.send(b"CLSE", *self._ids)
        self._link.forget(self._ids[0])

    async def _shell(self, command: str) -> None:
        self._link.send(b"OKAY", *self._ids)
        phone = self._link.phone
        self._process = process = await asyncio.create_subprocess_exec(
            *("/bin/sh", "-c", phone.local(command)),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            cwd=phone.root,
            env={"PATH": f"{phone.root}/system/bin:{os.environ['PATH']}", "HOME": str(phone.root)},
            start_new_session=True,
        )
        assert process.stdout
        assert process.stderr
        await asyncio.gather(self._copy(process.stdout, _STDOUT), self._copy(process.stderr, _STDERR))
        code = await process.wait()
        await self.write(_packet(_EXIT, bytes([code & 0xFF])))

    async def _copy(self, source: asyncio.StreamReader, packet_id: int) -> None:
        while data := await source.read(32 * 1024):
            await self._whole(_packet(packet_id, data))

    async def _whole(self, packet: bytes) -> None:
        # Two outputs share one stream with one message in flight.
        async with self._lock:
            await self.write(packet)

    async def _tcp(self, port: str) -> None:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", int(port))
        except OSError:
            self._link.send(b"CLSE", 0, self._ids[1])
            return
        self._link.send(b"OKAY", *self._ids)
        try:
            sending = asyncio.create_task(self._pump(self._incoming.read, lambda data: _drain(writer, data)))
            receiving = asyncio.create_task(self._pump(reader.read, self.write))
            try:
                await asyncio.wait((sending, receiving), return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in (sending, receiving):
                    task.cancel()
                await asyncio.gather(sending, receiving, return_exceptions=True)
        finally:
            writer.close()

    async def _pump(self, read: Callable[[int], Awaitable[bytes]], put: Callable[[bytes], Awaitable[None]]) -> None:
        while data := await read(_MAX_DATA):
            await put(data)

    async def _sync(self, _: str) -> None:
        self._link.send(b"OKAY", *self._ids)
        while True:
            request = await self._incoming.readexactly(4)
            (size,) = struct.unpack("<I", await self._incoming.readexactly(4))
            if request == b"QUIT":
                return
            name = (await self._incoming.readexactly(size)).decode()
            if request == b"STAT":
                await self.write(b"STAT" + self._link.phone.stat(name))
            elif request == b"SEND":
                await self._receive_file(name)
            elif request == b"RECV":
                await self._send_file(self._link.phone.load(name))
            else:
                await self.write(_result(b"FAIL", f"unknown request {request!r}"))

    async def _receive_file(self, name: str) -> None:
        target, _, mode = name.rpartition(",")
        content = bytearray()
        while (word := await self._incoming.readexactly(4)) == b"DATA":
            (size,) = struct.unpack("<I", await self._incoming.readexactly(4))
            content += await self._incoming.readexactly(size)
        await self._incoming.readexactly(4)  # of DONE: the time
        assert word == b"DONE"
        trouble = self._link.phone.store(target, bytes(content), int(mode))
        await self.write(_result(b"FAIL", f"couldn't create file: {trouble}") if trouble else b"OKAY" + bytes(4))

    async def _send_file(self, content: bytes) -> None:
        for start in range(0, len(content), 64 * 1024):
            piece = content[start : start + 64 * 1024]
            await self.write(b"DATA" + struct.pack("<I", len(piece)) + piece)
        await self.write(b"DONE" + bytes(4))


async def _drain(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(data)
    await writer.drain()


def _packet(packet_id: int, data: bytes) -> bytes:
    return struct.pack("<BI", packet_id, len(data)) + data


def _result(word: bytes, text: str) -> bytes:
    return word + struct.pack("<I", len(text.encode())) + text.encode()
