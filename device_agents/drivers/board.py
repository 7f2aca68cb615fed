"""Common base of drivers for boards: cores as in the cpu driver, and the board's entry in `fleet targets`."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Annotated

from cross.targets.boards import Board, Found, refine
from device_agents.drivers.cpu import CpuConfig, CpuDriver
from fleet.domain.devices import Inventory


@dataclass(frozen=True, slots=True, kw_only=True)
class BoardConfig(CpuConfig):
    """Settings of one board."""

    emulated: Annotated[bool, "True: it only looks like a board, and its times are never stored as one's."] = False


class BoardDriver(CpuDriver):
    """Base of drivers for the processor cores of a board."""

    replaces = ("cpu",)
    settings = BoardConfig

    def __init__(self, device_id: str, config: BoardConfig, host_name: str) -> None:
        super().__init__(device_id, config, host_name)
        self._is_emulated = config.emulated
        self._board: Board | None = None
        """Set by the driver's `_find`, if it knows the board."""

    def _inventory(self) -> Inventory:
        inventory, host = super()._inventory(), self._opened(self._host)
        if self._board is not None:
            # If the kernel does not name the core, the board's description knows better.
            mcpu = "" if host.mcpu == "generic" else host.mcpu
            target = refine(self._board, Found(arch=host.arch, core_count=inventory.core_count, mcpu=mcpu))
            labels = {**inventory.labels, **self._board.labels, "board": self._board.name}
            labels["mcpu"] = str(json.loads(target).get("mcpu", host.mcpu))
            inventory = replace(inventory, target_json=target, labels=labels)
        return replace(inventory, is_simulated=self._is_emulated)
