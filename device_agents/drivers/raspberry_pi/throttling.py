"""Detects throttling of a Raspberry Pi, from the best of three sources.

- get_throttled in sysfs, in the foundation's kernels: the firmware's word as a hexadecimal number;
- vcgencmd, which asks the firmware itself and takes some milliseconds: between measurements, never around one;
- the hwmon driver rpi_volt, in any kernel: under-voltage alone.

The word's low bits are the current conditions, the bits sixteen places above those since boot:
https://www.raspberrypi.com/documentation/computers/os.html#get_throttled
"""

from __future__ import annotations

import asyncio
import re
import shutil
import time
from pathlib import Path

from device_agents.machine.terminate import end
from fleet.base.machine import read_text

_REASONS = {0: "under-voltage", 1: "frequency-capped", 2: "throttled", 3: "soft-temperature-limit"}
"""Meaning of each bit."""

_SINCE_BOOT = 16
_SYSFS = "sys/devices/platform/soc*/soc*firmware/get_throttled"
_VCGENCMD_WORD = re.compile(r"throttled=0x([0-9a-fA-F]+)")
_VCGENCMD_SEC = 2.0
_SILENCE_SEC = 60.0
"""Pause after firmware did not answer: each attempt may leave a process hanging in the kernel."""


def reasons_in(word: int, before: int = 0) -> list[str]:
    """Parse a word: the current conditions, and those that came and went since the word `before`."""
    fresh = (word & ~before) >> _SINCE_BOOT
    return [reason for bit, reason in _REASONS.items() if (word | fresh) >> bit & 1]


class Throttling:
    """Reads one board. `root` is "/" except in tests."""

    def __init__(self, root: Path = Path("/"), *, vcgencmd_sec: float = _VCGENCMD_SEC) -> None:
        self._root = root
        self._vcgencmd_sec = vcgencmd_sec
        self._sysfs: Path | None = None
        self._alarm: Path | None = None
        self._vcgencmd: str | None = None
        self._word: int | None = None
        self._asked: int | None = None
        self._silent_until_sec = 0.0

    def open(self) -> None:
        """Choose the source."""
        self._sysfs = next(iter(sorted(self._root.glob(_SYSFS))), None)
        self._alarm = next(
            (
                name.with_name("in0_lcrit_alarm")
                for name in sorted((self._root / "sys/class/hwmon").glob("hwmon*/name"))
                if read_text(name).strip() == "rpi_volt"
            ),
            None,
        )
        folders = ("usr/bin", "opt/vc/bin")
        self._vcgencmd = shutil.which("vcgencmd", path=":".join(str(self._root / folder) for folder in folders))
        # Ignore conditions between boot and now.
        self._word = self._read_sysfs()

    @property
    def source(self) -> str:
        """Name of the chosen source."""
        if self._sysfs is not None:
            return "sysfs"
        if self._vcgencmd is not None:
            return "vcgencmd"
        return "hwmon (under-voltage only)" if self._alarm is not None else "nothing"

    def read(self) -> list[str]:
        """Return the reasons for throttling; empty if there are none, or none are known."""
        word = self._read_sysfs() if self._sysfs is not None else self._asked
        if word is not None:
            before = word if self._word is None else self._word
            self._word = word
            return reasons_in(word, before)
        if self._alarm is not None and read_text(self._alarm).strip() == "1":
            return [_REASONS[0]]
        return []

    async def ask_firmware(self) -> None:
        """Read the throttling state with vcgencmd, if no faster source exists. Never fails: None means unknown."""
        if self._sysfs is not None or self._vcgencmd is None or time.monotonic() < self._silent_until_sec:
            return
        try:
            process = await asyncio.create_subprocess_exec(
                self._vcgencmd,
                "get_throttled",
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
            )
        except OSError:
            self._asked = None
            return
        try:
            async with asyncio.timeout(self._vcgencmd_sec):
                output, _ = await process.communicate()
        except TimeoutError:
            output = b""
            self._silent_until_sec = time.monotonic() + _SILENCE_SEC
        finally:
            await end(process)
        found = _VCGENCMD_WORD.search(output.decode(errors="replace"))
        self._asked = int(found[1], 16) if found else None

    def _read_sysfs(self) -> int | None:
        if self._sysfs is None:
            return None
        try:
            return int(read_text(self._sysfs).strip() or "?", 16)
        except ValueError:
            return None
