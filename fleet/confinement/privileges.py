"""Drop privileges of a worker: its user, its capabilities, and any way to regain them."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from fleet.confinement.system import prctl, set_capabilities

_PR_SET_NO_NEW_PRIVS = 38
_CAPABILITIES_VERSION_3 = 0x20080522
_CAP_SYS_RAWIO = 17

_UID_MAP = Path("/proc/self/uid_map")
_UIDS = range(1_879_048_192, 1_879_048_192 + 2**24)
"""Range that no usual allocation for users, containers or services overlaps."""

_FEW_UIDS = range(61_184, 65_520)
"""Range that systemd uses for services: for containers with only 65,536 user ids."""


def free_uids(uid_map: str | None = None) -> range:
    """Return a possibly empty range of unused user ids that this process can switch to."""
    text = _UID_MAP.read_text() if uid_map is None else uid_map
    mapped = [range(first, first + count) for first, _, count in (map(int, line.split()) for line in text.splitlines())]
    for uids in (_UIDS, _FEW_UIDS):
        if any(uids.start in one and uids.stop - 1 in one for one in mapped):
            return uids
    return range(0)


def groups_for(devices: Iterable[str]) -> list[int] | None:
    """Return the groups that give access to these devices, or None if only their owner has access to any."""
    groups, usable, seen = set(), 0, 0
    for device in devices:
        try:
            status = Path(device).stat()
        except OSError:
            continue
        seen += 1
        if status.st_mode & 0o006 == 0o006:
            usable += 1
        elif status.st_mode & 0o060 == 0o060 and status.st_gid != 0:
            usable += 1
            groups.add(status.st_gid)
    return sorted(groups) if usable or not seen else None


def become(uid: int, groups: Sequence[int]) -> None:
    """Switch to another user, to the group of the same number and to these supplementary groups."""
    os.setgroups(groups)
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)


def drop_capabilities(*, keeps_raw_io: bool = False) -> None:
    """Give up all capabilities.

    Args:
        keeps_raw_io: keep CAP_SYS_RAWIO, which /dev/mem needs.

    Raises:
        OSError: the kernel refuses.
    """
    kept = 1 << _CAP_SYS_RAWIO if keeps_raw_io and os.geteuid() == 0 else 0
    header = (ctypes.c_uint32 * 2)(_CAPABILITIES_VERSION_3, 0)
    with contextlib.suppress(PermissionError):  # in a container without CAP_SYS_RAWIO
        set_capabilities(header, (ctypes.c_uint32 * 6)(kept, kept, 0, 0, 0, 0))
        return
    set_capabilities(header, (ctypes.c_uint32 * 6)())


def forbid_new_privileges() -> None:
    """Set no_new_privs: no executed program gains privileges.

    Raises:
        OSError: the kernel refuses.
    """
    prctl(_PR_SET_NO_NEW_PRIVS, 1)
