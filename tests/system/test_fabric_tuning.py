"""Stock MetaSchedule picks the tiling of a product for the fabric, by cycles measured on a leased board."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import fleet.aio
from cross.fabric.tiles import FabricTile, matmul_i8
from cross.targets.intrinsics import load_intrinsics
from cross.targets.target import host_target
from device_agents.agent import Agent, Home
from device_agents.config import make_drivers, parse_config
from examples.zynq_gemm_i8 import tune as example
from fleet.base.digests import digest_of
from fleet.testing import serve_tracker
from tests.emulated.fabric import bitstream, emulated_fabric
from tests.emulated.fabric_session import program
from tests.emulated.fpga_manager import fpga_manager
from tests.emulated.zynq_root import make_zynq_root
from tests.system.fleet_processes import connect

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
EXTENT = 32
TRIALS = 12


def cycles_of(tile: FabricTile, extent: int) -> int:
    """Return the cycles of the whole product in such tiles, by the design's own account."""
    calls = extent**3 // (tile.m * tile.n * tile.k)
    blocks = -(-tile.m // 8) * -(-tile.n // 8)
    return calls * ((tile.m + tile.n) * tile.k // 4 + blocks * (tile.k + 2) + 2 * tile.m * tile.n)


def tile_of(trace: Any) -> FabricTile:
    found = re.search(r"fabric_gemm_i8_(\d+)x(\d+)x(\d+)", str(trace))
    assert found is not None, trace
    m, n, k = map(int, found.groups())
    return FabricTile(m=m, n=n, k=k)


def tune(address: str, selector: str, work_dir: Path) -> list[Any]:
    """Return the records of a stock tuning run."""
    load_intrinsics(host_target())
    from tvm.s_tir import meta_schedule as ms
    from tvm.target import Target

    from cross.fabric.space import tiles_space
    from fleet.metaschedule import FleetBuilder, FleetRunner

    mod = matmul_i8(EXTENT, EXTENT, EXTENT)
    mod["main"] = mod["main"].with_attr("global_symbol", "main")
    runner, builder = FleetRunner(address, selector), FleetBuilder(max_workers=2)
    try:
        database = ms.tune_tir(
            mod,
            Target({"kind": "llvm", "num-cores": 2}),
            work_dir=str(work_dir),
            max_trials_global=TRIALS,
            num_trials_per_iter=TRIALS,
            space=tiles_space(),
            strategy="replay-trace",
            cost_model=ms.cost_model.RandomModel(),
            runner=runner,
            builder=builder,
            seed=2,
        )
    finally:
        runner.close()
        builder.close()
    return list(database.get_all_tuning_records())


@asynccontextmanager
async def serve_board(folder: Path) -> AsyncIterator[str]:
    """Serve a board of this machine's architecture; give the tracker's address."""
    root = make_zynq_root(folder / "root", family="xlnx,zynqmp")
    entry = {"driver": "zynq", "name": "zynq", "part": "xczu3eg", "sys_root": str(root)}
    config = parse_config({"devices": [{**entry, "state_dir": str(folder / "fabric")}]})
    with (
        fpga_manager(root) as manager,
        emulated_fabric(root / "dev/uio0", sysfs_root=root) as fabric,
        manager.followed(fabric.take),
    ):
        async with serve_tracker() as tracker:
            home = Home(tracker=tracker.address, state_dir=folder / "agent")
            async with Agent(config, make_drivers(config), home) as agent:
                assert await agent.wait_attached(60.0)
                yield tracker.address


async def test_a_search_finds_the_tiling_with_the_fewest_cycles(tmp_path: Path) -> None:
    """Every time follows from the design's own account, so the fastest of the tried tilings is the best for certain."""
    async with serve_board(tmp_path) as address:
        async with fleet.aio.connect(address, connect_timeout_sec=60) as client, client.acquire("kind=zynq") as device:
            await program(device, "gemm_i8", tmp_path)
        selector = f"kind=zynq,bitstream={digest_of(bitstream('gemm_i8', tmp_path))}"
        records = await asyncio.to_thread(tune, address, selector, tmp_path / "work")

    tiles = [tile_of(record.trace) for record in records]
    times = [[float(sec) for sec in record.run_secs] for record in records]
    assert len({*tiles}) >= TRIALS // 2
    assert [[cycles_of(tile, EXTENT) / 1e8] for tile in tiles] == times
    found = [cycles_of(tile, EXTENT) for tile in tiles]
    best = min(zip(times, tiles, strict=True), key=lambda pair: pair[0])[1]
    assert cycles_of(best, EXTENT) == min(found) < max(found)


async def test_the_example_ranks_all_tilings(tmp_path: Path) -> None:
    """Larger tiles move less: of a product of 16 x 16 x 16, the whole at once is the fastest, the smallest last."""
    extents = (16, 16, 16)

    def tune_all(address: str) -> list[example.Timed]:
        with connect(address) as client:
            return example.tune(client, "kind=zynq", bitstream("gemm_i8", tmp_path), extents)

    async with serve_board(tmp_path) as address:
        found = await asyncio.to_thread(tune_all, address)

    assert [timed.cycles for timed in found] == sorted(cycles_of(timed.tile, 16) for timed in found)
    assert (found[0].tile, found[-1].tile) == (FabricTile(m=16, n=16, k=16), FabricTile(m=4, n=4, k=4))
    assert len(found) == 27
