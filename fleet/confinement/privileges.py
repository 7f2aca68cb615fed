"""Gives up what a worker does not need: its user, its capabilities, and the means to get any back."""

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
"""Far from what anybody gives to users, containers or services."""

_FEW_UIDS = range(61_184, 65_520)
"""systemd's for services: in containers that have 65,536 users."""


def free_uids(uid_map: str | None = None) -> range:
    """Return user ids that belong to nobody and that this process can become; empty where it has none."""
    text = _UID_MAP.read_text() if uid_map is None else uid_map
    mapped = [range(first, first + count) for first, _, count in (map(int, line.split()) for line in text.splitlines())]
    for uids in (_UIDS, _FEW_UIDS):
        if any(uids.start in one and uids.stop - 1 in one for one in mapped):
            return uids
    return range(0)


def groups_for(devices: Iterable[str]) -> list[int] | None:
    """Return the groups that a user has to be in to use these devices; None where only their owner may use any."""
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
    """Become another user, in a group of the same number and these."""
    os.setgroups(groups)
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)


def drop_capabilities(*, keeps_raw_io: bool = False) -> None:
    """Give up all capabilities.

    Args:
        keeps_raw_io: but the one that /dev/mem takes.

    Raises:
        OSError: the kernel does not.
    """
    kept = 1 << _CAP_SYS_RAWIO if keeps_raw_io and os.geteuid() == 0 else 0
    header = (ctypes.c_uint32 * 2)(_CAPABILITIES_VERSION_3, 0)
    with contextlib.suppress(PermissionError):  # in a container that has not even that one
        set_capabilities(header, (ctypes.c_uint32 * 6)(kept, kept, 0, 0, 0, 0))
        return
    set_capabilities(header, (ctypes.c_uint32 * 6)())


def forbid_new_privileges() -> None:
    """Have no program that is run give this process more than it has.

    Raises:
        OSError: the kernel does not.
    """
    prctl(_PR_SET_NO_NEW_PRIVS, 1)
