"""The system calls of the jail, which Python does not wrap: by glibc's functions where it has them, else by number."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct

LANDLOCK_CREATE_RULESET, LANDLOCK_ADD_RULE, LANDLOCK_RESTRICT_SELF = 444, 445, 446
MOUNT_SETATTR = 442
"""Numbers since Linux 5.1 are the same on all architectures."""

CLONE_NEWNS, CLONE_NEWIPC, CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = (
    *(0x00020000, 0x08000000, 0x10000000, 0x20000000),
    0x40000000,
)

_libc = ctypes.CDLL(None, use_errno=True)


def architecture() -> str:
    """Return what this process runs as: "x86_64", "aarch64", "arm" (a 32-bit program on a 64-bit kernel, too), ..."""
    machine = platform.machine()
    is_32_bit = struct.calcsize("P") == 4
    if machine.startswith("arm") or (machine == "aarch64" and is_32_bit):
        return "arm"
    return "i386" if machine == "x86_64" and is_32_bit else machine


def syscall(number: int, *arguments: object) -> int:
    """Make a system call.

    Args:
        arguments: integers, None, and ctypes values.

    Raises:
        OSError: as the kernel says.
    """
    wide = [ctypes.c_long(one) if isinstance(one, int) else one for one in arguments]
    return _checked(int(_libc.syscall(ctypes.c_long(number), *wide)))


def prctl(option: int, *values: object) -> int:
    """Call prctl(2).

    Raises:
        OSError: as the kernel says.
    """
    wide = [ctypes.c_ulong(one) if isinstance(one, int) else one for one in values]
    wide += [ctypes.c_ulong(0)] * (4 - len(wide))
    return _checked(int(_libc.prctl(option, *wide)))


def unshare(flags: int) -> None:
    """Leave namespaces for new ones.

    Raises:
        OSError: as the kernel says.
    """
    _checked(int(_libc.unshare(flags)))


def mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    """Call mount(2).

    Raises:
        OSError: as the kernel says.
    """
    words = (source.encode(), target.encode(), kind.encode() or None, ctypes.c_ulong(flags), options.encode() or None)
    try:
        _checked(int(_libc.mount(*words)))
    except OSError as error:
        raise OSError(error.errno, f"mounting {target}: {error.strerror}") from None


def unmount(target: str, flags: int) -> None:
    """Call umount2(2).

    Raises:
        OSError: as the kernel says.
    """
    _checked(int(_libc.umount2(target.encode(), flags)))


def set_capabilities(header: ctypes.Array[ctypes.c_uint32], sets: ctypes.Array[ctypes.c_uint32]) -> None:
    """Call capset(2).

    Raises:
        OSError: as the kernel says.
    """
    _checked(int(_libc.capset(header, sets)))


def is_missing(error: OSError) -> bool:
    """Tell whether the kernel lacks a system call, or an emulator does not know it."""
    return error.errno in (errno.ENOSYS, errno.EINVAL)


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
