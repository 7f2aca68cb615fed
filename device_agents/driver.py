"""What a driver is: the part of an agent that knows one kind of hardware, and nothing else.

Leases, sessions, workers and gRPC stay with the agent. The contract, to which
tests/contract/test_driver.py holds every driver:

- a constructor does no I/O; `open` does, and fails when the driver is open. One that fails holds nothing, and may be
  called again when the hardware is there;
- `probe` never raises for a sick device, it says so in the Health that it returns;
- neither `probe` nor `telemetry` ever blocks the event loop: what may hang names its `source`;
- `reset` makes the device ready for the next session and leaves no process of an earlier one behind;
- `close` is idempotent; every other call after it (or before `open`) raises DeviceClosed.

`find` tells which devices of a kind this machine has, for agents without a configuration. It is cheap, needs no
optional package where there is no such hardware, and leaves no library loaded in the agent.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, Self, TypeVar

from device_agents.blocking_reads import BlockingReads, Source
from device_agents.reference import DEFAULT_LIMIT
from fleet.errors import DeviceClosed, DeviceError, DeviceUnreachable, NotProgrammable
from fleet.v1 import device_pb2, measurement_pb2, session_service_pb2
from fleet.wire import timestamp

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """Whether a device can take a lease."""

    is_healthy: bool = True
    reason: str = ""
    """Why not, in a sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSpec:
    """What a worker process of this device runs."""

    runtime: str
    """ "module:Class" of the runtime; made in the worker from `settings`."""

    settings: dict[str, Any] = field(default_factory=dict)
    """JSON-ready keyword arguments of the runtime."""

    environment: dict[str, str] = field(default_factory=dict)
    """Set in the worker before the runtime is made."""

    cpus: tuple[int, ...] = ()
    """Logical CPUs that the worker is kept on; empty: any."""

    limits_address_space: bool = True
    """False where the runtime reserves address space by the terabyte, as CUDA does; the watchdog remains."""


class StraySweeper(Protocol):
    """Kills processes that ended workers left behind."""

    async def sweep(self) -> None:
        """Return when no such process is left."""
        ...


class Watcher(Protocol):
    """Looks for devices that come while the agent runs."""

    @property
    def preload(self) -> str | None:
        """As of the drivers that it makes."""
        ...

    async def look(self) -> list[Driver]:
        """Return a driver, not yet open, for each device that was not there at the last look. One that goes stays, and
        says in its Health that it is away."""
        ...

    async def wait(self) -> None:
        """Return when it is worth while to look again."""
        ...

    async def close(self) -> None:
        """Look no more. Idempotent."""
        ...


