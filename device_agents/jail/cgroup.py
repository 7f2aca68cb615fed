"""Cgroups (v2), one per worker: killed at once, and limited by the available controllers.

They lie beside the agent's own processes, in the cgroup that it was started in: with systemd, `Delegate=yes` in its
unit makes that its own, with controllers for memory and processes. Without controllers a group still kills.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
from dataclasses import dataclass
from pathlib import Path

logger = logging.getLogger(__name__)

_CONTROLLERS = ("memory", "pids")
_AGENTS_OWN = "fleet-agent"
_PLACE = "fleet-workers-"
"""Prefix of directories. Earlier releases use another one: their agents hold no lock, so theirs look abandoned."""

_CLAIMS = 3
_MOST_TASKS = 4096
"""Processes and threads: those of a parallel loop on a large machine, many times over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Groups:
    """Parent folder of the cgroups of one agent's workers."""

    path: Path
    controllers: tuple[str, ...] = ()
    """Those that limit the groups."""

    lock: int = -1
    """Descriptor of the directory's lock, held while the agent lives. A directory without a held lock is abandoned."""

    def make(self, name: str, memory_bytes: int) -> Path | None:
        """Make a group; None when it cannot be made."""
        group = self.path / name
        try:
            group.mkdir()
        except OSError as error:
            logger.warning("cannot make a cgroup", extra={"path": str(group), "error": str(error)})
            return None
        if "memory" in self.controllers:
            _write(group / "memory.max", memory_bytes)
            _write(group / "memory.swap.max", 0)
        if "pids" in self.controllers:
            _write(group / "pids.max", _MOST_TASKS)
        return group

    def close(self) -> None:
        """Kill the remaining processes of the groups, and remove the groups."""
        for group in [entry for entry in self.path.iterdir() if entry.is_dir()] if self.path.is_dir() else []:
            kill(group)
            remove(group)
        with contextlib.suppress(OSError):
            self.path.rmdir()
        with contextlib.suppress(OSError):
            os.close(self.lock)


def open_groups(name: str, root: Path = Path("/")) -> Groups:
    """Make the folder for groups, and kill processes that an earlier agent of this name left in it.

    Args:
        name: of the agent, the same in its next life.
        root: where /proc is found.

    Raises:
        OSError: there is no cgroup v2, or it is not this user's.
    """
    own = _make_way(own_group(root))
    for place in sorted(own.glob(f"{_PLACE}*")):
        _remove_abandoned(place)
    path = own / f"{_PLACE}{name}"
    groups = Groups(path=path, controllers=_usable_controllers(own), lock=_claim(path))
    try:
        if not (groups.path / "cgroup.kill").exists():
            raise OSError("this kernel cannot kill a cgroup; Linux 5.14 can")
        if not os.access(groups.path / "cgroup.procs", os.W_OK) or not os.access(own / "cgroup.procs", os.W_OK):
            raise PermissionError(f"{own} belongs to another user; start the agent in a cgroup of its own")
        for controller in groups.controllers:
            _write(groups.path / "cgroup.subtree_control", f"+{controller}")
    except OSError:
        groups.close()
        raise
    return groups


def _claim(path: Path) -> int:
    """Make a directory and lock it. Retry if another starting agent removes it as abandoned in between.

    Raises:
        OSError: the directory cannot be made, or another agent holds its lock.
    """
    for _ in range(_CLAIMS):
        path.mkdir(exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            lock = _lock(path)
            if path.is_dir():
                return lock
            os.close(lock)
    raise OSError(f"{path} was removed again and again")


def _lock(path: Path) -> int:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _remove_abandoned(place: Path) -> None:
    """Kill the remaining processes of a dead agent and remove its groups. Skip a live agent: it holds the lock."""
    with contextlib.suppress(OSError):
        Groups(path=place, lock=_lock(place)).close()


def own_group(root: Path = Path("/")) -> Path:
    """Return the directory of this process's cgroup.

    Raises:
        OSError: there is no cgroup v2.
    """
    mounts = [line.split() for line in (root / "proc/self/mountinfo").read_text().splitlines()]
    found = next((fields for fields in mounts if fields[fields.index("-") + 1] == "cgroup2"), None)
    lines = (root / "proc/self/cgroup").read_text().splitlines()
    group = next((line.removeprefix("0::") for line in lines if line.startswith("0::")), None)
    if found is None or group is None:
        raise OSError("no cgroup v2 is mounted")
    inside = os.path.relpath(group, found[3])
    return Path(os.path.normpath(Path(found[4]) / inside))


def enter(group: str) -> None:
    """Move this process into a group.

    Raises:
        OSError: it may not.
    """
    (Path(group) / "cgroup.procs").write_text("0")


def kill(group: Path) -> None:
    """Kill all processes of a group."""
    _write(group / "cgroup.kill", 1)


def remove(group: Path) -> None:
    """Remove an empty group. A group that is not yet empty stays until the agent ends."""
    with contextlib.suppress(OSError):
        group.rmdir()


def ran_out_of_memory(group: Path) -> bool:
    """Tell whether the kernel killed a process of a group at its memory limit."""
    with contextlib.suppress(OSError):
        events = dict(line.split() for line in (group / "memory.events").read_text().splitlines())
        return int(events.get("oom_kill", 0)) > 0
    return False


def _make_way(own: Path) -> Path:
    """Return a parent for the groups of workers, emptied of processes if possible.

    Only a group without processes has controllers for those below it.
    """
    if own.name == _AGENTS_OWN:
        return own.parent
    with contextlib.suppress(OSError):
        if (own / "cgroup.procs").read_text().split() == [str(os.getpid())]:
            (own / _AGENTS_OWN).mkdir(exist_ok=True)
            (own / _AGENTS_OWN / "cgroup.procs").write_text(str(os.getpid()))
    return own


def _usable_controllers(own: Path) -> tuple[str, ...]:
    """Return the controllers that limit groups below this one, after enabling the available ones."""
    with contextlib.suppress(OSError):
        there = (own / "cgroup.controllers").read_text().split()
        for controller in _CONTROLLERS:
            if controller in there:
                _write(own / "cgroup.subtree_control", f"+{controller}")
        usable = (own / "cgroup.subtree_control").read_text().split()
        return tuple(controller for controller in _CONTROLLERS if controller in usable)
    return ()


def _write(path: Path, value: object) -> None:
    with contextlib.suppress(OSError):
        path.write_text(str(value))
