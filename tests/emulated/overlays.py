"""Simulated device-tree overlays in configfs: a folder that programs the fabric, as a FUSE file system.

    with overlays(root) as applied:     # root/sys/kernel/config/device-tree/overlays, beside an FPGA manager without
        ...                             # the attribute "firmware", with a plain file as its state
        assert applied.read() == [("fleet", "/fpga-region", False, image)]

As in the kernel, a folder appears with its files, the write to `path` returns when the region is programmed, with the
errno of a failure, and removing the folder takes the overlay off.
"""

from __future__ import annotations

import errno
import json
import signal
import stat
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from device_agents.machine import linux
from fleet.testing import eventually_sync

_FILES = {"path": 0o644, "status": 0o444}
_SYNC = bytes.fromhex("665599aa")


@dataclass(frozen=True)
class Applied:
    """Overlays applied so far."""

    log: Path

    def read(self) -> list[tuple[str, str, bool, bytes]]:
        """Return overlay, region, whether it was partial, and the image, oldest first."""
        entries = [json.loads(line) for line in self.log.read_text().splitlines()]
        return [(e["overlay"], e["region"], e["is_partial"], bytes.fromhex(e["image"])) for e in entries]


@contextmanager
def overlays(root: Path) -> Iterator[Applied]:
    """Mount them below `root`, as long as the block runs."""
    folder = root / "sys/kernel/config/device-tree/overlays"
    manager = root / "sys/class/fpga_manager/fpga0"
    region = root / "sys/firmware/devicetree/base/fpga-region"
    for made in (folder, manager, region, root / "lib/firmware"):
        made.mkdir(parents=True, exist_ok=True)
    (manager / "state").write_text("unknown\n")
    (region / "compatible").write_bytes(b"fpga-region\0")
    log = root.parent / f"{root.name}.overlays"
    log.touch()
    said = log.with_suffix(".log")
    with said.open("w") as output:
        command = [sys.executable, "-m", "tests.emulated.overlays", str(root), str(log)]
        serving = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        eventually_sync(lambda: _is_served(folder, serving, said), timeout_sec=20)
        yield Applied(log)
    finally:
        subprocess.run(["fusermount3", "-u", "-z", str(folder)], check=False, capture_output=True)
        with suppress(subprocess.TimeoutExpired):
            serving.wait(5)
        serving.kill()
        serving.wait()


def _is_served(folder: Path, serving: subprocess.Popen[bytes], said: Path) -> bool:
    if serving.poll() is not None:
        raise RuntimeError(f"the emulated overlays did not start (fuse3, mfusepy, /dev/fuse): {said.read_text()}")
    return folder.is_mount()


class _Folder:
    """The file system: the methods that mfusepy calls."""

    use_ns = True

    def __init__(self, root: Path, log: Path) -> None:
        self._root = root
        self._log = log
        self._status: dict[str, str] = {}

    def __call__(self, operation: str, *arguments: Any) -> Any:
        """Perform one operation of mfusepy."""
        found = getattr(self, operation, None)
        if found is None:
            raise OSError(errno.ENOSYS, operation)
        return found(*arguments)

    def getattr(self, path: str, handle: Any = None) -> dict[str, int]:
        names = [name for name in path.split("/") if name]
        if not names or (len(names) == 1 and names[0] in self._status):
            return {"st_mode": stat.S_IFDIR | 0o755, "st_nlink": 2}
        if len(names) == 2 and names[0] in self._status and names[1] in _FILES:
            return {"st_mode": stat.S_IFREG | _FILES[names[1]], "st_nlink": 1, "st_size": 4096}
        raise OSError(errno.ENOENT, path)

    def readdir(self, path: str, handle: Any) -> list[str]:
        return [".", "..", *(self._status if path == "/" else _FILES)]

    def mkdir(self, path: str, mode: int) -> int:
        self._status[path.strip("/")] = "unapplied"
        return 0

    def rmdir(self, path: str) -> int:
        self._status.pop(path.strip("/"))
        return 0

    def open(self, path: str, flags: int) -> int:
        return 0

    def truncate(self, path: str, length: int, handle: Any = None) -> int:
        return 0

    def read(self, path: str, size: int, offset: int, handle: Any) -> bytes:
        text = self._status[path.split("/")[1]] if path.endswith("/status") else ""
        return f"{text}\n".encode()[offset : offset + size]

    def write(self, path: str, content: bytes, offset: int, handle: Any) -> int:
        overlay = path.split("/")[1]
        firmware = self._root / "lib/firmware"
        properties = _properties(_content(firmware / content.decode().strip()))
        image = _content(firmware / properties["firmware-name"].rstrip(b"\0").decode())
        is_partial = "partial-fpga-config" in properties
        region = properties["target-path"].rstrip(b"\0").decode()
        if not (self._root / "sys/firmware/devicetree/base" / region.strip("/")).is_dir():
            raise OSError(errno.EINVAL, region)
        state = self._root / "sys/class/fpga_manager/fpga0/state"
        if not is_partial and _SYNC not in (image[at : at + 4] for at in range(0, len(image), 4)):
            state.write_text("write init error\n")
            raise OSError(errno.EINVAL, "no sync word")
        entry = {"overlay": overlay, "region": region, "is_partial": is_partial, "image": image.hex()}
        with self._log.open("a") as log:
            log.write(json.dumps(entry) + "\n")
        state.write_text("operating\n")
        self._status[overlay] = "applied"
        return len(content)


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        raise OSError(errno.ENOENT, str(path)) from None


def _properties(blob: bytes) -> dict[str, bytes]:
    """Return all properties of a device-tree blob, whichever node has them."""
    magic, _, at, strings = struct.unpack_from(">4I", blob)
    if magic != 0xD00DFEED:
        raise OSError(errno.EINVAL, "no device-tree blob")
    found = {}
    while (token := struct.unpack_from(">I", blob, at)[0]) != 9:
        at += 4
        if token == 1:
            end = blob.index(b"\0", at) + 1
            at = end + -end % 4
        elif token == 3:
            size, name_at = struct.unpack_from(">2I", blob, at)
            name = blob[strings + name_at : blob.index(b"\0", strings + name_at)].decode()
            found[name] = blob[at + 8 : at + 8 + size]
            at += 8 + size + -size % 4
    return found


def main(root: str, log: str) -> int:
    """Serve until unmounted."""
    import mfusepy

    # A test run that is killed leaves no mount behind.
    linux.die_with_parent(signal.SIGTERM)

    class Operations(_Folder, mfusepy.Operations):
        """Operations by mfusepy's names."""

    folder = Path(root) / "sys/kernel/config/device-tree/overlays"
    mfusepy.FUSE(Operations(Path(root), Path(log)), str(folder), foreground=True, direct_io=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:3]))
