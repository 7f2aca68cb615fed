"""Driver for AMD (Xilinx) Zynq boards: ARM cores beside programmable logic (the fabric). Zynq-7000 and ZynqMP.

    devices:
      - driver: zynq
        name: pynq-1          # default: <host>-zynq
        part: xc7z020         # refuses bitstreams for another chip; default: from the board's description
        threads: 2

https://docs.amd.com/r/en-US/ug585-zynq-7000-SoC-TRM, https://docs.amd.com/r/en-US/ug1085-zynq-ultrascale-trm. The
fabric is programmed through Linux's FPGA manager, see device_agents.drivers.zynq.fpga; kernels run on the ARM cores,
and call the fabric when the bitstream came with a description of its registers. A bitstream outlives the lease that
loaded it: the tracker shows it as the label `bitstream`, for others to prefer.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from cross.targets.boards import Found, match
from device_agents.driver import Health, WorkerSpec
from device_agents.drivers.board import BoardConfig, BoardDriver
from device_agents.drivers.cpu import CpuConfig
from device_agents.drivers.zynq.bitstream import chip_of
from device_agents.drivers.zynq.fabric import ZynqFabric
from device_agents.drivers.zynq.fpga import FpgaManager
from device_agents.fabric.window import list_windows
from device_agents.machine.device_tree import read_compatible
from device_agents.machine.files import read_word
from fleet.base.config import data_dir
from fleet.base.machine import read_text
from fleet.base.source_locations import at
from fleet.domain.devices import Inventory, Telemetry
from fleet.errors import ConfigError, DeviceError

_FABRIC = "device_agents.runtimes.fabric:FabricRuntime"
_PLAIN_FABRIC = "device_agents.runtimes.plain.fabric:PlainFabricRuntime"
_FAMILIES = {"xlnx,zynq-7000": "xc7z", "xlnx,zynqmp": "xczu"}
"""The prefix of a family's chip names, by its compatible string."""

