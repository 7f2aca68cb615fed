"""`fleet program` as a person runs it: real processes, and a fabric that answers as the kernel's files do."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from fleet.base.digests import digest_of
from tests import bitstreams
from tests.emulated.fpga_manager import FakeFabric, fpga_manager
from tests.emulated.zynq_root import make_zynq_root
from tests.system.fleet_processes import Fleet, run_fleet, running_fleet

pytestmark = pytest.mark.slow


@dataclass
class Bench:
    """A fleet of one board."""

    fleet: Fleet
    fabric: FakeFabric
    folder: Path

    def program(self, path: Path, *words: str) -> tuple[int, str, str]:
        done = run_fleet("program", str(path), "--tracker", self.fleet.address, *words)
        return done.returncode, done.stdout, done.stderr


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    root = make_zynq_root(tmp_path / "root")
    entry = f"driver: zynq, name: pynq, part: xc7z020, sys_root: {root}, state_dir: {tmp_path / 'fabric'}"
    with fpga_manager(root) as fabric, running_fleet(tmp_path, f"devices: [{{{entry}}}]\n") as served:
        yield Bench(served, fabric, tmp_path)


def test_a_board_is_programmed_and_held_for_a_command(bench: Bench) -> None:
    """The command finds the lease in its environment, and its exit code is returned; JSON has the facts of the plain
    output.
    """
    design = bench.folder / "gemm.bit"
    design.write_bytes(bitstreams.make_bit(design="gemm"))
    shown = "import os, sys; print(os.environ['FLEET_DEVICE']); sys.exit(7)"

    first = bench.program(design, "--", sys.executable, "-c", shown)
    again = bench.program(design, "--json")

    assert first[0] == 7, first
    assert first[1].splitlines() == [f"devices/pynq programmed with {digest_of(design)}", "devices/pynq"]
    assert json.loads(again[1]) == {
        "schema": 1,
        "device": "devices/pynq",
        "bitstream": digest_of(design),
        "was_loaded": False,
    }
    assert len(bench.fabric.loaded) == 1


def test_mistakes_take_one_line(bench: Bench) -> None:
    """Errors name the mistake and the remedy, and have distinct exit codes for scripts."""
    wrong = bench.folder / "wrong.bit"
    wrong.write_bytes(bitstreams.make_bit(idcode=bitstreams.XC7Z010))

    for path, code, message in (
        (bench.folder / "nowhere.bit", 2, "cannot read the bitstream"),
        (wrong, 2, "made for xc7z010, devices/pynq has xc7z020"),
    ):
        done = bench.program(path)
        assert (done[0], done[1]) == (code, "")
        assert len(done[2].splitlines()) == 1
        assert message in done[2]
