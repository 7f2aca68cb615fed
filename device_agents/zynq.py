"""Driver for AMD (Xilinx) Zynq boards: ARM cores beside a fabric that leases can program. Zynq-7000 and ZynqMP.

    devices:
      - driver: zynq
        name: pynq-1          # default: <host>-zynq
        part: xc7z020         # refuses bitstreams for another chip; default: what the board's description says
        threads: 2

https://docs.amd.com/r/en-US/ug585-zynq-7000-SoC-TRM, https://docs.amd.com/r/en-US/ug1085-zynq-ultrascale-trm. The
fabric is programmed through Linux's FPGA manager, see device_agents.fpga; kernels run on the ARM cores, and call the
fabric when the bitstream came with a description of its registers. A bitstream outlives the lease that loaded it: the
tracker shows it as the label `bitstream`, for others to prefer.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from cross.boards import Board, Found, match, refine
from device_agents.bitstream import check_chip, chip_of, fabric_addresses
from device_agents.cpu import CpuConfig, CpuDriver
from device_agents.driver import Health, WorkerSpec
from device_agents.fabric import check_registers
from device_agents.fabric_window import list_windows
from device_agents.fpga import FpgaManager
from device_agents.fpga_fabric import Fabric
from fleet.config import data_dir, parse
from fleet.errors import ConfigError, DeviceError, NotProgrammable
from fleet.v1 import device_pb2, session_service_pb2

_FABRIC = "device_agents.fabric_runtime:FabricRuntime"
_PLAIN_FABRIC = "device_agents.plain_runtime_fabric:PlainFabricRuntime"
_FAMILIES = {"xlnx,zynq-7000": "xc7z", "xlnx,zynqmp": "xczu"}
"""By what the device tree says: how the names of their chips begin."""

_TREES = ("proc/device-tree", "sys/firmware/devicetree/base")
_PLAUSIBLE_C = (-40.0, 150.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ZynqConfig(CpuConfig):
    """Settings of one Zynq board; see the module's docstring."""

    part: str = ""
    state_dir: Path | None = None
    """Where the last good bitstream is kept; default: fabric/<device> in the data directory."""

    emulated: bool = False
    """Shown to everybody: its times mean nothing."""


