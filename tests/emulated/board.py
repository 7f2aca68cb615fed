"""One emulated board: a root folder, commands that run in it under qemu-user, and files that identify the board.

    with emulated_board("arm64", cpu="cortex-a72", directory=tmp_path) as board:
        board.write("/sys/firmware/devicetree/base/model", "Raspberry Pi 4 Model B Rev 1.4\\0")
        board.run("python3", "-c", "import platform; print(platform.machine())")

It shares the network and the process table with this machine (so `kill -9` from outside works, and 127.0.0.1 is one
place), and nothing else: /sys has only written files, /proc/FILE is a written file or else this machine's. CPU is
always named: qemu's default knows every instruction and hides crashes of a real board.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.emulated.sysroot import ARCHITECTURES, EMULATION, sysroot

_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
HOME = "/home/pi"
"""Home of the board's user."""

_ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", "HOME": HOME, "LANG": "C.UTF-8"}

_ENTER = """
set -e
root=$1
shift
mount --rbind /proc "$root/proc"
for name in {devices}; do
  [ -e "$root/dev/$name" ] || : > "$root/dev/$name"
  mount --bind "/dev/$name" "$root/dev/$name"
done
if [ -d "$root.proc" ]; then
  (cd "$root.proc" && find . -type f) | while read -r name; do mount --bind "$root.proc/$name" "$root/proc/$name"; done
fi
exec chroot "$root" "$@"
""".format(devices=" ".join(_DEVICES))


@dataclass
class EmulatedBoard:
    """Root folder with programs that run under emulation."""

    root: Path
    machine: str
    """Architecture as `uname -m` reports it there."""
    environment: dict[str, str] = field(default_factory=dict)
    """Added to every command's."""

    def command(self, *words: str) -> list[str]:
        """Return the command line, for this machine, of a command of the board. Give it `self.full_environment()`."""
        return ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", _ENTER, "sh", str(self.root), *words]

    def full_environment(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        """Return the environment of the board's commands, without this machine's variables."""
        return {**_ENVIRONMENT, **self.environment, **(more or {})}

    def run(self, *words: str, timeout_sec: float = 100, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run a command of the board to its end."""
        return subprocess.run(
            self.command(*words),
            capture_output=True,
            text=True,
            timeout=timeout_sec,
            env=self.full_environment(environment),
            check=False,
        )

    def popen(self, *words: str, environment: Mapping[str, str] | None = None, **options: Any) -> subprocess.Popen[str]:
        """Start a command of the board; its process id is the command's own."""
        return subprocess.Popen(self.command(*words), text=True, env=self.full_environment(environment), **options)

    @contextmanager
    def another_cpu(self, cpu: str) -> Iterator[None]:
        """Emulate another CPU in new programs for the duration of the block; running ones keep theirs."""
        file = self.path(f"/{EMULATION}/cpu")
        usual = file.read_text()
        self.write(f"/{EMULATION}/cpu", f"{cpu}\n")
        try:
            yield
        finally:
            self.write(f"/{EMULATION}/cpu", usual)

    def path(self, name: str | Path) -> Path:
        """Return where this machine finds a file of the board."""
        return self.root / str(name).lstrip("/")

    def write(self, name: str, content: str | bytes) -> Path:
        """Write a file of the board and make its folders. Files of /proc replace the kernel's."""
        path = self.path(name)
        if name.startswith("/proc/"):
            if not Path(name).exists():
                raise ValueError(f"{name}: only files that this machine's /proc has as well can be replaced")
            path = Path(f"{self.root}.proc") / name.removeprefix("/proc/")
        path.parent.mkdir(parents=True, exist_ok=True)
        # Always a new file: the old one may be shared with the tree that this one was made from.
        path.unlink(missing_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path


@contextmanager
def emulated_board(architecture: str, *, cpu: str, directory: Path) -> Iterator[EmulatedBoard]:
    """Make a board below `directory`, removed afterwards.

    Args:
        architecture: "arm64" or "armhf".
        cpu: as qemu names it: "cortex-a72".
        directory: on the same file system as the test cache, files are links; elsewhere copies (90 MB).
    """
    tree = sysroot(architecture)
    root = directory / "board"
    shutil.copytree(tree, root, symlinks=True, copy_function=_link_or_copy)
    board = EmulatedBoard(root=root, machine=ARCHITECTURES[architecture].machine)
    board.write(f"/{EMULATION}/cpu", f"{cpu}\n")
    board.path(HOME).mkdir(parents=True, exist_ok=True)
    _try(board)
    try:
        yield board
    finally:
        shutil.rmtree(root, ignore_errors=True)
        shutil.rmtree(f"{root}.proc", ignore_errors=True)


def _link_or_copy(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def _try(board: EmulatedBoard) -> None:
    done = board.run("uname", "-m")
    if done.returncode or done.stdout.strip() != board.machine:
        raise RuntimeError(
            "an emulated board cannot be entered (it takes user namespaces: unshare --user --map-root-user --mount): "
            f"{done.stderr.strip() or done.stdout.strip()}"
        )