_PLAUSIBLE_C = (-40.0, 150.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ZynqConfig(BoardConfig):
    """Settings of one Zynq board; see the module's docstring."""

    part: Annotated[
        str,
        "The chip, as xc7z020: bitstreams for others are refused; default: what the board is known for.",
    ] = ""
    state_dir: Annotated[
        Path | None,
        "Where the last good bitstream is kept; default: fabric/<device> in the data directory.",
    ] = None

    def check(self, where: str) -> None:
        CpuConfig.check(self, where)  # super() does not work in a dataclass with slots
        if self.part and not chip_of(self.part):
            raise ConfigError(f"{at(where, 'part')}: {self.part!r} is no Zynq; write it as xc7z020 or xczu3eg")


class ZynqDriver(BoardDriver):
    """The ARM cores of a Zynq and the fabric beside them."""

    kind = "zynq"
    preload = "device_agents.runtimes.fabric"
    settings = ZynqConfig
    suffix = "zynq"
    fabric: ZynqFabric | None = None

    def __init__(self, device_id: str, config: ZynqConfig, host_name: str) -> None:
        super().__init__(device_id, config, host_name)
        self._zynq = config
        self._manager = FpgaManager(config.sys_root)
        self._obstacle = ""
        self._temperatures: list[_Iio] = []

    @classmethod
    def find(cls, root: Path = Path("/")) -> list[dict[str, object]]:
        return [{}] if _FAMILIES.keys() & read_compatible(root) else []

    async def prepare(self) -> None:
        await super().prepare()
        await self._settle()

    async def reset(self) -> None:
        await super().reset()
        await self._settle()

    async def close(self) -> None:
        await self._settle()
        await super().close()

    async def _settle(self) -> None:
        """Wait for programming, also without its client: a kernel that accesses the fabric would hang the board."""
        if self.fabric is not None:
            await self.fabric.settle()

    async def _find(self) -> None:
        await super()._find()
        root = self._zynq.sys_root
        compatible = read_compatible(root)
        if not self._zynq.part and not _FAMILIES.keys() & compatible:
            said = f"its device tree says {', '.join(compatible)}" if compatible else "it has no device tree"
            raise DeviceError(
                f"{self.name}: this machine is no Zynq: {said}; use the driver cpu, or say which 'part' it has"
            )
        host = self._opened(self._host)
        self._board = match(Found(kind=self.kind, arch=host.arch, model=host.model, compatible=tuple(compatible)))
        part = self._part
        family = next((_FAMILIES[word] for word in compatible if word in _FAMILIES), "")
        self.fabric = ZynqFabric(
            self._manager,
            self._zynq.state_dir or data_dir() / "fabric" / self.device_id,
            boot_id=read_text(root / "proc/sys/kernel/random/boot_id").strip(),
            device_name=self.name,
            part=part,
            chip=chip_of(part) or family,
        )
        self.fabric.open()
        self._obstacle = self._manager.obstacle()
        self._temperatures = [
            _Iio(raw) for raw in sorted((root / "sys/bus/iio/devices").glob("iio:device*/in_temp*_raw"))
        ]

    @property
    def _part(self) -> str:
        """Chip from the configuration, or from the board's description; empty if unknown."""
        return self._zynq.part or (self._board.labels.get("fpga", "") if self._board else "")

    def _inventory(self) -> Inventory:
        inventory = super()._inventory()
        facts = {"fabric": f"cannot be programmed: {self._obstacle}" if self._obstacle else "programmable"}
        windows = list_windows(self._zynq.sys_root)
        if windows:
            facts["fabric_windows"] = windows
        labels = {"fpga": chip_of(self._part)} if self._part else {}
        return replace(inventory, labels={**inventory.labels, **labels}, facts={**inventory.facts, **facts})

    def _worker_spec(self) -> WorkerSpec:
        settings: dict[str, object] = {
            # Also without a description: the runtime then reports that where a module calls the fabric.
            "registers_yaml": self._opened(self.fabric).registers_yaml,
            "root": str(self._zynq.sys_root),
        }
        root = self._zynq.sys_root
        memories = [path.name for path in (root / "sys/class/u-dma-buf").glob("*")]
        return replace(
            super()._worker_spec(),
            runtime=_PLAIN_FABRIC if self._is_plain else _FABRIC,
            settings=settings,
            devices=tuple(str(root / "dev" / name) for name in ("mem", "uio*", *memories)),
            readable=(str(root / "sys"),),
            needs_owner=True,
        )

    def _reference_spec(self) -> WorkerSpec:
        """Specify a worker without the fabric: the kernel runs on the cores, and registers have one user at a time."""
        return super()._worker_spec()

    def _probe(self) -> Health:
        fault = self._opened(self.fabric).fault
        return Health(is_healthy=False, reason=f"fabric: {fault}") if fault else super()._probe()

    def _telemetry(self) -> Telemetry:
        telemetry = super()._telemetry()
        temps = [temp for sensor in self._temperatures if (temp := sensor.read_c()) is not None]
        if telemetry.temp_c is not None:
            temps.append(telemetry.temp_c)
        return replace(telemetry, temp_c=max(temps, default=None))


class _Iio:
    """One temperature of the XADC or the AMS, as the kernel's industrial I/O gives it: (raw + offset) * scale [m degC].

    Offset and scale are constants of the converter and are read once.
    """

    def __init__(self, raw: Path) -> None:
        self._raw = raw
        base = raw.name.removesuffix("_raw")
        # Drivers provide a scale for each input, or one for all temperatures.
        self._scale = _number(raw.with_name(f"{base}_scale")) or _number(raw.with_name("in_temp_scale"))
        self._offset = _number(raw.with_name(f"{base}_offset")) or _number(raw.with_name("in_temp_offset")) or 0.0

    def read_c(self) -> float | None:
        raw = _number(self._raw)
        if raw is None or self._scale is None:
            return None
        temp_c = (raw + self._offset) * self._scale / 1000
        return temp_c if _PLAUSIBLE_C[0] < temp_c < _PLAUSIBLE_C[1] else None


def _number(path: Path) -> float | None:
    text = read_word(path) or ""
    return float(text) if re.fullmatch(r"-?\d+(\.\d+)?", text) else None
