"""Stock MetaSchedule picks the tiling of a product for the fabric, by cycles measured on a leased board."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

import fleet.aio
from cross.fabric import Tile, matmul_i8
from cross.intrinsics import load_intrinsics
from cross.targets import host_target_json
from device_agents.agent import Agent, Place
from device_agents.config import make_drivers, parse_config
from fleet.artifacts import digest_of
from fleet.testing import serve_tracker
from tests.emulated.fabric import bitstream, emulated_fabric
from tests.emulated.fabric_session import program
from tests.emulated.fpga_manager import fpga_manager
from tests.emulated.zynq_root import make_zynq_root

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
EXTENT = 32
TRIALS = 12


def cycles_of(tile: Tile) -> int:
    """Return what the whole product takes in such tiles, by the design's own account."""
    calls = EXTENT**3 // (tile.m * tile.n * tile.k)
    blocks = -(-tile.m // 8) * -(-tile.n // 8)
    return calls * ((tile.m + tile.n) * tile.k // 4 + blocks * (tile.k + 2) + 2 * tile.m * tile.n)


def tile_of(trace: Any) -> Tile:
    found = re.search(r"fabric_gemm_i8_(\d+)x(\d+)x(\d+)", str(trace))
    assert found is not None, trace
    m, n, k = map(int, found.groups())
    return Tile(m=m, n=n, k=k)


def tune(address: str, selector: str, work_dir: Path) -> list[Any]:
    """Return the records of a stock tuning run."""
    load_intrinsics(host_target_json())
    from tvm.s_tir import meta_schedule as ms
    from tvm.target import Target

    from cross.fabric_space import tiles_space
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


async def test_a_search_finds_the_tiling_with_the_fewest_cycles(tmp_path: Path) -> None:
    """Every time is what the design's own account says, so the best of those tried is the best for certain."""
    root = make_zynq_root(tmp_path / "root", family="xlnx,zynqmp")
    entry = {"driver": "zynq", "name": "zynq", "part": "xczu3eg", "sys_root": str(root)}
    config = parse_config({"devices": [{**entry, "state_dir": str(tmp_path / "fabric")}]})
    with (
        fpga_manager(root) as manager,
        emulated_fabric(root / "dev/uio0", sysfs_root=root) as fabric,
        manager.followed(fabric.take),
    ):
        async with serve_tracker() as tracker, fleet.aio.connect(tracker.address) as client:
            place = Place(tracker=tracker.address, state_dir=tmp_path / "agent")
            async with Agent(config, make_drivers(config), place) as agent:
                assert await agent.wait_attached(10.0)
                async with client.acquire("kind=zynq") as device:
                    await program(device, "gemm_i8", tmp_path)
                digest = digest_of(bitstream("gemm_i8", tmp_path))
                selector = f"kind=zynq,bitstream={digest}"
                records = await asyncio.to_thread(tune, tracker.address, selector, tmp_path / "work")

    tiles = [tile_of(record.trace) for record in records]
    times = [[float(sec) for sec in record.run_secs] for record in records]
    assert len({*tiles}) >= TRIALS // 2
    assert [[cycles_of(tile) / 1e8] for tile in tiles] == times
    best = min(zip(times, tiles, strict=True), key=lambda pair: pair[0])[1]
    assert cycles_of(best) == min(map(cycles_of, tiles)) < max(map(cycles_of, tiles)) / 2
