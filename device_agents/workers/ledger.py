"""Records the workers' processes on disk: after a kill of the agent, the next one kills the survivors.

A process is named by its number, the moment it was started, and the boot: no other ever has the same.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from device_agents.machine import linux
from fleet.base.machine import read_text

logger = logging.getLogger(__name__)

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_KILL_SEC = 1.0
_POLL_SEC = 0.002


class Ledger:
    """Persistent list of the processes to kill after the agent's death."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._written: list[tuple[int, int]] = []

    def exists(self) -> bool:
        """True if an earlier agent used this folder."""
        return self._path.exists()

    def keep(self, processes: Iterable[linux.Process]) -> None:
        """Write the list if it has changed."""
        listed = sorted({(process.pid, process.started_ticks) for process in processes})
        if listed == self._written:
            return
        fresh = self._path.with_name(f".{self._path.name}")
        try:
            fresh.write_text(json.dumps({"boot_id": read_text(_BOOT_ID).strip(), "processes": listed}))
            fresh.replace(self._path)
        except OSError as error:
            # A full disk must not prevent the use or end of a lease.
            logger.warning("cannot write the list of processes", extra={"path": str(self._path), "error": str(error)})
        else:
            self._written = listed

    def kill_listed(self) -> list[int]:
        """Kill live processes listed by an earlier agent, with their children; return the killed ones."""
        family = _family_of(_read(self._path), _all_processes())
        for pid in family:
            linux.kill(pid)
        ends_at = time.monotonic() + _KILL_SEC
        while any(map(linux.is_running, family)) and time.monotonic() < ends_at:
            time.sleep(_POLL_SEC)
        if family:
            logger.warning("killed what an earlier agent's workers left", extra={"pids": sorted(family)})
        return sorted(family)


def _family_of(listed: dict[int, int], processes: Sequence[linux.Process]) -> set[int]:
    """Return the listed processes that live, their descendants, and the remaining members of dead ones' sessions.

    While a session has members, its leader's number is given to no other process.
    """
    alive = {process.pid for process in processes}
    left = [process.pid for process in processes if listed.get(process.pid) == process.started_ticks]
    family = {pid for root in left for pid in (root, *linux.descendants_of(root))}
    for process in processes:
        leader_ticks = listed.get(process.session)
        if leader_ticks is None or leader_ticks > process.started_ticks:
            continue
        if process.session in left or process.session not in alive:
            family.add(process.pid)
    return family - {os.getpid()}


def _read(path: Path) -> dict[int, int]:
    """Return the start time of each listed process of this boot, by process id; empty if the list is damaged."""
    try:
        content = json.loads(path.read_text())
        if content["boot_id"] != read_text(_BOOT_ID).strip():
            return {}
        return {int(pid): int(ticks) for pid, ticks in content["processes"]}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        logger.warning("the list of processes is damaged", extra={"path": str(path)})
        return {}


def _all_processes() -> list[linux.Process]:
    numbers = (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())
    return [process for process in map(linux.look_at, numbers) if process is not None and process.state not in "ZX"]
