"""Inventory, health and state of devices."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from fleet.base.text import sanitize
from fleet.domain.health import GOOD, HealthMark


class DeviceState(enum.StrEnum):
    """Readiness of a device for leases. The names are those of fleet.v1.DeviceState without their prefix."""

    AVAILABLE = "AVAILABLE"
    LEASED = "LEASED"
    OFFLINE = "OFFLINE"
    FAULTED = "FAULTED"


class RuntimeKind(enum.StrEnum):
    """Kind of programs that a device runs. The names are those of fleet.v1.RuntimeKind without their prefix."""

    TVM = "TVM"
    """TVM's runtime: functions, and whole models by the Relax VM."""

    PLAIN = "PLAIN"
    """Our own runtime for boards without TVM's: plain functions only."""

    TVM_RPC = "TVM_RPC"
    """TVM's runtime in another process, behind TVM RPC: the same, but nothing is called back from it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """Description of a device; fixed while its agent runs."""

    kind: str = ""
    """The driver that serves it: "cpu", "cuda", "simulated"."""

    labels: dict[str, str] = field(default_factory=dict)
    """Labels that selectors match, beside kind and name."""

    target_json: str = ""
    """TVM target as JSON, without its host."""

    device_model: str = ""
    """Key of records: the same string for all boards that should measure alike."""

    host_fingerprint: str = ""
    """Identifies the machine and its boot: equal for two processes that share its cores."""

    memory_bytes: int = 0
    core_count: int = 0
    tvm_version: str = ""
    """Version of the TVM runtime that loads artifacts; empty if the driver has none."""

    facts: dict[str, str] = field(default_factory=dict)
    """Everything else that was found, for people."""

    is_simulated: bool = False
    """Emulated or simulated: its times are never stored as a board's."""

    runtime: RuntimeKind = RuntimeKind.TVM

    has_before_lease: bool = False
    """Its agent runs the owner's hook `before_lease` when a session opens."""

    def __repr__(self) -> str:
        labels = "".join(f", {key}={value}" for key, value in sorted(self.labels.items()))
        return sanitize(f"<Inventory {self.device_model or 'of no model'}, kind={self.kind}{labels}>")

    @property
    def is_pretended(self) -> bool:
        """Nothing really runs on it: artifacts of any kind are taken, times and answers are made up."""
        return self.kind == "simulated"


@dataclass(frozen=True, slots=True, kw_only=True)
class Telemetry:
    """Readings at one moment; None is unknown, not zero."""

    read_at_sec: float = 0.0
    """Time of the reading, on the agent's clock [s since 1970]."""

    temp_c: float | None = None
    """Hottest sensor [degC]."""

    freq_hz: float | None = None
    """Mean current core clock [Hz]."""

    governor: str | None = None
    load_1min: float | None = None
    cpu_busy: float | None = None
    """Share of the host's CPU time used by anyone since the last reading, 0..1."""

    trials: int = 0
    """Trials measured since the agent started."""

    trials_per_min: float = 0.0
    last_error: str = ""
    memory_available_bytes: int | None = None
    power_w: float | None = None
    throttle_reasons: tuple[str, ...] = ()
    """Why it runs slower than it could: "thermal", "power-cap", "under-voltage"."""

    battery_percent: float | None = None
    foreign_processes: int | None = None
    """Processes of others that use the device."""

    reference_sec: float | None = None
    """Latest time of the reference kernel [s]."""


def holder_text(holder: str, note: str) -> str:
    """Return a holder as text: the verified name, followed by its client's note in brackets."""
    return f"{holder} ({note})" if holder and note else holder


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceStatus:
    """One device as the tracker sees it."""

    name: str
    """ "devices/<id>"."""

    inventory: Inventory = field(default_factory=Inventory)
    state: DeviceState = DeviceState.OFFLINE
    address: str = ""
    """Address of the data path, "host:port"."""

    lease_name: str = ""
    """The live lease; empty when there is none."""

    epoch: int = 0
    """Epoch of the newest lease ever granted on it; 0 before the first."""

    telemetry: Telemetry = field(default_factory=Telemetry)
    reason: str = ""
    """Why it is not AVAILABLE, in a sentence."""

    attached_at_sec: float | None = None
    """Time of its agent's last attach [s since 1970]."""

    holder: str = ""
    granted_at_sec: float | None = None
    """Grant time of the live lease [s since 1970]."""

    bitstream_digest: str = ""
    """The bitstream its fabric was last programmed with; empty: none, or not known."""

    agent_key_id: str = ""
    """Key of the agent that serves it; empty without TLS."""

    holder_note: str = ""
    """Name chosen by the holder's client; empty if it equals the certificate's name."""

    mark: HealthMark = GOOD
    """Judgement of its health by people or the tracker."""

    relay_address: str = ""
    """Address of a relay that leads to its agent, "host:port"; empty: none."""

    @property
    def held_by(self) -> str:
        """The holder, with its note."""
        return holder_text(self.holder, self.holder_note)

    def __repr__(self) -> str:
        model = f", {self.inventory.device_model}" if self.inventory.device_model else ""
        holder = f", held by {self.held_by}" if self.holder else ""
        reason = f": {self.reason}" if self.reason else ""
        mark = f", {self.mark.state}" if self.mark != GOOD else ""
        return sanitize(f"<DeviceStatus {self.name} {self.state}{mark}{model}{holder}{reason}>")
