"""Base class of all drivers. A driver knows one kind of hardware; the agent owns leases, sessions, workers and gRPC.

Every driver keeps this contract, which tests/contract/test_driver.py checks:

- a constructor does no I/O; `open` does, and fails when the driver is open already. If it fails it holds nothing, and
  may be called again once the hardware is there;
- `probe` never raises for a sick device: the Health that it returns says so;
- neither `probe` nor `telemetry` ever blocks the event loop: a driver with reads that may hang names their `source`;
- `reset` makes the device ready for the next session and leaves no process of an earlier one behind;
- `close` is idempotent; every other call after it (or before `open`) raises DeviceClosed.

`find` lists the devices of a kind on this machine, for agents without a configuration. It is cheap, needs no optional
package where there is no such hardware, and leaves no library loaded in the agent.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar, Protocol, Self, TypeVar

from device_agents.hooks import NO_HOOKS
from device_agents.machine.blocking_reads import BlockingReads, Source
from device_agents.measuring.reference import DEFAULT_LIMIT
from fleet.base.findings import Finding
from fleet.domain.devices import Inventory, Telemetry
from fleet.domain.measuring import ErrorKind
from fleet.errors import DeviceClosed, DeviceError, DeviceUnreachable

T = TypeVar("T")


MAX_DEVICES = 1_000
"""Most devices that one agent serves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """Readiness of a device for a lease."""

    is_healthy: bool = True
    reason: str = ""
    """Why it cannot, in a sentence; empty when it can."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSpec:
    """Program of this device's worker processes."""

    runtime: str
    """ "module:Class" of the runtime; made in the worker from `settings`."""

    settings: dict[str, object] = field(default_factory=dict)
    """JSON-ready keyword arguments of the runtime."""

    environment: dict[str, str] = field(default_factory=dict)
    """Variables that are set in the worker before it makes the runtime."""

    cpus: tuple[int, ...] = ()
    """Logical CPUs that the worker is pinned to; empty: any."""

    devices: tuple[str, ...] = ()
    """Device files that the runtime opens, as paths or patterns: "/dev/nvidia*". In its jail there are no others."""

    readable: tuple[str, ...] = ()
    """Files and directories that it reads in addition to the system's, Python's, and those in `settings`."""

    needs_network: bool = False
    """True if its device is reached over the network, that of this machine included."""

    needs_owner: bool = False
    """True if it has to be the agent's user, to map registers or memory that belong to root."""

    limits_address_space: bool = True
    """False where the runtime reserves terabytes of address space, as CUDA does; resident memory is limited anyway."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramOrder:
    """A bitstream to be loaded into a fabric."""

    path: Path
    """The file as it was put."""

    digest: str
    """ "sha256:<hex>" of that file."""

    registers_yaml: str = ""
    """Describes the registers that artifacts can use; empty: none."""

    is_partial: bool = False
    """True if it replaces only a part of the loaded design."""

    force: bool = False
    """Load it even when it is loaded already."""

    timeout_sec: float | None = None
    """None: the driver's default."""


class Fabric(Protocol):
    """Programmable logic beside the device's cores."""

    @property
    def digest(self) -> str:
        """Bitstream loaded last, "sha256:<hex>"; empty: none, or unknown."""

    async def program(self, order: ProgramOrder) -> bool:
        """Load a bitstream; return False if it is loaded already. The caller has ended the device's worker.

        Raises:
            InvalidRequest: it is no bitstream, or one for another part.
            DeviceError: the fabric cannot be programmed, or did not come up.
        """


class StraySweeper(Protocol):
    """Kills processes that ended workers left behind."""

    async def sweep(self) -> None:
        """Return when no such process is left."""


class NoStrays:
    """Kills nothing: for a driver that is only inspected and starts no workers."""

    async def sweep(self) -> None:
        """Do nothing."""


