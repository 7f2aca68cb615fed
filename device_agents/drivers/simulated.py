"""Driver for simulated devices: real leases, sessions and worker processes, but simulated kernels. Needs no TVM.

    devices:
      - driver: simulated
        name: sim             # sim-0, sim-1, ...; one device is just "sim"
        count: 4
        latency_us: 100       # of a typical kernel
        noise: 0.01           # relative standard deviation of the times
        seed: 1
        crash_rate: 0.05      # share of all artifacts that crash
        hang_rate: 0.01
        load_ms: 2
        time_scale: 1.0       # how much of the pretended time really passes
        disconnect_after: 100 # trials until the device stops answering...
        reconnect_sec: 5      # ...and stays away so long
        labels: {arch: armv8}
        board: rpi4-64        # be taken for this one of `fleet targets`: its architecture, target, cores, memory

With `board` the device stays of kind "simulated" and says so (`is_simulated`, label emulated=true); the simulated board
is in its labels: arch, model, cores, mcpu, the board's CPU features, board=rpi4-64 and board_kind=raspberry_pi. A load
test with a fleet of each is a few lines of agent.yaml, and `fleet acquire 'board=rpi4-64'` finds one of them.

How single artifacts behave, faults included, is in device_agents.runtimes.simulated.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Self

from cross.targets.boards import Board, find_board
from device_agents.driver import MAX_DEVICES, Driver, Health, WorkerSpec
from device_agents.machine.host import slug
from fleet.base.config import parse
from fleet.base.source_locations import at, at_key, named_in_errors
from fleet.domain.devices import Inventory, Telemetry
from fleet.domain.labels import FIXED_LABELS, MAX_GIVEN_LABELS, size_fault
from fleet.domain.measuring import ErrorKind
from fleet.domain.selectors import is_nameable
from fleet.errors import ConfigError

_PLAIN = Board(
    name="simulated", title="simulated", kind="simulated", arch="simulated", mcpu="x86-64-v3", cores=1, memory_mb=1024
)
_RUNTIME_KEYS = ("latency_us", "noise", "seed", "crash_rate", "hang_rate", "load_ms", "time_scale")
_DAY_SEC = 86_400.0
_BOUNDS = {
    **dict.fromkeys(("crash_rate", "hang_rate"), 1.0),
    **dict.fromkeys(("noise", "time_scale"), 1e6),
    "latency_us": _DAY_SEC * 1e6,
    "load_ms": _DAY_SEC * 1e3,
    "reconnect_sec": _DAY_SEC,
}
"""Maximum of each; none is below zero."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedConfig:
    """Settings of one entry; see the module's docstring."""

    name: Annotated[str | None, "Id of the device, numbered where there are several; default: <host>-simulated."] = None
    count: Annotated[int, "How many devices."] = 1
    latency_us: Annotated[float, "Time of a typical kernel [us]."] = 100.0
    noise: Annotated[float, "Relative standard deviation of the times."] = 0.01
    seed: Annotated[int, "Seed of the pretended times; each device of an entry gets its own."] = 0
    crash_rate: Annotated[float, "Share of all artifacts that crash."] = 0.0
    hang_rate: Annotated[float, "Share of all artifacts that hang."] = 0.0
    load_ms: Annotated[float, "Time that loading an artifact takes [ms]."] = 0.0
    time_scale: Annotated[float, "How much of the pretended time really passes."] = 1.0
    disconnect_after: Annotated[int, "Trials until the device stops answering; 0: never."] = 0
    reconnect_sec: Annotated[float, "How long it stays away then [s]."] = 5.0
    labels: Annotated[dict[str, str], "More labels for selectors."] = field(default_factory=dict)
    board: Annotated[
        str | None,
        "Board of `fleet targets` that it is taken for: architecture, target, cores, memory.",
    ] = None


class SimulatedDriver(Driver):
    """A simulated device."""

    kind = "simulated"
    settings = SimulatedConfig
    preload = "device_agents.runtimes.simulated"
    checks_architecture = False

    def __init__(self, device_id: str, config: SimulatedConfig) -> None:
        super().__init__(device_id)
        self._config = config
        self._board = _PLAIN if config.board is None else find_board(config.board)
        self._trials = 0
        self._away_until: float | None = None

    @classmethod
    def from_config(cls, values: Mapping[str, object], *, where: str, host_name: str) -> list[Self]:
        config = parse(SimulatedConfig, values, where=where)
        if config.count < 1:
            raise ConfigError(f"{at(where, 'count')}: expected a number above zero, found {config.count}")
        for key, most in _BOUNDS.items():
            value = getattr(config, key)
            if not 0 <= value <= most:  # also refuses nan
                raise ConfigError(f"{at(where, key)}: expected a number from 0 to {most:g}, found {value:g}")
        if config.count > MAX_DEVICES:
            raise ConfigError(f"{at(where, 'count')}: {config.count} devices, an agent serves at most {MAX_DEVICES}")
        if fault := size_fault({str(key): str(said) for key, said in config.labels.items()}, most=MAX_GIVEN_LABELS):
            raise ConfigError(f"{at(where, 'labels')}: {fault}")
        for label, said in config.labels.items():
            if label in FIXED_LABELS:
                place = at_key(at(where, "labels"), label)
                raise ConfigError(f"{place}: the fleet sets {label!r} by itself; choose another key")
            if not is_nameable(str(said)):
                place = at(where, "labels", label)
                raise ConfigError(f"{place}: {said!r} is nothing that a selector can name")
        if config.board is not None:
            with named_in_errors(at(where, "board")):
                find_board(config.board)
        base = config.name or f"{host_name}-{config.board or 'simulated'}"
        if config.count == 1:
            return [cls(base, config)]
        return [cls(f"{base}-{index}", replace(config, seed=config.seed + index)) for index in range(config.count)]

    def learn(self, error: ErrorKind | None, message: str) -> None:
        self._trials += 1
        if self._config.disconnect_after and self._trials % self._config.disconnect_after == 0:
            self._away_until = time.monotonic() + self._config.reconnect_sec

    def _probe(self) -> Health:
        if self._away_until is not None and time.monotonic() < self._away_until:
            return Health(is_healthy=False, reason="the simulated device stopped answering; it comes back by itself")
        self._away_until = None
        return Health()

    def _inventory(self) -> Inventory:
        board, cores = self._board, self._board.cores or 1
        labels = {"arch": board.arch or platform.machine(), "model": slug(board.title), "cores": str(cores)}
        if self._config.board is not None:
            labels |= {**board.labels, **dict.fromkeys(board.features.split(), "true")}
            labels |= {"board": board.name, "board_kind": board.kind}
        if board.mcpu:
            labels["mcpu"] = board.mcpu
        labels.update({key: str(value) for key, value in self._config.labels.items()})
        return Inventory(
            kind=self.kind,
            labels=labels,
            target_json=board.target_json,
            device_model=board.title if board is _PLAIN else f"{board.title} (simulated)",
            host_fingerprint=f"simulated-{self.device_id}",
            memory_bytes=board.memory_bytes or 1024**3,
            core_count=cores,
            is_simulated=True,
        )

    def _worker_spec(self) -> WorkerSpec:
        settings = {key: getattr(self._config, key) for key in _RUNTIME_KEYS}
        return WorkerSpec(runtime="device_agents.runtimes.simulated:SimulatedRuntime", settings=settings)

    def _telemetry(self) -> Telemetry:
        return Telemetry(read_at_sec=time.time(), temp_c=40.0, freq_hz=1e9, governor="simulated")
