"""Common base of drivers for GPUs: readings of the host, foreign processes, and paths of runtime libraries."""

from __future__ import annotations

import json
import math
import os
import sysconfig
import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Generic, TypeVar

from device_agents.driver import Driver
from device_agents.machine.blocking_reads import Source
from device_agents.machine.host import Host, slug
from device_agents.machine.linux import look_at
from device_agents.runtimes.check import tvm_library_folder
from fleet.domain.devices import Inventory, Telemetry
from fleet.domain.tvm_versions import tvm_version
from fleet.errors import DeviceError

G = TypeVar("G")

_FRESH_SEC = 0.25
"""A count this young is reused: asking for a GPU's processes takes about a millisecond."""

_FIRST_PID_NAMESPACE = "pid:[4026531836]"
"""The kernel's constant PROC_PID_INIT_INO: in any other namespace the driver's process ids mean nothing to us."""


class ForeignProcesses:
    """Counts the processes on a GPU that are not this agent's."""

    def __init__(self, *, fresh_sec: float = _FRESH_SEC, can_tell: bool | None = None) -> None:
        """Args:
        fresh_sec: how long a count is reused.
        can_tell: whether the driver's process ids mean the same as ours; None: judge by this process's namespace.
        """
        self._fresh_sec = fresh_sec
        self._count: int | None = None
        self._counted_at_sec = -math.inf
        self._can_tell = _pid_namespace() == _FIRST_PID_NAMESPACE if can_tell is None else can_tell

    def count(self, list_pids: Callable[[], Iterable[int]]) -> int | None:
        """Return the current number; None if process ids cannot be compared, as in a container."""
        if not self._can_tell:
            return None
        now = time.monotonic()
        if now - self._counted_at_sec >= self._fresh_sec:
            self._counted_at_sec = now
            ours = os.getpid()
            self._count = sum(not descends_from(pid, ours) for pid in list_pids())
        return self._count


class GpuDriver(Driver, Generic[G]):
    """A GPU that is driven by TVM's own runtime; `G` is the vendor's description of it."""

    preload = "device_agents.runtimes.gpu"

    def __init__(self, device_id: str, host_name: str, source: Source, foreign: ForeignProcesses | None = None) -> None:
        super().__init__(device_id, source)
        self._host_name = host_name
        self._gpu: G | None = None
        self._host: Host | None = None
        self._foreign = foreign or ForeignProcesses()
        self._runtime_fault = ""
        """Why the worker's libraries cannot be loaded; empty if they can."""

    @property
    def _opened_gpu(self) -> G:
        return self._opened(self._gpu)

    @abstractmethod
    def _read(self, gpu: G) -> Telemetry:
        """Return the GPU's own readings.

        Raises:
            DeviceError: it does not answer.
        """

    @abstractmethod
    def _list_pids(self, gpu: G) -> Iterable[int]:
        """Return the ids of the GPU's compute processes."""

    def _telemetry(self) -> Telemetry:
        gpu = self._opened_gpu
        foreign = None
        try:
            reading = self._read(gpu)
            foreign = self._foreign.count(lambda: self._list_pids(gpu))
        except DeviceError:
            reading = Telemetry()  # the probe reports the reason
        return replace(reading, read_at_sec=time.time(), load_1min=os.getloadavg()[0], foreign_processes=foreign)

    def _inventory_of(
        self,
        *,
        model: str,
        memory_bytes: int,
        unit_count: int,
        target: Mapping[str, object],
        labels: Mapping[str, str],
        facts: Mapping[str, str],
    ) -> Inventory:
        host = self._opened(self._host)
        return Inventory(
            kind=self.kind,
            labels={
                # The host's architecture: the host loads artifacts as libraries.
                "arch": host.arch,
                "host": self._host_name,
                "model": slug(model),
                "memory_gb": str(round(memory_bytes / 1e9)),
                **{key: value for key, value in labels.items() if value},
            },
            target_json=json.dumps({**target, "host": json.loads(host.target_json(host.core_count))}),
            device_model=model,
            host_fingerprint=host.fingerprint,
            memory_bytes=memory_bytes,
            core_count=max(1, unit_count),
            tvm_version=tvm_version() or "",
            facts={**host.software, **{key: value for key, value in facts.items() if value}, "host CPU": host.model},
        )


def descends_from(pid: int, ancestor: int) -> bool:
    """Tell whether a process is `ancestor` or one of its descendants."""
    while pid > 1:
        if pid == ancestor:
            return True
        process = look_at(pid)
        pid = process.parent if process is not None else 0
    return pid == ancestor


def device_ids(name: str | None, default: str, short_names: Sequence[str]) -> list[str]:
    """Return ids for the GPUs of one entry: `name` itself for a single GPU, else with each GPU's own name appended."""
    if name is not None and len(short_names) == 1:
        return [name]
    return [f"{name or default}-{short}" for short in short_names]


def own_library(configured: Path | None, name: str) -> str:
    """Return the path of TVM's runtime library for a device: the user's own, else the installed TVM's."""
    if configured is not None:
        return str(configured)
    folder = tvm_library_folder()
    return str(folder / name) if folder else name


def python_package_library(package: str, name: str) -> list[str]:
    """Return the path of a library in a vendor's Python package, where no linker looks; empty if there is none."""
    site = Path(sysconfig.get_path("platlib")) / package
    return [str(path) for path in sorted(site.glob(f"*/lib/{name}"))[:1]]


def _pid_namespace() -> str:
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""
