"""A simulated FPGA manager: the sysfs files of linux-xlnx with the kernel's own errnos, as a FUSE file system.

    with fpga_manager(root) as fabric:      # root/sys/class/fpga_manager/fpga0, reading root/lib/firmware
        ...
        assert fabric.loaded == [...]       # images, oldest first
        fabric.fault("hang")                # and fabric.fault("") ends the hang

A plain file could not answer a write with EINVAL, nor keep it from returning: a killed writer hangs as in a driver if
its request is here already. Faults: "hang", "timeout" (ETIMEDOUT), "io" (EIO), "wrong state" (success, but the state
says otherwise).
"""

from __future__ import annotations

import errno
import hashlib
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from device_agents.machine import linux
from fleet.testing import eventually_sync

_SYNC = bytes.fromhex("665599aa")
_ATTRIBUTES = {"name": 0o444, "state": 0o444, "flags": 0o644, "firmware": 0o200}
_LOOK_SEC = 0.02


@dataclass(frozen=True)
class FakeFabric:
    """A test's view of the fabric, and its faults."""

    control: Path
    attributes: Path

    @property
    def loaded(self) -> list[bytes]:
        """All images that the fabric took, oldest first."""
        return [path.read_bytes() for path in sorted(self.control.glob("loaded-*.bin"))]

    @property
    def flags(self) -> list[str]:
        """The flags with which each of them was loaded."""
        return [path.read_text() for path in sorted(self.control.glob("loaded-*.flags"))]

    @contextmanager
    def followed(self, take: Callable[[bytes], None]) -> Iterator[None]:
        """Call `take` with each image, in a thread, before the fabric operates."""
        stopping = threading.Event()
        follower = threading.Thread(target=self._follow, args=(take, stopping), name="fabric follower")
        (self.control / "follower").touch()
        follower.start()
        try:
            yield
        finally:
            (self.control / "follower").unlink()
            stopping.set()
            follower.join()

    def _follow(self, take: Callable[[bytes], None], stopping: threading.Event) -> None:
        count = len(list(self.control.glob("loaded-*.bin")))
        while not stopping.wait(_LOOK_SEC):
            image = self.control / f"loaded-{count:04}.bin"
            if image.exists():
                take(image.read_bytes())
                image.with_suffix(".taken").touch()
                count += 1

    def fault(self, name: str) -> None:
        """Have the next loads go wrong in this way; "": not at all."""
        (self.control / "fault").write_text(name)

    def set_state(self, state: str) -> None:
        """Set the kernel's state of the fabric: after a boot, "unknown"."""
        (self.control / "state").write_text(state)


@contextmanager
def fpga_manager(root: Path) -> Iterator[FakeFabric]:
    """Mount it below `root`, as long as the block runs."""
    if not Path("/dev/fuse").exists():
        raise RuntimeError("/dev/fuse is missing, which the emulated FPGA manager needs: modprobe fuse")
    attributes = root / "sys/class/fpga_manager/fpga0"
    control = root.parent / f"{root.name}.fabric"
    for folder in (attributes, control, root / "lib/firmware"):
        folder.mkdir(parents=True, exist_ok=True)
    fabric = FakeFabric(control, attributes)
    fabric.set_state("unknown")
    log = control / "log"
    with log.open("w") as output:
        command = [sys.executable, "-m", "tests.emulated.fpga_manager", str(attributes), str(root / "lib/firmware")]
        serving = subprocess.Popen([*command, str(control)], stdout=output, stderr=output)
    try:
        eventually_sync(lambda: (attributes / "state").exists() or _ended(serving, log))
        yield fabric
    finally:
        fabric.fault("")
        subprocess.run(["fusermount3", "-u", "-z", str(attributes)], check=False, capture_output=True)
        with suppress(subprocess.TimeoutExpired):
            serving.wait(5)
        serving.kill()
        serving.wait()


def _ended(serving: subprocess.Popen[bytes], log: Path) -> bool:
    if serving.poll() is not None:
        raise RuntimeError(f"the emulated FPGA manager did not start (packages fuse3, mfusepy): {log.read_text()}")
    return False


