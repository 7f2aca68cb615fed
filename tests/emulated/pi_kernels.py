"""Builds the kernels of emulated boards in tests, in a process of its own: `python -m tests.emulated.pi_kernels
FOLDER`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from cross.compile.library import build
from cross.targets.boards import find_board
from cross.targets.target import parse_target
from fleet.domain.measuring import TensorSpec
from tests.emulated.integer_kernels import build_integers
from tests.emulated.recurrent_kernels import build_lstm
from tests.emulated.winograd_kernels import SIZES, build_winograd

SIZE = 64
A76 = {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "cortex-a76"}
"""A target of the Pi 5: it has half-precision arithmetic, which the Pi 4's core lacks."""

SOFT_FLOAT = {"kind": "llvm", "mtriple": "armv7l-linux-gnueabihf", "mcpu": "cortex-a7", "mattr": ["+neon"]}
"""The target without "mfloat-abi", a common mistake."""


def matmul(dtype: str = "float32", *, parallel: bool = True, size: int = SIZE) -> Any:
    """Return a matrix product with rows spread over the threads, as in most schedules."""
    import tvm
    from tvm import te

    left, right = (te.placeholder((size, size), dtype, name) for name in ("A", "B"))
    axis = te.reduce_axis((0, size), "k")
    product = te.compute((size, size), lambda i, j: te.sum(left[i, axis] * right[axis, j], axis=axis), "C")
    function = te.create_prim_func([left, right, product]).with_attr("global_symbol", "main")
    schedule = tvm.s_tir.Schedule(tvm.IRModule({"main": function}))
    row, column, _ = schedule.get_loops(schedule.get_sblock("C"))
    if parallel:
        schedule.parallel(row)
    outer, inner = schedule.split(column, factors=[None, 8])
    del outer
    loops = schedule.get_loops(schedule.get_sblock("C"))
    schedule.reorder(loops[0], loops[1], loops[3], inner)
    schedule.vectorize(inner)
    return schedule.mod


def _specs(dtype: str, size: int = SIZE) -> tuple[TensorSpec, ...]:
    shape = (size, size)
    return (TensorSpec(shape, dtype), TensorSpec(shape, dtype), TensorSpec(shape, dtype, True))


def main(folder: Path) -> None:
    """Write each artifact, and index.json with name to path."""
    targets = {
        "pi4": find_board("rpi4-64").target_json,
        "host": json.dumps({"kind": "llvm", "mcpu": "x86-64-v2"}),
        "armv7": json.dumps(find_board("rpi2-32").cpu_target),
    }
    paths = {
        name: str(build(matmul(parallel=name != "armv7"), parse_target(target), folder, args=_specs("float32")).path)
        for name, target in targets.items()
    }
    half = build(matmul("float16"), parse_target(json.dumps(A76)), folder, args=_specs("float16"))
    paths["half"] = str(half.path)
    slow = build(matmul(parallel=False, size=1024), parse_target(targets["pi4"]), folder, args=_specs("float32", 1024))
    paths["slow"] = str(slow.path)
    paths["soft"] = str(_soft_float(folder))
    for board in ("pi4", "armv7"):
        paths |= {f"winograd{m}-{board}": str(build_winograd(m, parse_target(targets[board]), folder)) for m in SIZES}
    paths |= {f"lstm-{board}": str(build_lstm(parse_target(targets[board]), folder)) for board in ("pi4", "armv7")}
    build_integers(parse_target(find_board("rpi5-64").target_json), folder / "integers")
    (folder / "index.json").write_text(json.dumps(paths))


def _soft_float(folder: Path) -> Path:
    """Build a soft-float library, which our own builder refuses."""
    import tvm

    library = tvm.compile(matmul(parallel=False), target=tvm.target.Target(SOFT_FLOAT)).mod
    library.write_to_file(str(folder / "soft.o"), "o")
    path = folder / "soft.so"
    words = ["ld.lld", "-m", "armelf_linux_eabi", "-shared", "-o", str(path), str(folder / "soft.o")]
    subprocess.run(words, check=True)
    return path


if __name__ == "__main__":
    main(Path(sys.argv[1]))
