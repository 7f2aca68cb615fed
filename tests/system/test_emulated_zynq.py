"""A Zynq-7000 under emulation: the agent from its bundle on Cortex-A9 cores, its kernels cross-compiled here and run by
the plain runtime, its fabric programmed through files that answer as the kernel's do. The times mean nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

import fleet
from cross.targets.boards import find_board
from cross.targets.target import parse_target
from fleet.artifacts.artifact import Artifact
from fleet.base.digests import digest_of
from fleet.domain.measuring import ErrorKind, Evaluator, TensorSpec, Trial
from fleet.errors import InvalidRequest
from fleet.testing import eventually_sync
from tests import bitstreams
from tests.emulated.board import emulated_board
from tests.emulated.board_agents import BoardAgent
from tests.emulated.bundles import bundle_for
from tests.emulated.fabric import bitstream, emulated_fabric, registers_yaml
from tests.emulated.fabric_session import LEFT, PRODUCT, RIGHT, TILES, build_tilings
from tests.emulated.fpga_manager import FakeFabric, fpga_manager
from tests.emulated.zynq_root import make_zynq_root
from tests.programs import run_module
from tests.system.fleet_processes import Server, connect

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

_CONFIG = "devices: [{{driver: zynq, name: {name}, part: xc7z020, emulated: true, threads: 2}}]\n"
_CORE = """processor\t: {number}
model name\t: ARMv7 Processor rev 0 (v7l)
BogoMIPS\t: 650.00
Features\t: half thumb fastmult vfp edsp neon vfpv3 tls vfpd32
CPU implementer\t: 0x41
CPU architecture: 7
CPU variant\t: 0x3
CPU part\t: 0xc09
CPU revision\t: 0

"""
_FILES = {
    "/proc/cpuinfo": "".join(_CORE.format(number=number) for number in range(2)) + "Hardware\t: Xilinx Zynq Platform\n",
    "/sys/firmware/devicetree/base/model": "Digilent PYNQ-Z1\0",
    "/sys/firmware/devicetree/base/compatible": "digilent,pynq-z1\0xlnx,zynq-7000\0",
}
_WIDE = (TensorSpec((2**16,), "float32"), TensorSpec((2**16,), "float32", is_output=True))
_SQUARE = (*(TensorSpec((64, 64), "float32"),) * 2, TensorSpec((64, 64), "float32", is_output=True))


@dataclass
class Bench:
    """A tracker here, a board with its agent and its fabric, and the modules built for it."""

    tracker: Server
    agent: BoardAgent
    fabric: FakeFabric
    models: Path
    folder: Path

    def artifact(self, name: str, args: tuple[TensorSpec, ...]) -> Artifact:
        return Artifact.of_file(self.models / f"{name}.so", args=args)

    def connect(self) -> fleet.Fleet:
        return connect(self.tracker.address)

    def bitstream(self, name: str, **fields: int) -> Path:
        path = self.folder / f"{name}.bit"
        path.write_bytes(bitstreams.make_bit(name.encode(), design=name, **fields))
        return path


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    folder = tmp_path_factory.mktemp("zynq")
    models = folder / "models"
    models.mkdir()
    words = ["-m", "fleet.tracker", "--no-discovery", "--state-dir", str(folder / "tracker")]
    tracker = Server(words, "tracker", folder / "tracker.log").start()
    try:
        run_module("tests.service.plain_models", models, find_board("pynq-z1").target_json)
        with emulated_board("armhf", cpu="cortex-a9", directory=folder) as board:
            for name, content in _FILES.items():
                board.write(name, content)
            with (
                fpga_manager(board.root) as fabric,
                emulated_fabric(board.path("/dev/uio0"), sysfs_root=board.root) as core,
                fabric.followed(core.take),
            ):
                agent = BoardAgent(board, tracker.address, _CONFIG.format(name="pynq"), folder / "agent.log")
                agent.unpack(bundle_for("pynq-z1"))
                agent.start()
                try:
                    yield Bench(tracker, agent, fabric, models, folder)
                finally:
                    agent.stop()
    finally:
        tracker.stop()


def test_it_is_a_zynq_in_the_fleet(bench: Bench) -> None:
    """Its kind, board, chip and hard-float target are a Zynq's, and it is marked as emulated."""
    with bench.connect() as client, client.acquire("kind=zynq,emulated=true") as device:
        inventory = device.inventory
        target = json.loads(inventory.target_json)

        assert inventory.is_simulated
        expected = {"arch": "armv7l", "fpga": "xc7z020", "board": "pynq-z1", "runtime": "plain"}
        assert expected.items() <= dict(inventory.labels).items()
        assert (target["mcpu"], target["mfloat-abi"]) == ("cortex-a9", "hard")
        assert inventory.facts["fabric"] == "programmable"