class _Attributes:
    """The file system: the methods that mfusepy calls."""

    use_ns = True

    def __init__(self, firmware: Path, control: Path) -> None:
        self._firmware = firmware
        self._control = control
        self._flags = "0x0"

    def __call__(self, operation: str, *arguments: Any) -> Any:
        """Perform one operation of mfusepy."""
        found = getattr(self, operation, None)
        if found is None:
            raise OSError(errno.ENOSYS, operation)
        return found(*arguments)

    def init(self, path: str) -> None:
        """Nothing to do."""

    def destroy(self, path: str) -> None:
        """Nothing to do."""

    def access(self, path: str, mode: int) -> int:
        return 0

    def getattr(self, path: str, handle: Any = None) -> dict[str, int]:
        if path == "/":
            return {"st_mode": stat.S_IFDIR | 0o755, "st_nlink": 2}
        name = path[1:]
        if name not in _ATTRIBUTES:
            raise OSError(errno.ENOENT, path)
        return {"st_mode": stat.S_IFREG | _ATTRIBUTES[name], "st_nlink": 1, "st_size": 4096}

    def readdir(self, path: str, handle: Any) -> list[str]:
        return [".", "..", *_ATTRIBUTES]

    def open(self, path: str, flags: int) -> int:
        return 0

    def release(self, path: str, handle: Any) -> int:
        return 0

    def flush(self, path: str, handle: Any) -> int:
        return 0

    def truncate(self, path: str, length: int, handle: Any = None) -> int:
        return 0

    def read(self, path: str, size: int, offset: int, handle: Any) -> bytes:
        texts = {"/name": "Xilinx Zynq FPGA Manager", "/state": self._state(), "/flags": self._flags}
        return (texts.get(path, "") + "\n").encode()[offset : offset + size]

    def write(self, path: str, content: bytes, offset: int, handle: Any) -> int:
        if path == "/flags":
            self._flags = f"{int(content.decode().strip(), 16):#x}"
        elif path == "/firmware":
            self._load(content.decode().strip())
        else:
            raise OSError(errno.EACCES, path)
        return len(content)

    def _load(self, name: str) -> None:
        fault = self._fault()
        try:
            image = (self._firmware / name).read_bytes()
        except OSError:
            self._fail(errno.ENOENT, "firmware request error")
        is_partial = int(self._flags, 16) & 1
        words = [image[at : at + 4] for at in range(0, len(image), 4)]
        if not is_partial and _SYNC not in words:
            self._fail(errno.EINVAL, "write init error")
        if len(image) % 4:
            self._fail(errno.EINVAL, "write error")
        while fault == "hang" and self._fault() == "hang":
            self._say("write")
            time.sleep(_LOOK_SEC)
        if fault == "hang":
            self._fail(errno.ETIMEDOUT, "write error")
        if fault == "timeout":
            self._fail(errno.ETIMEDOUT, "write complete error")
        if fault == "io":
            self._fail(errno.EIO, "write error")
        count = len(list(self._control.glob("loaded-*.bin")))
        (self._control / f"loaded-{count:04}.flags").write_text(str(is_partial))
        fresh = self._control / "loading"
        fresh.write_bytes(image)
        fresh.rename(self._control / f"loaded-{count:04}.bin")
        self._await_follower(count)
        self._say("write complete" if fault == "wrong state" else "operating")
        sys.stdout.write(f"loaded {name} {hashlib.sha256(image).hexdigest()}\n")
        sys.stdout.flush()

    def _await_follower(self, count: int) -> None:
        """Wait until a follower, if there is one, has taken up the image: see `FakeFabric.followed`."""
        while (self._control / "follower").exists() and not (self._control / f"loaded-{count:04}.taken").exists():
            time.sleep(_LOOK_SEC)

    def _fail(self, number: int, state: str) -> None:
        self._say(state)
        raise OSError(number, state)

    def _fault(self) -> str:
        with suppress(OSError):
            return (self._control / "fault").read_text()
        return ""

    def _state(self) -> str:
        return (self._control / "state").read_text()

    def _say(self, state: str) -> None:
        fresh = self._control / "state.new"
        fresh.write_text(state)
        fresh.rename(self._control / "state")


def main(attributes: str, firmware: str, control: str) -> int:
    """Serve until unmounted."""
    import mfusepy

    # A test run that is killed leaves no mount behind.
    linux.die_with_parent(signal.SIGTERM)

    class Operations(_Attributes, mfusepy.Operations):
        """Operations by mfusepy's names."""

    mfusepy.FUSE(Operations(Path(firmware), Path(control)), attributes, foreground=True, direct_io=True)
    return 0


if __name__ == "__main__":
    os.umask(0)
    sys.exit(main(*sys.argv[1:4]))
