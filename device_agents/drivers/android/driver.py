"""Driver for Android phones over adb: one agent on the host, one device per phone. Needs no app and no root.

    devices:
      - driver: android              # all phones that adb lists, also those plugged in later
        tvm_rpc_dir: ~/android-tvm   # tvm_rpc, libtvm_runtime.so, libtvm_ffi.so, libc++_shared.so, ... for the phone;
                                     # default: ~/.local/share/tvm-fleet/android/<ABI>, as .../arm64-v8a

      - driver: android              # one phone with settings of its own
        serial: R58M12ABCDE
        name: lab-phone              # default: <host>-<serial>
        device_type: opencl          # or cpu; opencl needs libtvm_runtime_opencl.so, too
        cores: big                   # or little, all: cores of CPU kernels
        tvm_rpc_dir: ~/android-tvm
        target: adreno-6xx           # default: from the phone's facts; a board of `fleet targets`, or a TVM target
        library_path: [/vendor/lib64]  # before ours; default: /vendor/lib64 for opencl, else nothing
        adb: /opt/platform-tools/adb   # default: adb on PATH
        adb_server_port: 5037        # default: adb's own
        emulated: false              # true: its times are never stored as a board's

A phone that is away, unauthorized, offline, booting or full is listed with the reason, and comes back by itself. The
server runs on the phone only while a worker uses it. https://developer.android.com/tools/adb
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Self

from device_agents.driver import Driver, Health, StraySweeper, WorkerSpec
from device_agents.drivers.android.adb import MISSING, PhoneList, phones_of
from device_agents.drivers.android.config import AndroidConfig, device_id, parse_entry
from device_agents.drivers.android.facts import (
    FACTS_COMMAND,
    READINGS_COMMAND,
    PhoneFacts,
    PhoneReadings,
    parse_facts,
    parse_readings,
)
from device_agents.drivers.android.inventory import inventory_of, target_of
from device_agents.drivers.android.server import FilesMissing, PhoneServer, ServerFiles, read_files, usual_folder
from fleet.domain.devices import Inventory, Telemetry
from fleet.domain.tvm_versions import check_versions
from fleet.errors import ConfigError, DeviceError, DeviceUnreachable

logger = logging.getLogger(__name__)

_FIRST_LOOK_SEC = 10.0
_POLL_SEC = 5.0
_LOW_DISK_BYTES = 16 * 1024**2
_SESSION_SEC = 300
"""The server on the phone ends a session after this time, so that a hung kernel cannot heat the phone for ever."""

_STATES = {
    "unauthorized": "the phone does not trust this machine: accept the RSA key dialog on its screen",
    "authorizing": "the phone is asking whether to trust this machine: accept the RSA key dialog on its screen",
    "offline": "adb says that the phone is offline: unlock it, plug it in again, or run: adb reconnect offline",
    "recovery": "the phone is in recovery mode: reboot it",
    "sideload": "the phone is in sideload mode: reboot it",
    "bootloader": "the phone is in its bootloader: reboot it",
}
_AWAY = "the phone is not connected: plug it in, and switch on USB debugging in its developer options"


class AndroidDriver(Driver):
    """One phone."""

    kind = "android"
    settings = AndroidConfig
    preload = "device_agents.runtimes.tvm"
    serves_one_worker = True
    may_be_unplugged = True
    has_finder = True

    def __init__(self, device_id: str, config: AndroidConfig, host_name: str) -> None:
        super().__init__(device_id)
        self._config = config
        self._host_name = host_name
        self._serial = config.serial or ""
        self._adb = config.server()
        self._phones: PhoneList | None = None
        self._server = PhoneServer(self._adb, self._serial)
        self._facts: PhoneFacts | None = None
        self._files: ServerFiles | None = None
        self._readings = PhoneReadings()
        self._ready_for = 0
        """Number of the arrival after which the phone was set up; 0: it is not set up."""

        self._prepared_for = 0
        """Number of the arrival after which the server was started."""

        self._trouble = "the phone is being set up"
        self._tending: asyncio.Task[None] | None = None
        self._set_up_once = asyncio.Event()

    @classmethod
    def from_config(cls, values: Mapping[str, object], *, where: str, host_name: str) -> list[Self]:
        config = parse_entry(values, where)
        return [] if config.serial is None else [cls(device_id(config, host_name), config, host_name)]

    @classmethod
    def finder(cls, values: Mapping[str, object], *, where: str, host_name: str) -> PhoneFinder | None:
        config = parse_entry(values, where)
        return PhoneFinder(config, host_name) if config.serial is None else None

    @classmethod
    def find(cls, root: Path = Path("/")) -> list[dict[str, object]]:
        """Find phones. Starts adb only if a phone exposes the USB interface of USB debugging."""
        return [{}] if shutil.which("adb") and has_adb_interface(root) else []

    async def open(self, sweeper: StraySweeper) -> None:
        """Start watching for the phone, which need not be connected yet."""
        await super().open(sweeper)
        self._tending = asyncio.create_task(self._tend(), name=f"tend-{self._serial}")
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._set_up_once.wait(), _FIRST_LOOK_SEC)

    async def prepare(self) -> None:
        """Start a fresh server on the phone, after killing leftovers of the last worker."""
        self._check_open()
        health = self._probe()
        files, facts = self._files, self._facts
        if not health.is_healthy or files is None or facts is None:
            raise DeviceUnreachable(f"{self.name}: {health.reason or self._trouble}")
        self._prepared_for = self._ready_for
        try:
            await self._server.stop()
            await self._server.kill_all()
            cores = facts.cores(self._config.cores)
            await self._server.start(
                files,
                mask=0 if self._config.cores == "all" else sum(1 << core for core in cores),
                threads=len(cores),
                library_path="".join(f"{path}:" for path in self._library_path(facts)),
                device_type=self._config.device_type,
            )
        except DeviceUnreachable as error:
            # Grant no further lease until the phone has been set up again.
            self._trouble, self._ready_for = str(error), 0
            raise DeviceUnreachable(f"{self.name}: {error}") from error

    @property
    def is_prepared(self) -> bool:
        """False once the phone has disconnected, which removes the forwarded port of its server."""
        arrival = self._opened(self._phones).arrivals.get(self._serial, 0)
        return self._server.is_running and arrival == self._prepared_for

    async def reset(self) -> None:
        await super().reset()
        await self._server.stop()
        if self._probe().is_healthy:
            await self._server.kill_all()

    async def close(self) -> None:
        was_open = self._state == "open"
        await super().close()
        if self._tending is not None:
            self._tending.cancel()
            await asyncio.gather(self._tending, return_exceptions=True)
        if not was_open or self._phones is None:
            return
        await self._server.stop()
        if self._phones.state(self._serial) == "device":
            with contextlib.suppress(DeviceError):
                await self._server.kill_all()
        await self._phones.close()

    async def _find(self) -> None:
        check_versions()
        if shutil.which(self._config.adb) is None:
            raise DeviceError(MISSING.format(name=self._config.adb))
        self._phones = phones_of(self._adb)
        self._phones.claimed.add(self._serial)
        await self._phones.open(_FIRST_LOOK_SEC)

    async def _tend(self) -> None:
        """Set the phone up whenever it connects, and read its state while it is connected."""
        phones = self._opened(self._phones)
        while True:
            arrival = phones.arrivals.get(self._serial, 0)
            try:
                if phones.state(self._serial) == "device":
                    if arrival != self._ready_for:
                        await self._set_up()
                        self._ready_for, self._trouble = arrival, ""
                    await self._read()
            except (DeviceError, FilesMissing, ValueError, ConfigError) as error:
                self._ready_for, self._trouble = 0, str(error)
            except Exception as error:  # outermost loop: if it ended, the phone would no longer be watched
                trouble = f"setting the phone up failed: {error or type(error).__name__}"
                if trouble != self._trouble:
                    logger.exception("phone not set up", extra={"device": self.name})
                self._ready_for, self._trouble = 0, trouble
            self._set_up_once.set()
            await phones.news(_POLL_SEC)

    async def _set_up(self) -> None:
        self._trouble = "the phone is being set up"
        facts = parse_facts(await self._adb.shell(self._serial, FACTS_COMMAND))
        if not facts.is_booted:
            raise DeviceUnreachable("the phone is booting")
        if facts != self._facts:
            self._facts = facts
            self.changed()
        facts.cores(self._config.cores)
        target_of(self._config, facts)
        # Hashing 30 MB takes a moment.
        folder = self._config.tvm_rpc_dir or usual_folder(facts.abi)
        self._files = await asyncio.to_thread(read_files, folder, arch=facts.arch, device_type=self._config.device_type)
        await self._read()
        await self._server.kill_all()
        await self._server.put(self._files, self._readings.free_bytes)
        logger.info("phone ready", extra={"device": self.name, "model": facts.model})

    async def _read(self) -> None:
        self._readings = parse_readings(await self._adb.shell(self._serial, READINGS_COMMAND))

    def _probe(self) -> Health:
        phones = self._opened(self._phones)
        state = phones.state(self._serial)
        if phones.trouble:
            return Health(is_healthy=False, reason=phones.trouble)
        if state != "device":
            # adb's "no permissions (...); see [...]" already names the remedy.
            return Health(is_healthy=False, reason=_AWAY if state is None else _STATES.get(state, f"adb: {state}"))
        if self._trouble or self._ready_for != phones.arrivals.get(self._serial):
            return Health(is_healthy=False, reason=self._trouble or "the phone is being set up")
        free = self._readings.free_bytes
        if free is not None and free < _LOW_DISK_BYTES:
            reason = f"/data of the phone is full, {free // 1024} kB are free; remove something there"
            return Health(is_healthy=False, reason=reason)
        return Health()

    def _inventory(self) -> Inventory:
        return inventory_of(self._config, self._facts, kind=self.kind, host_name=self._host_name)

    def _worker_spec(self) -> WorkerSpec:
        return WorkerSpec(
            runtime="device_agents.runtimes.tvm_rpc.runtime:RpcRuntime",
            settings={
                "host": "127.0.0.1",
                "port": self._server.local_port,
                "key": self._server.key,
                "device_type": self._config.device_type,
                "session_sec": _SESSION_SEC,
            },
            needs_network=True,
        )

    def _telemetry(self) -> Telemetry:
        return replace(self._readings.telemetry, read_at_sec=time.time())

    def _library_path(self, facts: PhoneFacts) -> list[str]:
        if self._config.library_path or self._config.device_type != "opencl":
            return self._config.library_path
        return ["/vendor/lib64" if facts.arch in ("aarch64", "x86_64") else "/vendor/lib"]


class PhoneFinder:
    """Makes a driver for each phone that has no entry of its own."""

    preload = AndroidDriver.preload

    def __init__(self, config: AndroidConfig, host_name: str) -> None:
        self._config = config
        self._host_name = host_name
        self._phones: PhoneList | None = None
        self._known: set[str] = set()

    async def look(self) -> list[Driver]:
        """Return drivers for new phones."""
        if self._phones is None:
            if shutil.which(self._config.adb) is None:
                raise DeviceError(MISSING.format(name=self._config.adb))
            self._phones = phones_of(self._config.server())
            await self._phones.open(_FIRST_LOOK_SEC)
        fresh = sorted(self._fresh(self._phones))
        self._known.update(fresh)
        configs = [replace(self._config, serial=serial) for serial in fresh]
        return [AndroidDriver(device_id(config, self._host_name), config, self._host_name) for config in configs]

    async def wait(self) -> None:
        """Wait until there are phones that `look` has not returned, including those that came before this call."""
        while self._phones is not None and not self._fresh(self._phones):
            await self._phones.news(None)

    async def close(self) -> None:
        phones, self._phones = self._phones, None
        if phones is not None:
            await phones.close()

    def _fresh(self, phones: PhoneList) -> set[str]:
        return phones.links.keys() - self._known - phones.claimed


def has_adb_interface(root: Path) -> bool:
    """Tell whether a USB interface is adb's: class ff, subclass 42, protocol 01."""
    for interface in (root / "sys/bus/usb/devices").glob("*:*"):
        with contextlib.suppress(OSError):
            names = ("bInterfaceClass", "bInterfaceSubClass", "bInterfaceProtocol")
            if [(interface / name).read_text().strip() for name in names] == ["ff", "42", "01"]:
                return True
    return False