class Driver(ABC):
    """One device."""

    kind: str
    """What selectors match: "cpu", "simulated"."""

    preload: str | None = None
    """Module that the warm process imports before it forks workers for this driver."""

    checks_architecture: bool = True
    """False where artifacts are no native libraries."""

    has_fabric: bool = False
    """True where bitstreams can be put and `program` does something."""

    reference_limit: float = DEFAULT_LIMIT
    """Times its usual time that the runtime's reference kernel may take before measurements count as disturbed."""

    replaces: tuple[str, ...] = ()
    """Kinds that this one makes superfluous on a machine where both are found: a Raspberry Pi is no mere "cpu"."""

    source: Source | None = None
    """What `_probe` and `_telemetry` read, where that may hang: they are then called in a thread of its own. None: they
    are called on the event loop, and take far below a millisecond."""

    watches = False
    """True where `watcher` returns one: more devices of the kind may come while the agent runs."""

    def __init__(self, device_id: str) -> None:
        self.device_id = device_id
        self.changed: Callable[[], None] = lambda: None
        """Called by a driver whose inventory is another one now; the agent puts in what tells the tracker."""

        self._sweeper: StraySweeper | None = None
        self._blocking = BlockingReads(self.source) if self.source is not None else None
        self._state = "new"

    @classmethod
    @abstractmethod
    def from_config(cls, values: Mapping[str, Any], *, where: str, host_name: str) -> list[Self]:
        """Make the driver or drivers that one entry of agent.yaml asks for.

        Raises:
            ConfigError: an unknown key or a bad value; `where` names the entry.
        """

    @classmethod
    def find(cls, root: Path = Path("/")) -> list[dict[str, Any]]:
        """Return the settings, as in agent.yaml without "driver", of the devices of this kind that are here.

        Args:
            root: where /proc, /sys and /dev are found.
        """
        return []

    @classmethod
    def watcher(cls, values: Mapping[str, Any], *, where: str, host_name: str) -> Watcher | None:
        """Return what watches for more devices of one entry of agent.yaml; None where none can come."""
        return None

    @property
    def name(self) -> str:
        """ "devices/<id>"."""
        return f"devices/{self.device_id}"

    @property
    def resource(self) -> str:
        """Devices with the same resource are never measured at the same time."""
        return self.name

    @property
    def cpus(self) -> tuple[int, ...]:
        """Logical CPUs of this host that its workers are kept on, once it is open; empty: any."""
        return ()

    async def open(self, sweeper: StraySweeper) -> None:
        """Find the hardware.

        Raises:
            DeviceError: it is open already, or the hardware is not there.
        """
        if self._state == "open":
            raise DeviceError(f"{self.name} is open already; close it first")
        if self._state == "closed":
            raise DeviceClosed(f"{self.name} was closed; make a new driver")
        await self._find()
        self._sweeper = sweeper
        self._state = "open"

    def inventory(self) -> device_pb2.Inventory:
        """Return what the hardware is; the same while it is open, unless the driver calls `changed`."""
        self._check_open()
        inventory = self._inventory()
        # Records are found again by device model: what is no board's time is never looked up as one.
        if inventory.is_simulated and "emulated" not in inventory.device_model and self.kind != "simulated":
            inventory.device_model = f"emulated {inventory.device_model}"
        return inventory

    def worker_spec(self) -> WorkerSpec:
        """Return what a worker process of this device runs."""
        self._check_open()
        return self._worker_spec()

    async def probe(self) -> Health:
        """Tell whether the device can take a lease. Cheap: called with every heartbeat."""
        self._check_open()
        try:
            return await self._ask(self._probe)
        except DeviceUnreachable as error:
            return Health(is_healthy=False, reason=str(error))
        except (OSError, ValueError) as error:
            return Health(is_healthy=False, reason=f"probing failed: {error}")

    async def telemetry(self) -> device_pb2.Telemetry:
        """Return readings of this moment; well under a millisecond, unless what tells them hangs."""
        self._check_open()
        try:
            return await self._ask(self._telemetry)
        except DeviceUnreachable:
            return device_pb2.Telemetry(read_at=timestamp(time.time()))  # the probe says what is wrong

    async def prepare(self) -> None:
        """Make the device ready for a worker. Called before each, also for one that follows a failed one.

        Raises:
            DeviceError: it cannot be made ready.
        """
        self._check_open()

    @property
    def is_prepared(self) -> bool:
        """Whether a worker that was started after `prepare` can go on; if not, it is replaced before its next use."""
        return True

    def learn(self, measurement: measurement_pb2.Measurement) -> None:  # noqa: B027 - most drivers see for themselves
        """Learn what came of a trial."""

    def count_trial(self) -> None:  # noqa: B027 - most drivers have nothing to count
        """Learn that a trial ran on the device."""

    async def reset(self) -> None:
        """Make the device ready for the next session."""
        self._check_open()
        if self._sweeper is not None:
            await self._sweeper.sweep()

    @property
    def bitstream_digest(self) -> str:
        """What the fabric was programmed with last, "sha256:<hex>"; empty: no fabric, or not known."""
        return ""

    async def program(self, bitstream: Path, request: session_service_pb2.ProgramRequest) -> bool:
        """Program the fabric; False when it holds this bitstream already. The worker was ended before.

        Args:
            bitstream: the file as it was put.

        Raises:
            InvalidRequest: no bitstream, or one for another part.
            DeviceError: this device has no fabric, or it did not come up.
        """
        self._check_open()
        raise NotProgrammable(f"{self.name} ({self.kind}) has no fabric to program")

    async def close(self) -> None:
        """Let go of the hardware. Idempotent."""
        self._state = "closed"
        if self._blocking is not None:
            await self._blocking.close(self._let_go)

    def _check_open(self) -> None:
        if self._state != "open":
            raise DeviceClosed(f"{self.name} is {'closed' if self._state == 'closed' else 'not open yet'}")

    async def _find(self) -> None:  # noqa: B027 - nothing to find where nothing is real
        """Do the I/O of `open`."""

    async def _ask(self, read: Callable[[], T], limit_sec: float | None = None) -> T:
        """Return what `read` returns, called where it may block.

        Args:
            limit_sec: instead of the source's.

        Raises:
            DeviceUnreachable: the source hangs.
        """
        return read() if self._blocking is None else await self._blocking.ask(read, limit_sec)

    def _let_go(self) -> None:  # noqa: B027 - most drivers hold nothing
        """Do the blocking I/O of `close`, after the last read."""

    @abstractmethod
    def _inventory(self) -> device_pb2.Inventory: ...

    @abstractmethod
    def _worker_spec(self) -> WorkerSpec: ...

    def _probe(self) -> Health:
        return Health()

    @abstractmethod
    def _telemetry(self) -> device_pb2.Telemetry: ...
