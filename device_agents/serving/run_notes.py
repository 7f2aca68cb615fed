"""Notes which programs run, in a file that outlives the agent, so that the next one knows them.

`running` in a directory that only the agent's user can read: a record of the machine's boot, then one per device. They
are written in place, into the kernel's cache. That takes microseconds, works on a full disk, and survives kill -9 of
the agent. A machine that goes down loses the last half minute, because a durable write takes longer than most trials.
So only after it went down under an agent are programs noted durably, for an hour: one that takes the machine down again
is known from then on.

An agent that ends in order removes the file.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
import zlib
from collections.abc import Callable
from pathlib import Path

from fleet.base.machine import read_text
from fleet.domain.poison import DIGEST

logger = logging.getLogger(__name__)

_RECORD_BYTES = 256
"""A part of a disk's sector, which is written whole or not at all."""
_MAX_RECORDS = 4_096
_BOOT = "boot"
"""First word of the first record."""
_DURABLE_SEC = 3_600.0
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
"""Changes with each start of the machine."""


class RunNotes:
    """The programs that run on the devices of an agent."""

    def __init__(
        self,
        path: Path | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        boot_id: str = "",
        sync: Callable[[int], None] = os.fdatasync,
    ) -> None:
        """Args: path: of the file; None: nothing is noted."""
        self._path = path
        self._clock = clock
        self._boot_id = boot_id or read_text(_BOOT_ID).strip()
        self._sync = sync
        self._file: int | None = None
        self._records: dict[str, int] = {}
        """Offsets by device [bytes]."""
        self._durable_until_sec = 0.0

    def open(self) -> dict[str, str]:
        """Begin a new file; return the programs that ran when an earlier agent ended without order, with a device each.

        Empty without a file that can be written, too: such notes would be found again by the next agent.
        """
        if self._path is None:
            return {}
        try:
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            former_boot_id, found = _read(self._file)
            os.ftruncate(self._file, 0)
            self._write(0, _BOOT, self._boot_id)
            self._sync(self._file)
        except OSError as error:
            self._give_up(error)
            return {}
        if former_boot_id not in ("", self._boot_id):
            self._durable_until_sec = self._clock() + _DURABLE_SEC
            logger.warning("the machine went down under the agent: programs are noted durably for an hour")
        return found

    async def begin(self, device_name: str, digest: str) -> None:
        """Note that a program is about to run."""
        if self._file is None:
            return
        if device_name not in self._records:
            if len(self._records) >= _MAX_RECORDS - 1:
                return
            self._records[device_name] = (len(self._records) + 1) * _RECORD_BYTES
        try:
            self._write(self._records[device_name], digest, device_name)
            if self._clock() < self._durable_until_sec:
                await asyncio.to_thread(self._sync, self._file)
        except OSError as error:
            self._give_up(error)

    def end(self, device_name: str) -> None:
        """Note that the program of a device has ended. Idempotent."""
        if self._file is None or device_name not in self._records:
            return
        try:
            self._write(self._records[device_name])
        except OSError as error:
            self._give_up(error)

    def close(self) -> None:
        """Forget all programs, and note no more. Idempotent."""
        descriptor, self._file = self._file, None
        if descriptor is None or self._path is None:
            return
        with contextlib.suppress(OSError):
            os.ftruncate(descriptor, 0)
        with contextlib.suppress(OSError):
            self._path.unlink()
        os.close(descriptor)

    def _write(self, offset: int, *words: str) -> None:
        if self._file is not None:
            os.pwrite(self._file, _record(*words), offset)

    def _give_up(self, error: OSError) -> None:
        logger.warning("cannot note running programs", extra={"path": str(self._path), "error": str(error)})
        self.close()


def _record(*words: str) -> bytes:
    text = " ".join(words).encode()
    return (b"%s %08x" % (text, zlib.crc32(text)) if words else b"").ljust(_RECORD_BYTES, b"\0")


def _read(file: int) -> tuple[str, dict[str, str]]:
    """Return the boot id, and the devices by digest. Damaged records are skipped."""
    content = os.pread(file, _MAX_RECORDS * _RECORD_BYTES, 0)
    boot_id, found, damaged = "", {}, 0
    for offset in range(0, len(content), _RECORD_BYTES):
        record = content[offset : offset + _RECORD_BYTES].rstrip(b"\0")
        words = record.decode(errors="replace").split(" ")[:-1]
        if not record:
            continue
        if len(words) != 2 or _record(*words).rstrip(b"\0") != record:
            damaged += 1
        elif words[0] == _BOOT:
            boot_id = words[1]
        elif DIGEST.fullmatch(words[0]):
            found[words[0]] = words[1]
    if damaged:
        logger.warning("notes of running programs are damaged", extra={"records": damaged})
    return boot_id, found
