"""A Zynq UltraScale+ under emulation: an agent from its bundle on Cortex-A53 cores, and beside them a fabric, simulated
from its RTL. The seconds of the cores mean nothing; the cycles of the fabric are those of the design.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

import fleet.aio
from cross.compile.library import build
from cross.fabric.tiles import GEMM_I8_DMA, FabricTile, matmul_i8, schedule_matmul
from cross.targets.target import parse_target
from fleet.artifacts.artifact import Artifact
from fleet.base.digests import digest_of
from fleet.domain.measuring import TensorSpec
from fleet.errors import InvalidRequest, MeasurementError
from fleet.testing import eventually
from tests import bitstreams
from tests.emulated.board import emulated_board
from tests.emulated.board_agents import BoardAgent
from tests.emulated.bundles import bundle_for
from tests.emulated.fabric import EmulatedFabric, bitstream, emulated_fabric
from tests.emulated.fabric_session import EXTENT, PRODUCT, SPECS, TILES, build_tilings, program, run, use_a_board
from tests.emulated.fpga_manager import FakeFabric, fpga_manager
from tests.system.fleet_processes import Server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

BOARD = "kind=zynq,emulated=true"
_CONFIG = "devices: [{driver: zynq, name: ultra96, part: xczu3eg, emulated: true, threads: 2}]\n"
_TARGET = parse_target(
    '{"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "cortex-a53", "mattr": ["+neon"], "num-cores": 2}'
)
_FILES = {
    "/sys/firmware/devicetree/base/model": "Avnet Ultra96 Rev1\0",
    "/sys/firmware/devicetree/base/compatible": "avnet,ultra96-rev1\0xlnx,zynqmp\0",
}


@dataclass
class Bench:
    """A tracker here, a board with its agent and its fabric, and the modules built for it."""

    tracker: Server
    agent: BoardAgent
    manager: FakeFabric
    fabric: EmulatedFabric
    tilings: dict[FabricTile, Artifact]
    folder: Path

    def connect(self) -> fleet.aio.Fleet:
        return fleet.aio.connect(self.tracker.address, connect_timeout_sec=60)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    folder = tmp_path_factory.mktemp("zynqmp")
    words = ["-m", "fleet.tracker", "--no-discovery", "--state-dir", str(folder / "tracker")]
    tracker = Server(words, "tracker", folder / "tracker.log").start()
    tilings = build_tilings(_TARGET, folder)
    try:
        with emulated_board("arm64", cpu="cortex-a53", directory=folder) as board:
            for name, content in _FILES.items():
                board.write(name, content)
            with (
                fpga_manager(board.root) as manager,
                emulated_fabric(board.path("/dev/uio0"), sysfs_root=board.root) as fabric,
                manager.followed(fabric.take),
            ):
                agent = BoardAgent(board, tracker.address, _CONFIG, folder / "agent.log")
                agent.unpack(bundle_for("ultra96"))
                agent.start()
                try:
                    yield Bench(tracker, agent, manager, fabric, tilings, folder)
                finally:
                    agent.stop()
    finally:
        tracker.stop()


async def test_programmed_under_a_lease_it_multiplies_and_counts_cycles(bench: Bench) -> None:
    """Results equal numpy's bit for bit, in cycles that repeat; another bitstream changes both."""
    async with bench.connect() as client:
        await use_a_board(client, BOARD, bench.tilings, bench.folder)


async def test_the_cycles_match_those_of_any_other_machine(bench: Bench) -> None:
    """They are the design's: loads, blocks of 8 x 8 sums, K steps each, of every tile of the product."""
    async with bench.connect() as client, client.acquire(BOARD) as device:
        await program(device, "gemm_i8", bench.folder)
        for tile, artifact in bench.tilings.items():
            calls = 64**3 // (tile.m * tile.n * tile.k)
            blocks = tile.m * tile.n // 64
            load = (tile.m + tile.n) * tile.k // 4
            expected = calls * (load + blocks * (tile.k + 2) + 2 * tile.m * tile.n)
            assert (expected, expected) == (await run(device, artifact)).cycles


