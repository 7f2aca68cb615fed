"""Chooses the processors that a device's kernels run on, and keeps the agent off them.

    cpus: all            # the default: any that the agent may use
    cpus: big            # of a machine with cores of several kinds, the fastest
    cpus: little         # ... the slowest
    cpus: [2, 3]         # these; also "2-3,5"

Which cores are big is read from cpu_capacity (Arm) or cpuinfo_max_freq in /sys/devices/system/cpu. If all are alike,
"big" and "little" are refused: they are meant for another machine.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable
from pathlib import Path

from device_agents.machine.host import kept_off
from fleet.errors import ConfigError

Setting = str | list[int] | None

_RANGES = re.compile(r"\d{1,4}(-\d{1,4})?(,\d{1,4}(-\d{1,4})?)*")
_WORDS = ("all", "big", "little")


def check_setting(setting: Setting, *, where: str) -> None:
    """Refuse a setting that is invalid on every machine.

    Raises:
        ConfigError: it is neither a list of numbers, nor ranges, nor one of the words.
    """
    is_list = isinstance(setting, list) and all(type(cpu) is int and cpu >= 0 for cpu in setting) and setting
    is_text = isinstance(setting, str) and (
        setting in _WORDS or (_RANGES.fullmatch(setting) and _parse_ranges(setting))
    )
    if setting is not None and not is_list and not is_text:
        raise ConfigError(f"{where}: expected all, big, little, or numbers as [2, 3] or 2-3, found {setting!r}")


def choose_cpus(setting: Setting, usable: Iterable[int], root: Path = Path("/"), *, where: str) -> tuple[int, ...]:
    """Return the processors of a setting, in order; empty for "all", which pins nothing.

    Raises:
        ConfigError: the machine lacks some of them, or has only one kind of core.
    """
    check_setting(setting, where=where)
    usable = sorted(usable)
    if setting is None or setting == "all":
        return ()
    if setting in ("big", "little"):
        speeds = {cpu: _speed(root, cpu) for cpu in usable}
        wanted_speed = max(speeds.values()) if setting == "big" else min(speeds.values())
        if len(set(speeds.values())) == 1:
            raise ConfigError(
                f"{where}: {setting}: the processors of this machine are all alike, as far as it tells; name "
                f"them by number, of {_format(usable)}"
            )
        return tuple(cpu for cpu, speed in speeds.items() if speed == wanted_speed)
    wanted = sorted(set(setting if isinstance(setting, list) else _parse_ranges(setting)))
    missing = [cpu for cpu in wanted if cpu not in usable]
    if missing:
        raise ConfigError(f"{where}: this agent may not use processor {_format(missing)}; it may use {_format(usable)}")
    return tuple(wanted)


class OwnCpus:
    """Keeps this process and its later children off the processors where kernels are measured."""

    def __init__(self) -> None:
        self._before: set[int] | None = None

    @property
    def is_apart(self) -> bool:
        """True while this process runs on other processors than the kernels."""
        return self._before is not None

    @property
    def for_others(self) -> tuple[int, ...]:
        """Processors of a worker without its own; empty: those of this process."""
        return tuple(sorted(self._before)) if self._before else ()

    def keep_off(self, taken: Iterable[int]) -> None:
        """Leave these processors if there are others."""
        usable = os.sched_getaffinity(0)
        spare = usable - set(taken)
        if spare and spare != usable:
            self._before = self._before or usable
            kept_off.update(usable - spare)
            _move_threads(spare)

    def restore(self) -> None:
        """Return to all processors. Idempotent."""
        if self._before is not None:
            _move_threads(self._before)
            kept_off.difference_update(self._before)
            self._before = None


def _move_threads(cpus: set[int]) -> None:
    """Move every thread of this process: gRPC's threads run already."""
    for thread in Path("/proc/self/task").iterdir():
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(int(thread.name), cpus)


def _speed(root: Path, cpu: int) -> int:
    folder = root / f"sys/devices/system/cpu/cpu{cpu}"
    for path in (folder / "cpu_capacity", folder / "cpufreq/cpuinfo_max_freq"):
        with contextlib.suppress(OSError, ValueError):
            return int(path.read_text())
    return 0


def _parse_ranges(text: str) -> list[int]:
    numbers: list[int] = []
    for piece in text.split(","):
        first, _, last = piece.partition("-")
        numbers.extend(range(int(first), int(last or first) + 1))
    return numbers


def _format(cpus: Iterable[int]) -> str:
    return ", ".join(map(str, cpus)) or "none"
