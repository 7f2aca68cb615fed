"""The designs of examples/zynq_gemm_i8, simulated by Verilator and driven through their register window."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from device_agents.fabric.description import Window
from device_agents.fabric.program import Bus, FabricDead, FabricError, FabricProgram, FabricStuck, Memory
from device_agents.fabric.reader import parse_description
from device_agents.fabric.window import MappedPlaces
from examples.zynq_gemm_i8.sim.build import DESIGNS, lint
from tests.emulated.fabric import EmulatedFabric, emulated_fabric, registers_yaml

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
DESCRIPTION = parse_description(registers_yaml())


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("root")


@pytest.fixture(scope="module")
def fabric(root: Path) -> Iterator[EmulatedFabric]:
    with emulated_fabric(root / "dev/uio0", sysfs_root=root) as emulated:
        yield emulated


def make_program(root: Path, registers: str = "registers", **patience: int) -> FabricProgram:
    description = parse_description(registers_yaml(registers, **patience))
    return FabricProgram(description, MappedPlaces(description.window, root))


class Product:
    """Operands at random places of larger matrices, and the call that multiplies them."""

    def __init__(self, random: np.random.Generator, m: int, n: int, k: int) -> None:
        self.extents = (m, n, k)
        margins = [int(margin) for margin in random.integers(0, 9, 3)]
        self.left = random.integers(-128, 128, (m, k + margins[0]), dtype=np.int8)
        self.right = random.integers(-128, 128, (k, n + margins[1]), dtype=np.int8)
        self.sums = random.integers(-(2**31), 2**31, (m, n + margins[2]), dtype=np.int64).astype(np.int32)

    def expected(self, *, adds: bool) -> np.ndarray:
        _, n, k = self.extents
        whole = self.sums.copy()
        product = self.left[:, :k].astype(np.int32) @ self.right[:, :n].astype(np.int32)
        whole[:, :n] = product + (whole[:, :n] if adds else 0)
        return whole

    def run(self, program: FabricProgram, *, adds: bool = True, by_dma: bool = False) -> int:
        """Return the cycles that it took."""
        name = "gemm_i8_dma" if by_dma else "gemm_i8" if adds else "gemm_i8_from_zero"
        before = program.cycles
        matrices = (self.left, self.right, self.sums)
        values = [*(x.ctypes.data for x in matrices), *self.extents, *(x.shape[1] for x in matrices)]
        program.call(name, values)
        return program.cycles - before


def random_extents(random: np.random.Generator) -> tuple[int, int, int]:
    """Return extents within the core's limits, small ones as often as those at the limits."""
    while True:
        m = int(random.choice([1, 2, 7, 8, 9, 16, 17, 31, 64, 256]))
        n = int(random.choice([4, 8, 12, 16, 20, 64, 132, 512]))
        k = int(random.choice([4, 8, 12, 16, 20, 64, 132, 512]))
        if m * k <= 4096 and k * n <= 4096 and m * n <= 1024:
            return m, n, k


@pytest.mark.parametrize("design", DESIGNS, ids=lambda design: design.name)
def test_the_designs_are_clean(design: object) -> None:
    """Verilator's lint finds nothing to complain about, with every warning on."""
    assert lint(design) == ""  # type: ignore[arg-type]


@pytest.mark.parametrize("design", ["gemm_i8", "gemm_i8_wide"])
def test_random_tiles_match_numpy(root: Path, fabric: EmulatedFabric, design: str) -> None:
    """Results are equal bit for bit, overflow included, from zero and accumulated; memory around the tile is
    unchanged.
    """
    random = np.random.default_rng(2026)
    fabric.load(design)
    program = make_program(root)
    for number in range(200):
        product = Product(random, *random_extents(random))
        adds = bool(number % 2)
        expected = product.expected(adds=adds)

        product.run(program, adds=adds)

        np.testing.assert_array_equal(expected, product.sums, err_msg=f"{product.extents} adds={adds}")


def test_the_same_tile_takes_the_same_cycles(root: Path, fabric: EmulatedFabric) -> None:
    """Its cycles depend neither on its numbers nor on earlier tiles."""
    random = np.random.default_rng(3)
    fabric.load("gemm_i8")
    program = make_program(root)

    cycles = {Product(random, 16, 16, 64).run(program) for _ in range(4)}
    Product(random, 9, 20, 12).run(program)
    cycles.add(Product(random, 16, 16, 64).run(program))

    assert len(cycles) == 1


