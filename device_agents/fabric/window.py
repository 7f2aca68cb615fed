"""Maps the register window of a fabric (/dev/uioN, or a range of /dev/mem) and memory of u-dma-buf.

https://docs.kernel.org/driver-api/uio-howto.html describes the files of UIO devices.

Each access is one 32-bit load or store, whatever is read or written: wider ones, as memcpy makes them, are faults or
nonsense to most designs. Assigning to and slicing an array of c_uint32 does that.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
from dataclasses import dataclass
from pathlib import Path

from device_agents.fabric.description import WORD_BYTES, Window
from device_agents.fabric.program import FabricDead

_UIO_CLASS = Path("sys/class/uio")
_MEMORY_CLASS = Path("sys/class/u-dma-buf")
_UIO_REMEDY = (
    "run the agent as root, or give its user the device, as by the udev rule "
    '\'SUBSYSTEM=="uio", GROUP="uio", MODE="0660"\' and `adduser USER uio`'
)
_MEM_REMEDY = "run the agent as root, or use UIO (window: {uio: NAME}), which needs no more than a udev rule"


class MappedWindow:
    """A window mapped into this process, until the process ends."""

    def __init__(self, path: Path, size_bytes: int, offset: int, remedy: str) -> None:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_SYNC | os.O_CLOEXEC)
        except PermissionError as error:
            raise FabricDead(f"no permission for {path}, the register window; {remedy}") from error
        except OSError as error:
            raise FabricDead(f"the register window {path} cannot be opened: {error.strerror}") from error
        try:
            mapped = mmap.mmap(descriptor, size_bytes, offset=offset)
        except (OSError, ValueError) as error:
            raise FabricDead(
                f"{size_bytes:#x} bytes of {path} cannot be mapped ({error}); the window is smaller than described"
            ) from error
        finally:
            os.close(descriptor)
        self._words = (ctypes.c_uint32 * (size_bytes // WORD_BYTES)).from_buffer(mapped)

    def read(self, offset: int) -> int:
        """Read one word."""
        return self._words[offset // WORD_BYTES]

    def write(self, offset: int, value: int) -> None:
        """Write one word."""
        self._words[offset // WORD_BYTES] = value

    def read_bytes(self, offset: int, size_bytes: int) -> bytes:
        """Read consecutive words."""
        first = offset // WORD_BYTES
        words = self._words[first : first + size_bytes // WORD_BYTES]
        return struct.pack(f"<{len(words)}I", *words)

    def write_bytes(self, offset: int, content: bytes) -> None:
        """Write consecutive words."""
        first, count = offset // WORD_BYTES, len(content) // WORD_BYTES
        self._words[first : first + count] = list(struct.unpack(f"<{count}I", content))


@dataclass(frozen=True, slots=True, kw_only=True)
class MappedMemory:
    """Contiguous memory mapped into this process, and its address for the design."""

    address: int
    bus: MappedWindow


@dataclass(frozen=True, slots=True)
class MappedPlaces:
    """Opens the window and memory of a description.

    A FabricDead names the reason: no device of that name, smaller than described, or closed to this user.
    """

    described: Window
    root: Path = Path("/")
    """Folder of /dev and /sys."""

    def window(self) -> MappedWindow:
        """Map the window."""
        window, root = self.described, self.root
        if window.mem is not None:
            return MappedWindow(root / "dev/mem", window.size_bytes, window.mem, _MEM_REMEDY)
        name = _uio_device(window.uio, root)
        size = _number(root / _UIO_CLASS / name / "maps/map0/size")
        if size is not None and size < window.size_bytes:
            raise FabricDead(
                f"/dev/{name} is {size:#x} bytes, but the description says {window.size_bytes:#x}; correct window: "
                "size_bytes, or the reg property in the device tree"
            )
        return MappedWindow(root / "dev" / name, window.size_bytes, 0, _UIO_REMEDY)

    def memory(self, name: str, size_bytes: int) -> MappedMemory:
        """Map the contiguous memory of that name."""
        folder = self.root / _MEMORY_CLASS / name
        address, size = _number(folder / "phys_addr"), _number(folder / "size")
        if address is None or size is None:
            raise FabricDead(
                f"there is no contiguous memory {name} in /sys/class/u-dma-buf; load the kernel module u-dma-buf with "
                f"{name}={size_bytes}"
            )
        if size < size_bytes:
            raise FabricDead(
                f"{name} has {size} bytes, but the buffers in it need {size_bytes}; load u-dma-buf with "
                f"{name}={size_bytes}"
            )
        bus = MappedWindow(self.root / "dev" / name, size_bytes, 0, _UIO_REMEDY.replace('"uio"', '"u-dma-buf"'))
        return MappedMemory(address=address, bus=bus)


def list_windows(root: Path = Path("/")) -> str:
    """Describe the register windows of this machine and whether this process may open them; empty: there are none."""
    shown = []
    for entry in sorted((root / _UIO_CLASS).glob("uio*")):
        path = root / "dev" / entry.name
        size = _number(entry / "maps/map0/size")
        text = f"{_text(entry / 'name') or 'unnamed'} ({entry.name}" + (f", {size:#x} bytes)" if size else ")")
        is_open = os.access(path, os.R_OK | os.W_OK, effective_ids=True)
        shown.append(text if is_open else f"{text}: no permission for {path}; {_UIO_REMEDY}")
    return "; ".join(shown)


def _uio_device(wanted: str | int | None, root: Path) -> str:
    """Return "uioN" for a number, or for a UIO device's name in the kernel."""
    if isinstance(wanted, int):
        if not (root / "dev" / f"uio{wanted}").exists():
            raise FabricDead(_missing(f"/dev/uio{wanted}"))
        return f"uio{wanted}"
    names = {}
    for entry in sorted((root / _UIO_CLASS).glob("uio*")):
        names[_text(entry / "name")] = entry.name
    if wanted not in names:
        shown = ", ".join(sorted(names)) or "none"
        raise FabricDead(_missing(f"UIO device called {wanted!r} (found: {shown})"))
    return names[str(wanted)]


def _missing(what: str) -> str:
    return (
        f"there is no {what}; load uio_pdrv_genirq and give the design a node with "
        'compatible = "generic-uio" in the device tree (or its overlay)'
    )


def _number(path: Path) -> int | None:
    text = _text(path)
    return int(text, 0) if text else None


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
