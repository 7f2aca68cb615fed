"""Landlock rules of a process: readable and writable files, no TCP connections, no signals to other processes.

They need neither privileges nor namespaces. Linux 5.13 supports rules for files, 6.7 for TCP, 6.12 for signals and
abstract sockets.
"""

from __future__ import annotations

import ctypes
import os
import stat
import struct
from collections.abc import Iterable

from fleet.confinement.system import LANDLOCK_ADD_RULE, LANDLOCK_CREATE_RULESET, LANDLOCK_RESTRICT_SELF, syscall

_VERSION_FLAG = 1
_PATH_BENEATH = 1

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIRECTORY = 1, 2, 4, 8
_TRUNCATE, _IOCTL = 1 << 14, 1 << 15
_READ = _EXECUTE | _READ_FILE | _READ_DIRECTORY
_OF_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL

_FILE_RIGHTS_BY_VERSION = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 4: (1 << 15) - 1, 5: (1 << 16) - 1}
_CONNECTIONS = 3
_SCOPES = 3
"""Confine abstract sockets and signals to the jail."""

_SINCE_CONNECTIONS, _SINCE_SCOPES = 4, 6


def version() -> int:
    """Return the Landlock version of this kernel.

    Raises:
        OSError: the kernel has no Landlock.
    """
    return syscall(LANDLOCK_CREATE_RULESET, None, 0, _VERSION_FLAG)


def restrict(readable: Iterable[str], writable: Iterable[str], *, has_network: bool) -> None:
    """Restrict this process and its future children, after `privileges.forbid_new_privileges`.

    Paths that do not exist are skipped.

    Raises:
        OSError: the kernel refuses.
    """
    known = version()
    rights = _FILE_RIGHTS_BY_VERSION[min(known, max(_FILE_RIGHTS_BY_VERSION))]
    connections = _CONNECTIONS if known >= _SINCE_CONNECTIONS and not has_network else 0
    scopes = _SCOPES if known >= _SINCE_SCOPES else 0
    fields = [rights, *([connections] if known >= _SINCE_CONNECTIONS else []), *([scopes] if scopes else [])]
    attributes = struct.pack(f"={len(fields)}Q", *fields)
    rules = syscall(LANDLOCK_CREATE_RULESET, ctypes.c_char_p(attributes), len(attributes), 0)
    try:
        for path in readable:
            _allow(rules, path, _READ & rights)
        for path in writable:
            _allow(rules, path, rights)
        syscall(LANDLOCK_RESTRICT_SELF, rules, 0)
    finally:
        os.close(rules)


def _allow(rules: int, path: str, rights: int) -> None:
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        is_directory = stat.S_ISDIR(os.fstat(descriptor).st_mode)
        rule = struct.pack("=Qi", rights if is_directory else rights & _OF_FILES, descriptor)
        syscall(LANDLOCK_ADD_RULE, rules, _PATH_BENEATH, ctypes.c_char_p(rule), 0)
    finally:
        os.close(descriptor)