def test_cycles_follow_from_the_microarchitecture(root: Path, fabric: EmulatedFabric) -> None:
    """One word of A or B per cycle, then for each block of 8 x 8: load sums, K cycles, one to drain, store sums,
    one to continue.
    """
    random = np.random.default_rng(4)
    fabric.load("gemm_i8")
    program = make_program(root)

    for m, n, k in [(8, 8, 4), (16, 16, 64), (9, 20, 12)]:
        load = (m * k + k * n) // 4
        blocks = -(-m // 8) * -(-n // 8)
        assert load + blocks * (k + 2) + 2 * m * n == Product(random, m, n, k).run(program)
        assert load + blocks * (k + 3) + m * n == Product(random, m, n, k).run(program, adds=False)


@pytest.mark.parametrize("design", ["gemm_i8", "gemm_i8_wide"])
def test_operands_are_fetched_from_memory_and_sums_stored_there(
    root: Path, fabric: EmulatedFabric, design: str
) -> None:
    """Results are equal bit for bit, with full and partial bursts; memory around the tiles is unchanged."""
    random = np.random.default_rng(2027)
    fabric.load(design)
    program = make_program(root)
    for _ in range(100):
        product = Product(random, *random_extents(random))
        expected = product.expected(adds=True)

        product.run(program, by_dma=True)

        np.testing.assert_array_equal(expected, product.sums, err_msg=str(product.extents))


def test_fetching_costs_its_bursts(root: Path, fabric: EmulatedFabric) -> None:
    """The same every time, and more than the run alone by at least a cycle a word moved in, two a word moved out."""
    random = np.random.default_rng(9)
    fabric.load("gemm_i8")
    program = make_program(root)
    alone = Product(random, 16, 16, 64).run(program)

    fetched = {Product(random, 16, 16, 64).run(program, by_dma=True) for _ in range(3)}

    assert len(fetched) == 1
    words = 2 * 16 * 64 // 4 + 16 * 16
    assert alone + words + 2 * 16 * 16 < fetched.pop() < alone + 5 * words


def test_a_window_without_uio_is_a_piece_of_physical_memory(root: Path, fabric: EmulatedFabric, tmp_path: Path) -> None:
    """It is mapped through /dev/mem, at the address in the description."""
    random = np.random.default_rng(11)
    fabric.load("gemm_i8")
    (root / "dev/mem").symlink_to("uio0")
    text = registers_yaml().replace("window: {uio: fabric,", "window: {mem: 0,")
    description = parse_description(text)
    product = Product(random, 8, 8, 8)
    expected = product.expected(adds=True)
    elsewhere = tmp_path / "dev/mem"
    elsewhere.parent.mkdir()
    elsewhere.write_bytes(bytes(0x4000))

    product.run(FabricProgram(description, MappedPlaces(description.window, root)))
    MappedPlaces(Window(mem=0x2000, size_bytes=0x1000), tmp_path).window().write(0x10, 0x12345678)

    np.testing.assert_array_equal(expected, product.sums)
    assert elsewhere.read_bytes()[0x2010:0x2014] == bytes.fromhex("78563412")


def test_memory_that_is_not_there_sticks_until_the_reset(root: Path, fabric: EmulatedFabric) -> None:
    """At an address without a decoder the bus reports an error, the run never ends, and the next one is right."""
    random = np.random.default_rng(10)
    fabric.load("gemm_i8")
    description = parse_description(registers_yaml(run_ms=2000))
    places = MappedPlaces(description.window, root)

    class Astray:
        """The same memory at a wrong address."""

        def window(self) -> Bus:
            return places.window()

        def memory(self, name: str, size_bytes: int) -> Memory:
            return replace(places.memory(name, size_bytes), address=0x10000000)

    with pytest.raises(FabricStuck, match="gemm_i8 is stuck"):
        Product(random, 8, 8, 8).run(FabricProgram(description, Astray()), by_dma=True)
    product = Product(random, 8, 8, 8)
    expected = product.expected(adds=True)
    product.run(make_program(root), by_dma=True)

    np.testing.assert_array_equal(expected, product.sums)


def test_a_wider_array_needs_fewer_cycles_for_large_tiles(root: Path, fabric: EmulatedFabric) -> None:
    """Another bitstream of the same function: four times the units."""
    random = np.random.default_rng(5)
    cycles = {}
    for design in ("gemm_i8", "gemm_i8_wide"):
        fabric.load(design)
        cycles[design] = Product(random, 16, 16, 256).run(make_program(root))

    assert cycles["gemm_i8_wide"] < 0.8 * cycles["gemm_i8"]


def test_another_bitstream_computes_something_else(root: Path, fabric: EmulatedFabric) -> None:
    """Each bitstream refuses the other's description."""
    random = np.random.default_rng(6)
    fabric.load("gemm_i8_relu")
    product = Product(random, 8, 12, 16)
    expected = product.expected(adds=True)
    expected[:, :12] = np.maximum(expected[:, :12], 0)

    product.run(make_program(root, "registers_relu"))

    np.testing.assert_array_equal(expected, product.sums)
    with pytest.raises(FabricError, match="another design than gemm_i8: id reads 0x474d4952"):
        Product(random, 8, 8, 8).run(make_program(root))


def test_a_stuck_core_works_again_after_its_reset(root: Path, fabric: EmulatedFabric) -> None:
    """The design with a defect never ends a product with K = 20."""
    random = np.random.default_rng(7)
    fabric.load("gemm_i8_faulty")
    with pytest.raises(FabricStuck, match="gemm_i8 is stuck"):
        Product(random, 8, 8, 20).run(make_program(root, run_ms=2000))

    product = Product(random, 8, 8, 16)
    expected = product.expected(adds=True)
    product.run(make_program(root))

    np.testing.assert_array_equal(expected, product.sums)


def test_an_unresponsive_window_is_a_dead_fabric(root: Path, fabric: EmulatedFabric) -> None:
    """A bitstream without the core looks like this; the fabric recovers when the window answers."""
    random = np.random.default_rng(8)
    fabric.load("gemm_i8")
    os.kill(fabric.pid, signal.SIGSTOP)
    try:
        with pytest.raises(FabricDead, match="does not come out of its reset"):
            Product(random, 8, 8, 8).run(make_program(root, reset_ms=2000))
    finally:
        os.kill(fabric.pid, signal.SIGCONT)

    Product(random, 8, 8, 8).run(make_program(root))
