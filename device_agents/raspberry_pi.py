"""Driver for the Raspberry Pi that the agent runs on, with 64- and 32-bit systems.

    devices:
      - driver: raspberry_pi
        name: pi4-03          # default: <host>-pi
        threads: 4            # threads of parallel kernels; default: all cores
        cpus: [2, 3]          # cores that kernels keep to; default: any, see device_agents.pinning

Without a configuration it is found by the device-tree's model. Beyond what every CPU has, it tells whether the board
is slowed down: under-voltage, frequency capped, throttled, soft temperature limit, as the firmware says them,
https://www.raspberrypi.com/documentation/computers/os.html#get_throttled.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from cross.boards import Board, Found, match, refine
from device_agents.cpu import CpuConfig, CpuDriver
from device_agents.driver import Health
from device_agents.host import own_cpus, read_host
from device_agents.raspberry_pi_throttling import Throttling
from fleet.config import parse
from fleet.errors import DeviceError
from fleet.machine import architecture
from fleet.v1 import device_pb2

_TREES = ("proc/device-tree", "sys/firmware/devicetree/base")
_MAKER = "Raspberry Pi"


@dataclass(frozen=True, slots=True, kw_only=True)
class RaspberryPiConfig(CpuConfig):
    """Settings of one Raspberry Pi; see the module's docstring."""

    emulated: bool = False
    """It only looks like one: shown to everybody, because its times mean nothing."""


class RaspberryPiDriver(CpuDriver):
    """The cores of a Raspberry Pi."""

    kind = "raspberry_pi"
    replaces = ("cpu",)

    def __init__(self, device_id: str, config: RaspberryPiConfig, host_name: str) -> None:
        super().__init__(device_id, config, host_name)
        self._is_emulated = config.emulated
        self._throttling = Throttling(config.sys_root)
        self._board: Board | None = None

    @classmethod
    def from_config(cls, values: Mapping[str, Any], *, where: str, host_name: str) -> list[Self]:
        config = parse(RaspberryPiConfig, values, where=where)
        config.check(where)
        return [cls(config.name or f"{host_name}-pi", config, host_name)]

    @classmethod
    def find(cls, root: Path = Path("/")) -> list[dict[str, Any]]:
        return [{}] if _MAKER in _model(root) else []

    async def probe(self) -> Health:
        health = await super().probe()
        await self._throttling.ask_firmware()
        return health

    async def _find(self) -> None:
        await super()._find()
        model = _model(self._config.sys_root)
        if _MAKER not in model:
            said = f"its device tree says {model!r}" if model else "it has no device tree that names a model"
            raise DeviceError(f"{self.name}: this machine is no Raspberry Pi: {said}; use the driver cpu")
        self._host = read_host(self._config.sys_root, arch=_arch(), usable_cpus=set(self.cpus) or own_cpus())
        self._board = match(Found(kind=self.kind, arch=self._host.arch, model=model))
        self._throttling.open()

    def _inventory(self) -> device_pb2.Inventory:
        inventory = super()._inventory()
        host = self._found_host()
        if self._board is not None:
            found = Found(arch=host.arch, core_count=inventory.core_count, mcpu=host.mcpu)
            inventory.target_json = refine(self._board, found)
            inventory.labels.update(self._board.labels)
            inventory.labels["board"] = self._board.name
            inventory.labels["mcpu"] = str(json.loads(inventory.target_json).get("mcpu", host.mcpu))
        if self._is_emulated:
            inventory.is_simulated = True
            inventory.labels["emulated"] = "true"
        inventory.facts["throttling told by"] = self._throttling.source
        return inventory

    def _telemetry(self) -> device_pb2.Telemetry:
        telemetry = super()._telemetry()
        telemetry.throttle_reasons.extend(self._throttling.read())
        return telemetry


def _arch() -> str:
    """Return the architecture of this process; on a machine of any other kind only a recorded tree gets this far."""
    here = architecture()
    return here if here in ("aarch64", "armv7l") else "aarch64"


def _model(root: Path) -> str:
    """Return what the device tree calls the machine: "Raspberry Pi 4 Model B Rev 1.4"."""
    for tree in _TREES:
        try:
            text = (root / tree / "model").read_text(errors="replace").strip("\0 \n")
        except OSError:
            continue
        if text:
            return text
    return ""
