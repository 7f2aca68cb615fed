"""A user's session with a board that multiplies matrices in its fabric, for any emulation: leases, bitstreams,
tensorised modules, cycles.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import fleet.aio
from cross.compile.library import build
from cross.fabric.tiles import FabricTile, matmul_i8, schedule_matmul
from cross.targets.target import Target
from fleet.artifacts.artifact import Artifact
from fleet.client.device import Device
from fleet.domain.measuring import Measurement, TensorSpec
from tests.emulated.fabric import bitstream, registers_yaml

EXTENT = 64
TILES = (FabricTile(m=8, n=8, k=32), FabricTile(m=16, n=16, k=64), FabricTile(m=32, n=32, k=64))
LEFT = np.random.default_rng(1).integers(-128, 128, (EXTENT, EXTENT), dtype=np.int8)
RIGHT = np.random.default_rng(2).integers(-128, 128, (EXTENT, EXTENT), dtype=np.int8)
PRODUCT = LEFT.astype(np.int32) @ RIGHT.astype(np.int32)
_SHAPE = (EXTENT, EXTENT)
SPECS = (
    TensorSpec(_SHAPE, "int8"),
    TensorSpec(_SHAPE, "int8"),
    TensorSpec(_SHAPE, "int32", is_output=True),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Results of one tiling in one lease."""

    product: np.ndarray
    cycles: tuple[int, ...]
    measurement: Measurement


def build_tilings(target: Target, folder: Path) -> dict[FabricTile, Artifact]:
    """Build one product in every tiling."""
    mod = matmul_i8(EXTENT, EXTENT, EXTENT)
    return {tile: build(schedule_matmul(mod, tile), target, folder, args=SPECS) for tile in TILES}


async def program(device: Device, design: str, folder: Path, **patience: int) -> bool:
    """Program a design, with the description that belongs to it; `patience` as for `registers_yaml`."""
    registers = folder / f"{design}.yaml"
    registers.write_text(registers_yaml("registers_relu" if design.endswith("relu") else "registers", **patience))
    return await device.program(bitstream(design, folder), registers=registers)


async def run(device: Device, artifact: Artifact) -> Found:
    """Compute with an artifact, and time it."""
    module = device.load(artifact)
    product: Any = await module(LEFT, RIGHT)
    timing = await module.time(repeat=2, min_repeat_ms=0)
    return Found(product=np.asarray(product), cycles=timing.run_cycles, measurement=timing)


async def use_a_board(
    client: fleet.aio.Fleet, selector: str, artifacts: dict[FabricTile, Artifact], folder: Path
) -> None:
    """Two leases: three tilings on one bitstream, twice; then the same artifact on another bitstream."""
    async with client.acquire(selector) as device:
        assert await program(device, "gemm_i8", folder)
        first = {tile: await run(device, artifact) for tile, artifact in artifacts.items()}
        again = {tile: await run(device, artifact) for tile, artifact in artifacts.items()}
    for tile, found in first.items():
        np.testing.assert_array_equal(PRODUCT, found.product, err_msg=str(tile))
        assert found.measurement.time_source == "cycles"
        assert [cycles / 1e8 for cycles in found.cycles] == list(found.measurement.run_secs)
        assert len({*found.cycles, *again[tile].cycles}) == 1
    assert len({found.cycles[0] for found in first.values()}) == len(TILES)

    tile = TILES[1]
    async with client.acquire(selector) as device:
        assert not await program(device, "gemm_i8", folder)
        kept = await run(device, artifacts[tile])
        assert await program(device, "gemm_i8_relu", folder)
        changed = await run(device, artifacts[tile])
        assert await program(device, "gemm_i8_wide", folder)
        faster = await run(device, artifacts[tile])
    assert kept.cycles == first[tile].cycles
    np.testing.assert_array_equal(np.maximum(PRODUCT, 0), changed.product)
    np.testing.assert_array_equal(PRODUCT, faster.product)
    assert faster.cycles[0] < kept.cycles[0]
