"""System calls of the jail that Python does not wrap, made by glibc functions or by number."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct

LANDLOCK_CREATE_RULESET, LANDLOCK_ADD_RULE, LANDLOCK_RESTRICT_SELF = 444, 445, 446
MOUNT_SETATTR = 442
"""System calls added since Linux 5.1 have one number on all architectures."""

CLONE_NEWNS, CLONE_NEWIPC, CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = (
    *(0x00020000, 0x08000000, 0x10000000, 0x20000000),
    0x40000000,
)

_libc = ctypes.CDLL(None, use_errno=True)


def architecture() -> str:
    """Return the architecture of this process: "x86_64", "aarch64", "arm" (also as 32-bit process on aarch64), ..."""
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
        OSError: with the kernel's error number.
    """
    wide = [ctypes.c_long(one) if isinstance(one, int) else one for one in arguments]
    return _checked(int(_libc.syscall(ctypes.c_long(number), *wide)))


def prctl(option: int, *values: object) -> int:
    """Call prctl(2).

    Raises:
        OSError: with the kernel's error number.
    """
    wide = [ctypes.c_ulong(one) if isinstance(one, int) else one for one in values]
    wide += [ctypes.c_ulong(0)] * (4 - len(wide))
    return _checked(int(_libc.prctl(option, *wide)))


def unshare(flags: int) -> None:
    """Move this process to new namespaces: unshare(2).

    Raises:
        OSError: with the kernel's error number.
    """
    _checked(int(_libc.unshare(flags)))


def mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    """Call mount(2).

    Raises:
        OSError: with the kernel's error number.
    """
    words = (source.encode(), target.encode(), kind.encode() or None, ctypes.c_ulong(flags), options.encode() or None)
    try:
        _checked(int(_libc.mount(*words)))
    except OSError as error:
        raise OSError(error.errno, f"mounting {target}: {error.strerror}") from None


def unmount(target: str, flags: int) -> None:
    """Call umount2(2).

    Raises:
        OSError: with the kernel's error number.
    """
    _checked(int(_libc.umount2(target.encode(), flags)))


def set_capabilities(header: ctypes.Array[ctypes.c_uint32], sets: ctypes.Array[ctypes.c_uint32]) -> None:
    """Call capset(2).

    Raises:
        OSError: with the kernel's error number.
    """
    _checked(int(_libc.capset(header, sets)))


def is_missing(error: OSError) -> bool:
    """Tell whether the kernel or an emulator does not support a system call."""
    return error.errno in (errno.ENOSYS, errno.EINVAL)


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