class ZynqDriver(CpuDriver):
    """The ARM cores of a Zynq and the fabric beside them."""

    kind = "zynq"
    preload = "device_agents.fabric_runtime"
    replaces = ("cpu",)
    has_fabric = True

    def __init__(self, device_id: str, config: ZynqConfig, host_name: str) -> None:
        super().__init__(device_id, config, host_name)
        self._zynq = config
        self._manager = FpgaManager(config.sys_root)
        self._fabric: Fabric | None = None
        self._board: Board | None = None
        self._obstacle = ""
        self._temperatures: list[_Iio] = []

    @classmethod
    def from_config(cls, values: Mapping[str, Any], *, where: str, host_name: str) -> list[Self]:
        config = parse(ZynqConfig, values, where=where)
        if config.threads is not None and config.threads < 1:
            raise ConfigError(f"{where}: threads: expected a number above zero, found {config.threads}")
        if config.part and not chip_of(config.part):
            raise ConfigError(f"{where}: part: {config.part!r} is no Zynq; write it as xc7z020 or xczu3eg")
        return [cls(config.name or f"{host_name}-zynq", config, host_name)]

    @classmethod
    def find(cls, root: Path = Path("/")) -> list[dict[str, Any]]:
        return [{}] if _FAMILIES.keys() & _compatible(root) else []

    @property
    def bitstream_digest(self) -> str:
        return self._fabric.digest if self._fabric is not None else ""

    async def program(self, bitstream: Path, request: session_service_pb2.ProgramRequest) -> bool:
        self._check_open()
        if self._fabric is None:
            raise DeviceError(f"{self.name} is not open yet")
        if not self._manager.exists:
            raise NotProgrammable(f"{self.name} has no fabric to program: {self._manager.obstacle()}")
        if request.registers_yaml.strip():
            # 48 KiB of YAML take seconds on a board.
            await asyncio.to_thread(check_registers, request.registers_yaml, fabric_addresses(self._chip))
        part = self._part
        return await self._fabric.program(
            bitstream, request, lambda found: check_chip(found, part, device_name=self.name)
        )

    async def prepare(self) -> None:
        await super().prepare()
        if self._fabric is not None:
            # Whoever asked for it may be gone; a kernel that touches the fabric meanwhile hangs the board.
            await self._fabric.settle()

    async def reset(self) -> None:
        await super().reset()
        if self._fabric is not None:
            await self._fabric.settle()

    async def close(self) -> None:
        if self._fabric is not None:
            await self._fabric.settle()
        await super().close()

    async def _find(self) -> None:
        await super()._find()
        root = self._zynq.sys_root
        compatible = _compatible(root)
        if not self._zynq.part and not _FAMILIES.keys() & compatible:
            said = f"its device tree says {', '.join(compatible)}" if compatible else "it has no device tree"
            raise DeviceError(
                f"{self.name}: this machine is no Zynq: {said}; use the driver cpu, or say which 'part' it has"
            )
        boot_id = _read(root / "proc/sys/kernel/random/boot_id")
        self._fabric = Fabric(self._manager, self._zynq.state_dir or data_dir() / "fabric" / self.device_id, boot_id)
        self._fabric.open()
        self._obstacle = self._manager.obstacle()
        host = self._found_host()
        self._board = match(
            Found(kind=self.kind, arch=host.arch, model=host.model, compatible=tuple(_compatible(root)))
        )
        self._temperatures = [
            _Iio(raw) for raw in sorted((root / "sys/bus/iio/devices").glob("iio:device*/in_temp*_raw"))
        ]

    @property
    def _part(self) -> str:
        """The chip as configured, or as the board's description has it; empty: not known."""
        return self._zynq.part or (self._board.labels.get("fpga", "") if self._board else "")

    @property
    def _chip(self) -> str:
        """The chip; where only the family is known, the family as chips of it begin."""
        known = (_FAMILIES[word] for word in _compatible(self._zynq.sys_root) if word in _FAMILIES)
        return chip_of(self._part) or next(known, "")

    def _inventory(self) -> device_pb2.Inventory:
        inventory = super()._inventory()
        host = self._found_host()
        if self._board is not None:
            # Where the kernel does not tell its core, the board's description knows better.
            mcpu = "" if host.mcpu == "generic" else host.mcpu
            found = Found(arch=host.arch, core_count=inventory.core_count, mcpu=mcpu)
            inventory.target_json = refine(self._board, found)
            inventory.labels.update(self._board.labels)
            inventory.labels["board"] = self._board.name
        if self._part:
            inventory.labels["fpga"] = chip_of(self._part)
        if self._zynq.emulated:
            inventory.is_simulated = True
            inventory.labels["emulated"] = "true"
        inventory.facts["fabric"] = f"cannot be programmed: {self._obstacle}" if self._obstacle else "programmable"
        windows = list_windows(self._zynq.sys_root)
        if windows:
            inventory.facts["fabric_windows"] = windows
        return inventory

    def _worker_spec(self) -> WorkerSpec:
        spec = super()._worker_spec()
        # Also without a description: then it says so where a module calls the fabric.
        registers = self._fabric.registers_yaml if self._fabric is not None else ""
        settings = {"registers_yaml": registers, "root": str(self._zynq.sys_root)}
        return replace(spec, runtime=_PLAIN_FABRIC if self._is_plain else _FABRIC, settings=settings)

    def _probe(self) -> Health:
        fault = self._fabric.fault if self._fabric is not None else ""
        return Health(is_healthy=False, reason=f"fabric: {fault}") if fault else super()._probe()

    def _telemetry(self) -> device_pb2.Telemetry:
        telemetry = super()._telemetry()
        temperatures = [temp for sensor in self._temperatures if (temp := sensor.read_c()) is not None]
        if temperatures:
            telemetry.temp_c = max([*temperatures, *([telemetry.temp_c] if telemetry.HasField("temp_c") else [])])
        return telemetry


class _Iio:
    """One temperature of the XADC or the AMS, as the kernel's industrial I/O gives it: (raw + offset) * scale [m degC].

    Offset and scale are constants of the converter and are read once.
    """

    def __init__(self, raw: Path) -> None:
        self._raw = raw
        base = raw.name.removesuffix("_raw")
        # Drivers give them for each input, or once for all temperatures.
        self._scale = _number(raw.with_name(f"{base}_scale")) or _number(raw.with_name("in_temp_scale"))
        self._offset = _number(raw.with_name(f"{base}_offset")) or _number(raw.with_name("in_temp_offset")) or 0.0

    def read_c(self) -> float | None:
        raw = _number(self._raw)
        if raw is None or self._scale is None:
            return None
        temp_c = (raw + self._offset) * self._scale / 1000
        return temp_c if _PLAUSIBLE_C[0] < temp_c < _PLAUSIBLE_C[1] else None


def _compatible(root: Path) -> list[str]:
    """Return the machine's compatible strings, most special first."""
    for tree in _TREES:
        text = _read(root / tree / "compatible")
        if text:
            return [word for word in text.split("\0") if word]
    return []


def _number(path: Path) -> float | None:
    text = _read(path)
    return float(text) if re.fullmatch(r"-?\d+(\.\d+)?", text) else None


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""