def test_cross_compiled_kernels_compute_the_same_as_numpy(bench: Bench) -> None:
    """Vectors, parallel loops, workspaces, mathematical functions, and integer division, which the core has not."""
    random = np.random.default_rng(1)
    left, right = random.random((64, 64), np.float32), random.random((64, 64), np.float32)
    wide = random.random(2**16, np.float32)
    few = wide[:8].copy()
    divisors = np.arange(1, 9, dtype=np.int32)
    floats = (TensorSpec((8,), "float32"), TensorSpec((8,), "float32", is_output=True))
    integers = (TensorSpec((8,), "int32"), TensorSpec((8,), "int32", is_output=True))
    with bench.connect() as client, client.acquire("kind=zynq") as device:
        product = device.load(bench.artifact("matmul", _SQUARE))(left, right)
        doubled = device.load(bench.artifact("parallel", _WIDE))(wide)
        reversed_ = device.load(bench.artifact("workspace", _WIDE))(wide)
        grown = device.load(bench.artifact("exp", floats))(few)
        divided = device.load(bench.artifact("divide", integers))(divisors)

    np.testing.assert_allclose(product, left @ right, rtol=1e-4)
    np.testing.assert_array_equal(doubled, wide * 2)
    np.testing.assert_allclose(reversed_, (wide[::-1] + 1) * 3, rtol=1e-6)
    np.testing.assert_allclose(grown, np.exp(few), rtol=1e-5)
    np.testing.assert_array_equal(divided, 1000 // divisors)


def test_they_are_timed_and_their_failures_come_back(bench: Bench) -> None:
    """Results are every repeat, the compiled code's message for wrong arguments, and the next candidate's times."""
    artifact = bench.artifact("matmul", _SQUARE)
    evaluator = Evaluator(number=1, repeat=3)
    with bench.connect() as client, client.acquire("kind=zynq") as device:
        device.ensure([artifact])
        trials = [
            Trial(candidate_id=name, artifact_digest=artifact.digest, args=args, evaluator=evaluator, timeout_sec=60)
            for name, args in (("good", _SQUARE), ("bad", _SQUARE[:2]), ("next", _SQUARE))
        ]
        good, bad, following = device.measure(trials)

    assert (len(good.run_secs), good.error) == (3, None)
    assert bad.error is ErrorKind.BAD_ARGUMENTS
    assert following.error is None


def test_bitstreams_follow_each_other(bench: Bench) -> None:
    """A loaded bitstream is not loaded again, another one is, and one for another chip changes nothing."""
    first, second = bench.bitstream("first"), bench.bitstream("second")
    other = bench.bitstream("other", idcode=bitstreams.XC7Z010)
    with bench.connect() as client, client.acquire("kind=zynq") as device:
        assert [device.program(path) for path in (first, first, second)] == [True, False, True]
        before = len(bench.fabric.loaded)
        with pytest.raises(InvalidRequest, match="made for xc7z010, devices/pynq has xc7z020"):
            device.program(other)
        assert not device.program(second)

    assert len(bench.fabric.loaded) == before


def test_a_killed_agent_finds_its_fabric_as_it_was(bench: Bench) -> None:
    """kill -9, a new agent, the same label, without loading anything."""
    design = bench.bitstream("kept")
    with bench.connect() as client:
        with client.acquire("kind=zynq") as device:
            device.program(design)
        before = len(bench.fabric.loaded)
        bench.agent.kill()
        bench.agent.start()
        with client.acquire(f"kind=zynq,bitstream={digest_of(design)}", wait_timeout_sec=60) as device:
            assert not device.program(design)

    assert len(bench.fabric.loaded) == before


def test_modules_call_the_fabric_from_32_bits(bench: Bench) -> None:
    """An int8 product in tiles, each one a call of the simulated core: exact, and the same cycles each time."""
    tile = TILES[1]
    artifact = build_tilings(parse_target(find_board("pynq-z1").target_json), bench.folder)[tile]
    design = bitstream("gemm_i8", bench.folder, idcode=bitstreams.XC7Z020)
    registers = bench.folder / "registers.yaml"
    registers.write_text(registers_yaml())
    with bench.connect() as client, client.acquire("kind=zynq") as device:
        device.program(design, registers=registers)
        product = device.load(artifact)(LEFT, RIGHT)
        timings = [device.load(artifact).time(repeat=2, min_repeat_ms=0) for _ in range(2)]

    np.testing.assert_array_equal(PRODUCT, product)
    assert timings[0].time_source == "cycles"
    assert timings[0].provenance["bitstream_digest"] == digest_of(design)
    assert len({cycles for timing in timings for cycles in timing.run_cycles}) == 1


def test_the_board_that_has_the_bitstream_is_preferred(bench: Bench) -> None:
    """Of two matching boards it is granted first; while it is leased the other one is, since a preference delays no
    grant.
    """
    design = bench.bitstream("wanted")
    root = make_zynq_root(bench.folder / "other")
    config = bench.folder / "other.yaml"
    config.write_text(f"devices: [{{driver: zynq, name: another, sys_root: {root}}}]\n")
    words = ["-m", "device_agents", "--tracker", bench.tracker.address, "--config", str(config)]
    words += ["--state-dir", str(bench.folder / "other-agent")]
    other = Server(words, "agent", bench.folder / "other.log").start()
    try:
        with bench.connect() as client:
            with client.acquire("name=pynq") as device:
                device.program(design)
            held = f"bitstream={digest_of(design)}"
            eventually_sync(lambda: {d.bitstream_digest for d in client.snapshot().devices} == {digest_of(design), ""})
            with client.acquire("kind=zynq", prefer=held) as first, client.acquire("kind=zynq", prefer=held) as second:
                assert [first.name, second.name] == ["devices/pynq", "devices/another"]
                assert not first.program(design)
    finally:
        other.stop()
