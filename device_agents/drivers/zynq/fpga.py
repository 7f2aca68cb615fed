"""Linux's FPGA manager: loads a configuration into the fabric and trusts only the state read back afterwards.

Vendor kernels (linux-xlnx) have the attribute `firmware` beside `state`: a file of /lib/firmware is loaded when its
name is written, and the write returns when that is done. Kernels without it load through a device-tree overlay in
configfs, if they have that; mainline has neither, which is reported.
https://xilinx-wiki.atlassian.net/wiki/spaces/A/pages/18841645/Solution+Zynq+PL+Programming+With+FPGA+Manager and
Documentation/ABI/testing/sysfs-class-fpga-manager.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import signal
import sys
from pathlib import Path

from device_agents.drivers.zynq import writer as fpga_writer
from device_agents.drivers.zynq.overlay import make_overlay
from fleet.base import signals
from fleet.errors import DiskFull, ProgrammingFailed

logger = logging.getLogger(__name__)

OPERATING = "operating"
_PARTIAL_FLAG = 1
_DIES_SEC = 2.0
"""Time for a killed writer to end; one that hangs in the kernel never does."""

_FILE_PREFIX = "fleet-"
_OVERLAY = "fleet"
_OVERLAY_FILE = f"{_FILE_PREFIX}overlay.dtbo"
NAME_DIGITS = 16
"""Hexadecimal digits in the names of our files, by which those of a killed agent are recognised."""

_REMEDIES = {
    errno.EINVAL: "the kernel takes it for no bitstream of this chip; see dmesg",
    errno.ENOENT: "the kernel does not find the file; it looks in /lib/firmware of its own root",
    errno.ETIMEDOUT: "the fabric does not answer; power-cycle the board if it happens again",
    errno.EBUSY: "another process programs the fabric; wait for it",
    errno.EACCES: "run the agent as root, or give its group the file with a udev rule",
    errno.EPERM: "run the agent as root, or give its group the file with a udev rule",
    errno.ENODEV: "the FPGA manager's driver is gone; see dmesg",
    errno.ENOMEM: "the kernel has no contiguous memory of this size; free some, or raise cma= on its command line",
    errno.EIO: "the fabric refused it; see dmesg",
}


class FpgaManager:
    """One fabric. `root` is "/" except in tests."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._attributes = root / "sys/class/fpga_manager/fpga0"
        self._firmware_dir = root / "lib/firmware"
        self._overlays = root / "sys/kernel/config/device-tree/overlays"
        self._device_tree = root / "sys/firmware/devicetree/base"
        self._hanging: asyncio.subprocess.Process | None = None

    @property
    def exists(self) -> bool:
        """True if the kernel has an FPGA manager."""
        return (self._attributes / "state").exists()

    @property
    def state(self) -> str:
        """State in the kernel: "operating", "unknown", "write error", ...; empty without a manager."""
        try:
            return (self._attributes / "state").read_text().strip()
        except OSError:
            return ""

    @property
    def is_hanging(self) -> bool:
        """True while an abandoned write is still blocked in the kernel."""
        return self._hanging is not None and self._hanging.returncode is None

    def obstacle(self) -> str:
        """Return why this process cannot program the fabric, with the remedy; empty if it can."""
        if not self.exists:
            return f"{self._attributes} is not there; the kernel needs CONFIG_FPGA and the board's FPGA manager"
        if self._has_firmware_attribute:
            needed = [self._attributes / "firmware", self._attributes / "flags"]
        elif self._overlays.is_dir():
            needed = [self._overlays]
        else:
            return (
                "this kernel cannot be told to program the fabric: it has neither the FPGA manager's attribute "
                "'firmware' (linux-xlnx has) nor device-tree overlays in /sys/kernel/config; boot one that has"
            )
        for path in needed:
            if path.exists() and not os.access(path, os.W_OK):
                return (
                    f"no permission to write {path}; run the agent as root, or give its group the file by a udev rule"
                )
        folder = self._firmware_dir if self._firmware_dir.exists() else self._firmware_dir.parent
        if not os.access(folder, os.W_OK):
            return f"no permission to write {folder}; run the agent as root, or give its group the folder"
        return ""

    def clear(self) -> None:
        """Remove the firmware files of agents that were killed while programming."""
        for pattern in (f"{_FILE_PREFIX}{'[0-9a-f]' * NAME_DIGITS}.bin", _OVERLAY_FILE):
            for path in self._firmware_dir.glob(pattern):
                with contextlib.suppress(OSError):
                    path.unlink()

    async def load(self, image: bytes, *, name: str, is_partial: bool, timeout_sec: float) -> None:
        """Load a configuration and return when the fabric runs it: `stage`, then `start`."""
        await self.stage(image, name=name)
        await self.start(name=name, is_partial=is_partial, timeout_sec=timeout_sec)

    async def stage(self, image: bytes, *, name: str) -> None:
        """Write a configuration to the kernel's firmware folder. The fabric keeps its current one.

        Args:
            image: see `bitstream.Bitstream.image`.
            name: name of the file that the kernel reads; letters, digits, dashes.

        Raises:
            ProgrammingFailed: this process cannot program the fabric.
            DiskFull: no room for the file.
        """
        if self.is_hanging:
            raise ProgrammingFailed("an earlier write to the FPGA manager still hangs in the kernel; reboot the board")
        obstacle = self.obstacle()
        if obstacle:
            raise ProgrammingFailed(obstacle)
        await asyncio.to_thread(self._put_firmware, f"{_FILE_PREFIX}{name}.bin", image)

    async def start(self, *, name: str, is_partial: bool, timeout_sec: float) -> None:
        """Load the staged bitstream and return once the fabric runs it. Afterwards its file is removed.

        Raises:
            ProgrammingFailed: it does not run; `state` names the result.
        """
        firmware = f"{_FILE_PREFIX}{name}.bin"
        try:
            async with asyncio.timeout(timeout_sec):
                if self._has_firmware_attribute:
                    await self._load_by_attribute(firmware, is_partial)
                else:
                    await self._load_by_overlay(firmware, is_partial)
        except TimeoutError:
            raise ProgrammingFailed(
                f"the fabric did not come up within {timeout_sec:g} s (state: {self.state or 'unknown'}); "
                "power-cycle the board if it happens again"
            ) from None
        finally:
            with contextlib.suppress(OSError):
                (self._firmware_dir / firmware).unlink()
        state = self.state
        if state != OPERATING:
            raise ProgrammingFailed(
                f"the kernel took the bitstream, but the fabric's state is {state!r} instead of 'operating'; see dmesg"
            )

    @property
    def _has_firmware_attribute(self) -> bool:
        return (self._attributes / "firmware").exists()

    def _put_firmware(self, name: str, image: bytes) -> None:
        path = self._firmware_dir / name
        try:
            self._firmware_dir.mkdir(parents=True, exist_ok=True)
            path.write_bytes(image)
        except OSError as error:
            # A partial image is useless and takes space.
            with contextlib.suppress(OSError):
                path.unlink()
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise DiskFull(f"no room for a bitstream of {len(image)} bytes in {self._firmware_dir}") from error
            raise ProgrammingFailed(_failed(path, error.errno or 0)) from error

    async def _load_by_attribute(self, firmware: str, is_partial: bool) -> None:
        await self._write(self._attributes / "flags", f"{_PARTIAL_FLAG if is_partial else 0}\n")
        await self._write(self._attributes / "firmware", f"{firmware}\n")

    async def _load_by_overlay(self, firmware: str, is_partial: bool) -> None:
        folder = self._overlays / _OVERLAY
        blob = make_overlay(_region_path(self._device_tree), firmware, is_partial=is_partial)
        await asyncio.to_thread(self._put_firmware, _OVERLAY_FILE, blob)
        try:
            if folder.exists():
                folder.rmdir()  # in configfs this removes the overlay
            folder.mkdir()
        except OSError as error:
            raise ProgrammingFailed(_failed(folder, error.errno or 0)) from error
        try:
            await self._write(folder / "path", _OVERLAY_FILE)
        finally:
            with contextlib.suppress(OSError):
                (self._firmware_dir / _OVERLAY_FILE).unlink()
        status = (folder / "status").read_text().strip()
        if status != "applied":
            raise ProgrammingFailed(f"the kernel did not apply the overlay (status: {status}); see dmesg")

    async def _write(self, path: Path, text: str) -> None:
        # Isolated and without site: starts in a few milliseconds, and ignores the user's environment.
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-I", "-S", fpga_writer.__file__, str(path), text, stderr=asyncio.subprocess.DEVNULL
        )
        try:
            number = await process.wait()
        except asyncio.CancelledError:
            await self._give_up(process)
            raise
        if number:
            raise ProgrammingFailed(_failed(path, number, self.state))

    async def _give_up(self, process: asyncio.subprocess.Process) -> None:
        signals.send(process, signal.SIGKILL)
        try:
            await asyncio.wait_for(process.wait(), _DIES_SEC)
        except TimeoutError:
            self._hanging = process
            logger.error("a write to the FPGA manager hangs in the kernel", extra={"pid": process.pid})


def _failed(path: Path, number: int, state: str = "") -> str:
    name = errno.errorcode.get(number, f"code {number}")
    remedy = _REMEDIES.get(number, "see dmesg")
    detail = f", state {state!r}" if state else ""
    return f"writing {path} failed with {name}{detail}: {remedy}"


def _region_path(device_tree: Path) -> str:
    """Return the path of the region for full bitstreams.

    Raises:
        ProgrammingFailed: the device tree has none.
    """
    for compatible in sorted(device_tree.glob("*/compatible")):
        with contextlib.suppress(OSError):
            if b"fpga-region" in compatible.read_bytes().split(b"\0"):
                return f"/{compatible.parent.name}"
    raise ProgrammingFailed(f"no node below {device_tree} is compatible with 'fpga-region'; the board's tree needs one")