class DeviceFinder(Protocol):
    """Finds devices that appear while the agent runs."""

    @property
    def preload(self) -> str | None:
        """The `preload` of the drivers that it makes."""

    async def look(self) -> list[Driver]:
        """Return a driver, not yet open, for each device that appeared since the last call.

        The driver of a device that goes stays, and says in its Health that the device is away.
        """

    async def wait(self) -> None:
        """Wait until another call of `look` may find devices."""

    async def close(self) -> None:
        """Stop looking. Idempotent."""


class Driver(ABC):
    """One device."""

    kind: str
    """Kind, matched by selectors: "cpu", "simulated"."""

    settings: ClassVar[type]
    """Frozen dataclass of the keys of one entry of agent.yaml, each with its sentence; see fleet.base.config."""

    preload: str | None = None
    """Module that the warm process imports before it forks workers for this driver."""

    checks_architecture: bool = True
    """False where artifacts are not native libraries."""

    fabric: Fabric | None = None
    """Programmable logic of the device, once it is open; None where it has none."""

    reference_limit: float = DEFAULT_LIMIT
    """Multiple of the reference kernel's usual time above which measurements count as disturbed."""

    serves_one_worker: bool = False
    """True if the device takes one connection at a time. The reference kernel then has no separate worker."""

    may_be_unplugged: bool = False
    """True if the agent reaches the device over a cable or a network. One that is lost may have been unplugged, so that
    the program that ran is not to blame yet.
    """

    replaces: tuple[str, ...] = ()
    """Kinds that are not served where this one is found as well: a Raspberry Pi is more than a "cpu"."""

    has_finder = False
    """True where `finder` returns one: more devices of the kind may come while the agent runs."""

    def __init__(self, device_id: str, source: Source | None = None) -> None:
        """Args:
        source: the origin of `_probe` and `_telemetry`, if reads of it may hang: they are then called in a thread of
        its own.
            None: they are called on the event loop, and take far below a millisecond.
        """
        self.device_id = device_id
        self.changed: Callable[[], None] = lambda: None
        """Called by the driver when its inventory has changed; set by the agent, which then tells the tracker."""

        self.noticed: Callable[[], None] = lambda: None
        """Called by the driver when its health may have changed, so that the agent probes it at once."""

        self.place = f"devices/{device_id}"
        """Place of its entry in agent.yaml, for errors in settings that only `open` can find."""

        self.given_labels: Mapping[str, str] = {}
        """Labels by its owner, matched by selectors beside the found ones; see device_agents.owner_labels."""

        self.given_facts_json = ""
        """The owner's facts, stored with every measurement."""

        self.hooks = NO_HOOKS
        """The owner's commands; see device_agents.hooks."""

        self._sweeper: StraySweeper | None = None
        self._blocking = BlockingReads(source) if source is not None else None
        self._state = "new"

    @classmethod
    @abstractmethod
    def from_config(cls, values: Mapping[str, object], *, where: str, host_name: str) -> list[Self]:
        """Make the driver or drivers that one entry of agent.yaml asks for.

        Raises:
            ConfigError: an unknown key or a bad value; `where` names the entry.
        """

    @classmethod
    def find(cls, root: Path = Path("/")) -> list[dict[str, object]]:
        """Return the settings of each device of this kind on this machine, as in agent.yaml but without "driver".

        Args:
            root: where /proc, /sys and /dev are found.
        """
        return []

    @classmethod
    def diagnose(cls) -> list[Finding]:
        """Check whether this machine has such devices, and list what is missing. May start processes for seconds."""
        return []

    @classmethod
    def finder(cls, values: Mapping[str, object], *, where: str, host_name: str) -> DeviceFinder | None:
        """Return a finder of later devices for one entry of agent.yaml, or None if no more can come."""
        return None

    @property
    def name(self) -> str:
        """Resource name, "devices/<id>"."""
        return f"devices/{self.device_id}"

    @property
    def resource(self) -> str:
        """Resource that it occupies: two devices with the same resource are never measured at the same time."""
        return self.name

    @property
    def cpus(self) -> tuple[int, ...]:
        """Logical CPUs of this host that its workers are pinned to, once it is open; empty: any."""
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

    def inventory(self) -> Inventory:
        """Return the inventory; it stays the same while the device is open, unless the driver calls `changed`."""
        self._check_open()
        inventory = self._inventory()
        inventory = replace(inventory, labels={**self.given_labels, **inventory.labels})
        return _shown_as_emulated(inventory) if inventory.is_simulated else inventory

    def worker_spec(self) -> WorkerSpec:
        """Return the program of this device's worker processes."""
        self._check_open()
        return self._worker_spec()

    def reference_spec(self) -> WorkerSpec:
        """Return the specification of the worker that times the reference kernel. It runs no candidate."""
        self._check_open()
        return self._reference_spec()

    async def probe(self) -> Health:
        """Tell whether the device can take a lease. Cheap: called with every heartbeat."""
        self._check_open()
        try:
            return await self._ask(self._probe)
        except DeviceUnreachable as error:
            return Health(is_healthy=False, reason=str(error))
        except (OSError, ValueError) as error:
            return Health(is_healthy=False, reason=f"probing failed: {error}")

    async def telemetry(self) -> Telemetry:
        """Return current readings. Takes well under a millisecond, unless the source of the readings hangs."""
        self._check_open()
        try:
            return await self._ask(self._telemetry)
        except DeviceUnreachable:
            return Telemetry(read_at_sec=time.time())  # the probe reports the reason

    async def prepare(self) -> None:
        """Prepare the device for a worker. Called before each worker's start, including restarts after a failure.

        Raises:
            DeviceError: it cannot be made ready.
        """
        self._check_open()

    @property
    def is_prepared(self) -> bool:
        """True if a worker that was started after `prepare` is still usable; if not, the session replaces it."""
        return True

    def learn(self, error: ErrorKind | None, message: str) -> None:  # noqa: B027 - most drivers see for themselves
        """Record a trial's outcome on the device; `error` is None if it was timed."""

    async def reset(self) -> None:
        """Make the device ready for the next session."""
        self._check_open()
        if self._sweeper is not None:
            await self._sweeper.sweep()

    async def close(self) -> None:
        """Release the hardware. Idempotent."""
        self._state = "closed"
        if self._blocking is not None:
            await self._blocking.close(self._let_go)

    def _check_open(self) -> None:
        if self._state != "open":
            raise DeviceClosed(f"{self.name} is {'closed' if self._state == 'closed' else 'not open yet'}")

    def _opened(self, found: T | None) -> T:
        """Return the inventory that `open` read.

        Raises:
            DeviceError: the device was not opened.
        """
        if found is None:
            raise DeviceError(f"{self.name} is not open yet")
        return found

    async def _find(self) -> None:  # noqa: B027 - nothing to find where nothing is real
        """Find the hardware and read its inventory; the I/O of `open`."""

    async def _ask(self, read: Callable[[], T], limit_sec: float | None = None) -> T:
        """Call `read` in the thread for blocking reads, and return its result.

        Args:
            limit_sec: instead of the source's.

        Raises:
            DeviceUnreachable: the source hangs.
        """
        return read() if self._blocking is None else await self._blocking.ask(read, limit_sec)

    def _let_go(self) -> None:  # noqa: B027 - most drivers hold nothing
        """Do the blocking I/O of `close`, after the last read."""

    @abstractmethod
    def _inventory(self) -> Inventory: ...

    @abstractmethod
    def _worker_spec(self) -> WorkerSpec: ...

    def _reference_spec(self) -> WorkerSpec:
        return self._worker_spec()

    def _probe(self) -> Health:
        return Health()

    @abstractmethod
    def _telemetry(self) -> Telemetry: ...


def _shown_as_emulated(inventory: Inventory) -> Inventory:
    """Mark an emulated device in label and model: records are keyed by model, and must not mix with a board's."""
    is_said = inventory.kind == "simulated" or "emulated" in inventory.device_model
    model = inventory.device_model if is_said else f"emulated {inventory.device_model}"
    return replace(inventory, device_model=model, labels={**inventory.labels, "emulated": "true"})
