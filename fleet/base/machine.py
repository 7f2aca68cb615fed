"""Tells whether two processes run on the same machine, and names the architecture of programs here."""

from __future__ import annotations

import getpass
import hashlib
import os
import platform
import socket
import struct
import time
from pathlib import Path


def machine_fingerprint(root: Path = Path("/")) -> str:
    """Return a string that is the same for all processes of this machine since its boot, and nowhere else."""
    identity = "".join(read_text(root / name) for name in ("etc/machine-id", "proc/sys/kernel/random/boot_id"))
    return hashlib.sha256(identity.encode()).hexdigest()[:16]


def process_age_sec() -> float:
    """Return the age of this process [s], in steps of 0.01 s.

    By the clock that the kernel notes a start in. psutil's time of a start is only right to a second or so: it adds
    that to the time of the boot, which the kernel tells in whole seconds.
    """
    fields = Path("/proc/self/stat").read_text(errors="replace").rpartition(")")[2].split()
    started_at = int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started_at


def account_name() -> str:
    """Return "user@host" of this process."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # the user id has no name, as in containers
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"


def architecture(machine: str | None = None, pointer_bytes: int | None = None) -> str:
    """Return the architecture of programs here, as `uname -m` names it.

    The kernel's own word is not enough: Raspberry Pi OS runs its 32-bit system on a 64-bit kernel.
    """
    machine = machine or platform.machine()
    if (pointer_bytes or struct.calcsize("P")) == 4:
        return {"aarch64": "armv7l", "armv8l": "armv7l", "x86_64": "i686"}.get(machine, machine)
    return machine


def read_text(path: Path) -> str:
    """Return a whole file; empty when it cannot be read."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
