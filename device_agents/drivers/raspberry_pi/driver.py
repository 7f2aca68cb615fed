"""Driver for the Raspberry Pi that the agent runs on, with 64- and 32-bit systems.

    devices:
      - driver: raspberry_pi
        name: pi4-03          # default: <host>-pi
        threads: 4            # threads of parallel kernels; default: all cores
        cpus: [2, 3]          # cores that kernels keep to; default: any, see device_agents.machine.pinning

Without a configuration it is found by the device tree's model. Beyond the readings of every CPU, it reports whether the
board
is slowed down (under-voltage, frequency capped, throttled, soft temperature limit), as the firmware says,
https://www.raspberrypi.com/documentation/computers/os.html#get_throttled.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from cross.targets.boards import Found, match
from device_agents.driver import Health
from device_agents.drivers.board import BoardConfig, BoardDriver
from device_agents.drivers.raspberry_pi.throttling import Throttling
from device_agents.machine.device_tree import read_model
from device_agents.machine.host import own_cpus, read_host
from fleet.base.machine import architecture
from fleet.domain.devices import Inventory, Telemetry
from fleet.errors import DeviceError

_MAKER = "Raspberry Pi"


class RaspberryPiDriver(BoardDriver):
    """The cores of a Raspberry Pi."""

    kind = "raspberry_pi"
    suffix = "pi"

    def __init__(self, device_id: str, config: BoardConfig, host_name: str) -> None:
        super().__init__(device_id, config, host_name)
        self._throttling = Throttling(config.sys_root)

    @classmethod
    def find(cls, root: Path = Path("/")) -> list[dict[str, object]]:
        return [{}] if _MAKER in read_model(root) else []

    async def probe(self) -> Health:
        health = await super().probe()
        await self._throttling.ask_firmware()
        return health

    async def _find(self) -> None:
        await super()._find()
        model = read_model(self._config.sys_root)
        if _MAKER not in model:
            said = f"its device tree says {model!r}" if model else "it has no device tree that names a model"
            raise DeviceError(f"{self.name}: this machine is no Raspberry Pi: {said}; use the driver cpu")
        self._host = read_host(self._config.sys_root, arch=_arch(), usable_cpus=set(self.cpus) or own_cpus())
        self._board = match(Found(kind=self.kind, arch=self._host.arch, model=model))
        self._throttling.open()

    def _inventory(self) -> Inventory:
        inventory = super()._inventory()
        return replace(inventory, facts={**inventory.facts, "throttling told by": self._throttling.source})

    def _telemetry(self) -> Telemetry:
        return replace(super()._telemetry(), throttle_reasons=tuple(self._throttling.read()))


def _arch() -> str:
    """Return the architecture of this process. Only recorded trees in tests reach this on other kinds of machine."""
    here = architecture()
    return here if here in ("aarch64", "armv7l") else "aarch64"
