"""Finds the tiling of an int8 matrix product that takes the fabric of a leased board the fewest cycles.

    python examples/zynq_gemm_i8/tune.py gemm_i8.bit --tracker HOST:PORT --extents 64 64 64

Every tile that the core can hold is built and timed once: cycles repeat exactly, so once is enough.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import fleet
from cross.compile.library import build
from cross.fabric.tiles import FabricTile, matmul_i8, schedule_matmul, tiles_for
from cross.targets.target import Target, parse_target
from fleet.artifacts.artifact import Artifact
from fleet.domain.measuring import TensorSpec

REGISTERS = Path(__file__).with_name("registers.yaml")


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """A tiling and the time of the whole product with it."""

    tile: FabricTile
    cycles: int
    sec: float


def build_all(extents: tuple[int, int, int], target: Target, folder: Path) -> dict[FabricTile, Artifact]:
    """Build the product in every tiling."""
    m, n, k = extents
    shapes = (((m, k), "int8", False), ((k, n), "int8", False), ((m, n), "int32", True))
    specs = tuple(TensorSpec(shape, dtype, is_output=is_output) for shape, dtype, is_output in shapes)
    mod = matmul_i8(m, n, k)
    return {tile: build(schedule_matmul(mod, tile), target, folder, args=specs) for tile in tiles_for(m, n, k)}


def tune(client: fleet.Fleet, selector: str, bitstream: Path, extents: tuple[int, int, int]) -> list[Timed]:
    """Return all tilings, the fastest first."""
    with client.acquire(selector) as device, tempfile.TemporaryDirectory() as folder:
        device.program(bitstream, registers=REGISTERS)
        artifacts = build_all(extents, parse_target(device.inventory.target_json), Path(folder))
        found = []
        for tile, artifact in artifacts.items():
            timing = device.load(artifact).time(repeat=1, min_repeat_ms=0)
            if not timing.run_cycles:
                raise RuntimeError(f"{device.name} counted no cycles; does the bitstream belong to {REGISTERS.name}?")
            found.append(Timed(tile=tile, cycles=timing.run_cycles[0], sec=timing.run_secs[0]))
    return sorted(found, key=lambda timed: timed.cycles)


def main() -> int:
    """Tune and print the ten best."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bitstream", type=Path)
    parser.add_argument("--tracker")
    parser.add_argument("--on", default="kind=zynq")
    parser.add_argument("--extents", type=int, nargs=3, default=(64, 64, 64), metavar=("M", "N", "K"))
    options = parser.parse_args()
    with fleet.connect(options.tracker) as client:
        found = tune(client, options.on, options.bitstream, tuple(options.extents))
    for timed in found[:10]:
        tile = timed.tile
        sys.stdout.write(
            f"{tile.m:4} x {tile.n:4} x {tile.k:4}  {timed.cycles:10} cycles  {1e6 * timed.sec:10.1f} us\n"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
