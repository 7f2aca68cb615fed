"""The fabric of an emulated board: one of the designs of examples/zynq_gemm_i8, simulated behind the board's window.

    with emulated_fabric(root / "dev/uio0", sysfs_root=root) as fabric:
        fabric.load("gemm_i8")

The simulation is a process of this machine that maps the same file as the board's programs. `load` acts as a bitstream
on a real fabric: it ends the design before it.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from examples.zynq_gemm_i8.sim.build import DESIGNS, build
from tests.bitstreams import XCZU3, make_bit, swap_words
from tests.emulated.cache import cache_dir, locked

WINDOW_BYTES = 0x4000
MEMORY_BYTES = 0x10000
MEMORY_ADDRESS = 0x38000000
_PATIENCE_MS = 60_000
"""Time limit for a register. A real fabric runs by itself; a simulated one stalls with its machine."""

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "zynq_gemm_i8"


def registers_yaml(name: str = "registers", *, reset_ms: int = _PATIENCE_MS, run_ms: int = _PATIENCE_MS) -> str:
    """Return a description from the designs' folder, with these time limits for a reset and for a run."""
    reset, before, functions = (EXAMPLE / f"{name}.yaml").read_text().partition("\nfunctions:")
    return _with_patience(reset, reset_ms) + before + _with_patience(functions, run_ms)


def _with_patience(text: str, patience_ms: int) -> str:
    return text.replace("timeout_ms: 2000", f"timeout_ms: {patience_ms}")


def bitstream(design: str, folder: Path, *, idcode: int = XCZU3) -> Path:
    """Write a .bit file that stands for a design, and return it."""
    path = folder / f"{design}.bit"
    path.write_bytes(make_bit(design.encode(), design=design, part="xczu3eg-sbva484-1-e", idcode=idcode))
    return path


def simulation() -> Path:
    """Return the program that simulates the designs, built if need be."""
    with locked("fabric"):
        return build(cache_dir() / "fabric")


class EmulatedFabric:
    """A window and the simulation behind it."""

    def __init__(self, window: Path, memory: Path) -> None:
        self.window = window
        self.memory = memory
        self.design = ""
        self._process: subprocess.Popen[str] | None = None
        window.parent.mkdir(parents=True, exist_ok=True)
        window.write_bytes(bytes(WINDOW_BYTES))
        memory.write_bytes(bytes(MEMORY_BYTES))

    @property
    def pid(self) -> int:
        """Process id of the simulation, for tests that stop it."""
        if self._process is None:
            raise RuntimeError("nothing was loaded")
        return self._process.pid

    def load(self, design: str) -> None:
        """Put a design into the fabric and return once it answers."""
        self.clear()
        command = [str(simulation()), design, str(self.window), str(self.memory), hex(MEMORY_ADDRESS)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self._process = process
        if process.stdout is None or process.stdout.readline().strip() != "ready":
            self.clear()
            raise RuntimeError(f"the simulation of {design} did not start")
        self.design = design

    def take(self, image: bytes) -> None:
        """Load the design of an image for the FPGA manager: its frames name it, as `bitstream` made them."""
        words = swap_words(image)
        named = [design.name for design in DESIGNS if design.name.encode() in words]
        if named:
            self.load(max(named, key=len))
        else:
            self.clear()

    def clear(self) -> None:
        """Empty the fabric: it answers no more."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            if self._process.stdout is not None:
                self._process.stdout.close()
        self._process, self.design = None, ""


@contextmanager
def emulated_fabric(window: Path, *, sysfs_root: Path | None = None) -> Iterator[EmulatedFabric]:
    """Make the window and the memory beside it, known as the UIO device "fabric" and as "udmabuf0" below `sysfs_root`
    if that is given; removed afterwards.
    """
    if sysfs_root is not None:
        entry = sysfs_root / "sys/class/uio" / window.name
        (entry / "maps/map0").mkdir(parents=True, exist_ok=True)
        (entry / "name").write_text("fabric\n")
        (entry / "maps/map0/size").write_text(f"{WINDOW_BYTES:#x}\n")
        entry = sysfs_root / "sys/class/u-dma-buf/udmabuf0"
        entry.mkdir(parents=True)
        (entry / "phys_addr").write_text(f"{MEMORY_ADDRESS:#018x}\n")
        (entry / "size").write_text(f"{MEMORY_BYTES}\n")
    simulation()  # now, and not when a board waits for its bitstream
    fabric = EmulatedFabric(window, window.with_name("udmabuf0"))
    try:
        yield fabric
    finally:
        fabric.clear()
