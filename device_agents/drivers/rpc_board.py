"""Common base of drivers for boards behind a TVM RPC server, with facts about the board from the configuration."""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from cross.targets.boards import find_board
from device_agents.driver import Driver, WorkerSpec
from device_agents.machine.host import slug
from fleet.base.config import shown
from fleet.base.source_locations import at, named_in_errors
from fleet.domain.devices import Inventory, RuntimeKind, Telemetry
from fleet.domain.tvm_versions import check_versions, tvm_version
from fleet.errors import ConfigError

_DEFAULT_MEMORY_MB = 1024
_ARCHITECTURES = {"arm64": "aarch64", "armv7a": "armv7l", "arm": "armv7l", "i686": "x86"}
_CPU_KINDS = ("llvm", "c")


@dataclass(frozen=True, slots=True, kw_only=True)
class RpcBoardConfig:
    """Settings of one board."""

    target: Annotated[
        str | dict[str, object], "A board of `fleet targets`, or a TVM target: {kind: llvm, mtriple: ...}."
    ]
    device_type: Annotated[str, "cpu, opencl, cuda, vulkan, ...: a device of the server's runtime."] = "cpu"
    device_index: Annotated[int, "Which of several devices of that type."] = 0
    memory_mb: Annotated[int | None, "Memory of the board [MiB]; default: the known board's, else 1024."] = None
    session_sec: Annotated[
        int,
        "After this time the server ends a session [s]: the longest that a hung kernel blocks it.",
    ] = 120
    emulated: Annotated[bool, "True: its times are never stored as a board's."] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BoardFacts:
    """Facts about the board, from the configuration."""

    target_json: str
    arch: str
    model: str
    core_count: int
    memory_mb: int
    labels: dict[str, str]


class RpcBoardDriver(Driver):
    """Device behind a TVM RPC server."""

    preload = "device_agents.runtimes.tvm"
    serves_one_worker = True
    may_be_unplugged = True

    def __init__(
        self, device_id: str, config: RpcBoardConfig, host_name: str, what: BoardFacts, *, address: str
    ) -> None:
        """Args: address: of the server, for people."""
        super().__init__(device_id)
        self._settings = config
        self._what = what
        self._host_name = host_name
        self._address = address

    async def _find(self) -> None:
        check_versions()

    def _inventory(self) -> Inventory:
        what = self._what
        labels = {"arch": what.arch, "model": slug(what.model), "cores": str(what.core_count), "host": self._host_name}
        return Inventory(
            kind=self.kind,
            labels={**labels, **what.labels},
            target_json=what.target_json,
            device_model=f"{what.model} x{what.core_count}",
            host_fingerprint=f"tvm-rpc-{self._address}",
            memory_bytes=what.memory_mb * 1024**2,
            core_count=what.core_count,
            tvm_version=tvm_version() or "",
            facts={"address": self._address, "runs on": self._settings.device_type},
            is_simulated=self._settings.emulated,
            runtime=RuntimeKind.TVM_RPC,
        )

    def _spec_for(self, host: str, port: int, key: str) -> WorkerSpec:
        """Return the specification of workers that open sessions at an address with this key."""
        settings = self._settings
        return WorkerSpec(
            runtime="device_agents.runtimes.tvm_rpc.runtime:RpcRuntime",
            settings={
                "host": host,
                "port": port,
                "key": key,
                "device_type": settings.device_type,
                "device_index": settings.device_index,
                "session_sec": settings.session_sec,
            },
            needs_network=True,
        )

    def _telemetry(self) -> Telemetry:
        return Telemetry(read_at_sec=time.time())


def describe(config: RpcBoardConfig, *, where: str) -> BoardFacts:
    """Determine the board from `target` and the settings beside it.

    Raises:
        ConfigError: no such board, or a target that the device type does not run.
    """
    place = at(where, "target")
    if isinstance(config.target, str):
        with named_in_errors(place):
            board = find_board(config.target)
        target, arch, model, labels = board.target, board.arch, board.title, dict(board.labels)
        cores, memory_mb = board.cores, config.memory_mb or board.memory_mb
    else:
        target, labels = config.target, {}
        arch = architecture_of(target)
        cores = _core_count(target, place)
        model = f"{target.get('mcpu') or target.get('device') or target.get('kind')} {arch}"
        memory_mb = config.memory_mb or _DEFAULT_MEMORY_MB
    if config.session_sec < 1:
        raise ConfigError(f"{at(where, 'session_sec')}: expected a number above zero, found {config.session_sec}")
    kind = target.get("kind")
    if not isinstance(kind, str):
        raise ConfigError(f"{place}: the key 'kind' is missing; for example {{kind: llvm, mtriple: ...}}")
    runs_on = "cpu" if kind in _CPU_KINDS else kind
    if runs_on != config.device_type:
        runs = f"a target of kind {kind!r} runs on {runs_on!r}"
        raise ConfigError(f"{at(where, 'device_type')}: {runs}, not on {config.device_type!r}")
    if "mcpu" in target:
        labels.setdefault("mcpu", str(target["mcpu"]))
    try:
        target_json = json.dumps(target, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{place}: cannot be written as JSON: {error}") from error
    return BoardFacts(
        target_json=target_json, arch=arch, model=model, core_count=cores, memory_mb=memory_mb, labels=labels
    )


def architecture_of(target: Mapping[str, object]) -> str:
    """Return the CPU architecture of a TVM target, or of its host, as `uname -m` says it."""
    host = target.get("host")
    triple = str(target.get("mtriple") or (host.get("mtriple") if isinstance(host, Mapping) else "") or "")
    word = triple.partition("-")[0]
    return _ARCHITECTURES.get(word, word) or platform.machine()


def _core_count(target: Mapping[str, object], where: str) -> int:
    found = target.get("num-cores", 1)
    if type(found) is int and found > 0:
        return found
    raise ConfigError(f"{at(where, 'num-cores')}: expected a number above zero, found {shown(found)}")
