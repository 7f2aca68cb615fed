"""Builds the kernel that clients run on processors: `python -m tests.chaos.kernel FILE`."""

from __future__ import annotations

import sys
from pathlib import Path

SIDE = 32


def build(path: Path) -> None:
    """Write a product of two small matrices as a library."""
    import tvm
    from tvm import te

    left, right = (te.placeholder((SIDE, SIDE), "float32", name) for name in ("A", "B"))
    axis = te.reduce_axis((0, SIDE), "k")
    product = te.compute((SIDE, SIDE), lambda i, j: te.sum(left[i, axis] * right[axis, j], axis=axis), "C")
    function = te.create_prim_func([left, right, product]).with_attr("global_symbol", "main")
    target = tvm.target.Target({"kind": "llvm", "mcpu": "x86-64-v2"})
    tvm.compile(tvm.IRModule({"main": function}), target=target).export_library(str(path))


if __name__ == "__main__":
    build(Path(sys.argv[1]))
