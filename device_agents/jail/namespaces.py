"""Moves a process into its own namespaces, and builds its view of the file system.

As bubblewrap does it. In a namespace of users the process keeps its number, so that files belong to it as before.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from pathlib import Path

from device_agents.jail.layers import Layer
from device_agents.jail.spec import JailSpec
from device_agents.jail.view import DEVICES
from fleet.base.inspection import allow_inspection
from fleet.confinement import system

FLAGS = {
    Layer.USER: system.CLONE_NEWUSER,
    Layer.PID: system.CLONE_NEWPID,
    Layer.MOUNT: system.CLONE_NEWNS,
    Layer.IPC: system.CLONE_NEWIPC,
    Layer.NETWORK: system.CLONE_NEWNET,
}
_READ_ONLY, _NO_SETUID, _NO_DEVICES, _REMOUNT, _BIND, _RECURSIVE, _PRIVATE = 1, 2, 4, 32, 4096, 16384, 1 << 18
_NO_EXEC = 8
_DETACH = 2
_ATTRIBUTE_READ_ONLY, _ATTRIBUTE_NO_SETUID = 1, 2
_AT_RECURSIVE, _AT_FDCWD = 0x8000, -100
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41, "riscv64": 41, "arm": 218}
_TEMPORARY_BYTES = 16 * 1024 * 1024
_LINKS = {"fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2"}


def enter(flags: int) -> None:
    """Leave the agent's namespaces; a pid namespace begins with the next child.

    Raises:
        OSError: this machine does not allow it.
    """
    uid, gid = os.geteuid(), os.getegid()
    allow_inspection()  # otherwise root owns the map files
    system.unshare(flags)
    if flags & system.CLONE_NEWUSER:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
        Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")


def furnish(jail_spec: JailSpec, *, has_pid_namespace: bool) -> None:
    """Build the worker's root with the visible files at their usual paths, and change to it.

    Raises:
        OSError: this machine does not allow it.
    """
    old_mask = os.umask(0o022)
    system.mount("none", "/", "", _RECURSIVE | _PRIVATE)
    system.mount("tmpfs", jail_spec.root, "tmpfs", _NO_SETUID | _NO_DEVICES, "size=4m,mode=755")
    _make_temporary(jail_spec.root)
    for path in jail_spec.readable:
        _show(jail_spec.root, path, is_writable=False)
    _show(jail_spec.root, jail_spec.home, is_writable=True)
    _make_devices(jail_spec)
    _make_proc(jail_spec.root, has_pid_namespace=has_pid_namespace)
    system.mount("none", jail_spec.root, "", _BIND | _REMOUNT | _READ_ONLY | _NO_SETUID | _NO_DEVICES)
    os.chdir(jail_spec.root)
    system.syscall(_PIVOT_ROOT[system.architecture()], ctypes.c_char_p(b"."), ctypes.c_char_p(b"."))
    system.unmount(".", _DETACH)
    os.chdir("/")
    os.umask(old_mask)


def _make_temporary(root: str) -> None:
    """Mount /tmp first: visible directories may lie in it."""
    place = Path(root, "tmp")
    place.mkdir()
    system.mount("tmpfs", str(place), "tmpfs", _NO_SETUID | _NO_DEVICES, f"size={_TEMPORARY_BYTES},mode=1777")


def _show(root: str, path: str, *, is_writable: bool) -> None:
    source, place = Path(path), Path(root + path)
    if source.is_symlink():
        place.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            place.symlink_to(source.readlink())
        source = source.resolve()
        if not source.exists() or Path(root + str(source)).exists():
            return
        place = Path(root + str(source))
    _make_place(source, place)
    system.mount(str(source), str(place), "", _BIND | _RECURSIVE)
    if not is_writable:
        _make_read_only(str(place))


def _make_place(source: Path, place: Path) -> None:
    if place.exists():
        return
    if source.is_dir():
        place.mkdir(parents=True)
    else:
        place.parent.mkdir(parents=True, exist_ok=True)
        place.touch()


def _make_read_only(place: str) -> None:
    attributes = (ctypes.c_uint64 * 4)(_ATTRIBUTE_READ_ONLY | _ATTRIBUTE_NO_SETUID, 0, 0, 0)
    try:
        system.syscall(
            system.MOUNT_SETATTR,
            _AT_FDCWD,
            ctypes.c_char_p(place.encode()),
            _AT_RECURSIVE,
            ctypes.byref(attributes),
            ctypes.sizeof(attributes),
        )
    except OSError as error:
        if not system.is_missing(error):
            raise
        # Before Linux 5.12, mounts below this one cannot be changed.
        kept = os.statvfs(place).f_flag & (_NO_SETUID | _NO_DEVICES | _NO_EXEC)
        system.mount("none", place, "", _BIND | _REMOUNT | _READ_ONLY | kept)


def _make_devices(jail_spec: JailSpec) -> None:
    folder = Path(jail_spec.root + "/dev")
    folder.mkdir(exist_ok=True)
    system.mount("tmpfs", str(folder), "tmpfs", _NO_SETUID | _NO_EXEC, "size=64k,mode=755")
    for name, target in _LINKS.items():
        (folder / name).symlink_to(target)
    (folder / "shm").mkdir()
    options = f"size={jail_spec.shared_memory_bytes},mode=1777"
    system.mount("tmpfs", str(folder / "shm"), "tmpfs", _NO_SETUID | _NO_DEVICES | _NO_EXEC, options)
    for device in (*DEVICES, *jail_spec.devices):
        if Path(device).exists():
            _show(jail_spec.root, device, is_writable=True)


def _make_proc(root: str, *, has_pid_namespace: bool) -> None:
    place = root + "/proc"
    Path(place).mkdir(exist_ok=True)
    try:
        if has_pid_namespace:
            system.mount("proc", place, "proc", _NO_SETUID | _NO_DEVICES | _NO_EXEC)
            return
    except PermissionError:
        pass  # in a container that hides parts of its own
    system.mount("/proc", place, "", _BIND | _RECURSIVE)
