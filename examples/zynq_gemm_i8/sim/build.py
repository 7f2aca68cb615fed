"""Builds the simulation of the designs with Verilator: one program; main.cpp describes its use.

    python examples/zynq_gemm_i8/sim/build.py OUT_DIR

It needs Debian's packages verilator and g++ (20 s on two cores).
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

_HERE = Path(__file__).resolve().parent
_RTL = sorted((_HERE.parent / "rtl").glob("*.sv"))
_MAIN = _HERE / "main.cpp"
_RUNTIME = ("verilated.cpp", "verilated_threads.cpp")
_RELU_ID = 0x474D4952


@dataclass(frozen=True, slots=True, kw_only=True)
class Design:
    """One bitstream's worth: the modules of rtl/ with these parameters."""

    name: str
    parameters: dict[str, int] = field(default_factory=dict)


DESIGNS = (
    Design(name="gemm_i8"),
    Design(name="gemm_i8_wide", parameters={"ROWS": 16, "COLS": 16}),
    Design(name="gemm_i8_relu", parameters={"RELU": 1, "ID": _RELU_ID}),
    Design(name="gemm_i8_faulty", parameters={"STUCK_AT_K": 20}),
)
"""Designs for the fabric: the core, one with a larger array, one that computes something else (negative
results become zero), and one with a defect."""


def lint(design: Design) -> str:
    """Return the warnings of `verilator -Wall` for a design."""
    command = [_need("verilator"), "--lint-only", "-Wall", "--top-module", "fabric", *_flags(design), *map(str, _RTL)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return done.stderr.strip()


def sources_digest() -> str:
    """Return a digest of everything that the program is made of."""
    digest = hashlib.sha256(repr(DESIGNS).encode())
    for path in (*_RTL, _MAIN, Path(__file__)):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def build(folder: Path) -> Path:
    """Return the program in `folder`, made unless these sources' is there already."""
    program = folder / f"fabric_sim-{sources_digest()}"
    if program.exists():
        return program
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".build-") as name:
        scratch = Path(name)
        sources = [source for design in DESIGNS for source in _verilate(design, scratch)]
        _write_table(scratch / "designs.h")
        include = Path(_output(_need("verilator"), "--getenv", "VERILATOR_ROOT")) / "include"
        sources += [_MAIN, *(include / source for source in _RUNTIME)]
        folders = [f"-I{scratch}", f"-I{include}", f"-I{include / 'vltstd'}"]
        objects = _compile(sources, folders, scratch)
        _output(_need("g++"), "-pthread", "-o", str(scratch / "program"), *objects)
        (scratch / "program").replace(program)
    return program


def _verilate(design: Design, scratch: Path) -> list[Path]:
    prefix = f"V{design.name}"
    flags = ["--cc", "-O3", "--prefix", prefix, "-Mdir", str(scratch / prefix), "--top-module", "fabric"]
    _output(_need("verilator"), *flags, *_flags(design), *map(str, _RTL))
    return sorted((scratch / prefix).glob("*.cpp"))


def _compile(sources: list[Path], folders: list[str], scratch: Path) -> list[str]:
    """Two at a time: a machine of CI has as many cores."""
    objects, running = [], []
    for number, source in enumerate(sources):
        objects.append(str(scratch / f"{number}.o"))
        command = [_need("g++"), "-std=c++17", "-O2", "-w", *folders, "-c", str(source), "-o", objects[-1]]
        running.append((command, subprocess.Popen(command, stderr=subprocess.PIPE, text=True)))
        while len(running) >= 2:
            _finish(*running.pop(0))
    for command, process in running:
        _finish(command, process)
    return objects


def _finish(command: list[str], process: subprocess.Popen[str]) -> None:
    _, complaints = process.communicate(timeout=300)
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{complaints}")


def _write_table(path: Path) -> None:
    includes = "".join(f'#include "V{design.name}/V{design.name}.h"\n' for design in DESIGNS)
    entries = " ".join(f'X("{design.name}", V{design.name})' for design in DESIGNS)
    path.write_text(f"{includes}#define FOR_EACH_DESIGN(X) {entries}\n")


def _flags(design: Design) -> list[str]:
    return [f"-G{name}={value}" for name, value in design.parameters.items()]


def _need(program: str) -> str:
    found = shutil.which(program)
    if found is None:
        raise RuntimeError(f"{program} is not installed; install the Debian package {program}")
    return found


def _output(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr}")
    return done.stdout.strip()


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    sys.stdout.write(f"{build(Path(sys.argv[1]))}\n")