async def test_operands_are_fetched_from_memory_that_both_share(bench: Bench) -> None:
    """With u-dma-buf instead of the window the numbers are the same, and the bursts are counted."""
    tile = replace(TILES[1], function=GEMM_I8_DMA)
    mod = schedule_matmul(matmul_i8(EXTENT, EXTENT, EXTENT), tile)
    fetching = build(mod, _TARGET, bench.folder, args=SPECS)
    async with bench.connect() as client, client.acquire(BOARD) as device:
        await program(device, "gemm_i8", bench.folder)
        copied = await run(device, bench.tilings[TILES[1]])
        fetched = await run(device, fetching)

    np.testing.assert_array_equal(PRODUCT, fetched.product)
    assert fetched.cycles[0] == fetched.cycles[1] > copied.cycles[0]


async def test_a_stuck_core_costs_one_candidate(bench: Bench) -> None:
    """It times out, is reset, and computes again."""
    mod = schedule_matmul(matmul_i8(40, 40, 40), FabricTile(m=8, n=8, k=20))
    specs = (TensorSpec((40, 40), "int8"), TensorSpec((40, 40), "int8"), TensorSpec((40, 40), "int32", is_output=True))
    stuck = build(mod, _TARGET, bench.folder, args=specs)
    operand = np.ones((40, 40), np.int8)
    async with bench.connect() as client, client.acquire(BOARD) as device:
        await program(device, "gemm_i8_faulty", bench.folder, run_ms=2000)
        with pytest.raises(MeasurementError, match=r"RUN_FAILED .* gemm_i8 is stuck") as raised:
            await device.load(stuck)(operand, operand)
        found = await run(device, bench.tilings[TILES[2]])

    assert raised.value.kind == "RUN_FAILED"
    np.testing.assert_array_equal(PRODUCT, found.product)


async def test_a_killed_agent_restores_the_bitstream_label(bench: Bench) -> None:
    """After kill -9 between two leases, the label returns, and modules run without programming."""
    async with bench.connect() as client:
        async with client.acquire(BOARD) as device:
            await program(device, "gemm_i8", bench.folder)
        wanted = digest_of(bitstream("gemm_i8", bench.folder))
        bench.agent.kill()
        bench.agent.start()
        async with client.acquire(f"{BOARD},bitstream={wanted}", wait_timeout_sec=60) as device:
            found = await run(device, bench.tilings[TILES[2]])

    np.testing.assert_array_equal(PRODUCT, found.product)


async def test_a_bitstream_for_another_chip_has_no_effect(bench: Bench) -> None:
    """It is refused for its IDCODE, and the fabric computes on."""
    async with bench.connect() as client, client.acquire(BOARD) as device:
        await program(device, "gemm_i8", bench.folder)
        other = bench.folder / "other.bit"
        other.write_bytes(bitstreams.make_bit(b"gemm_i8_relu", idcode=bitstreams.XC7Z020))
        with pytest.raises(InvalidRequest, match="xc7z020"):
            await device.program(other)
        found = await run(device, bench.tilings[TILES[2]])

    assert bench.fabric.design == "gemm_i8"
    np.testing.assert_array_equal(PRODUCT, found.product)


async def test_the_board_is_listed_as_an_emulated_zu3eg(bench: Bench) -> None:
    """Emulated, a ZU3EG, and holding a bitstream."""
    async with bench.connect() as client:

        async def held() -> str:
            (device,) = (await client.snapshot()).devices
            return str(device.bitstream_digest)

        async with client.acquire(BOARD) as device:
            await program(device, "gemm_i8_wide", bench.folder)
            inventory = device.inventory
        assert inventory.is_simulated
        assert {"emulated": "true", "fpga": "xczu3", "board": "ultra96"}.items() <= dict(inventory.labels).items()
        expected = digest_of(bench.folder / "gemm_i8_wide.bit")

        async def is_shown() -> bool:
            return await held() == expected

        await eventually(is_shown)
