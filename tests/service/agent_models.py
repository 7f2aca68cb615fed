"""Builds the models of the agent's TVM tests, in a process of its own: `python -m tests.service.agent_models
DIRECTORY`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

TARGET = {"kind": "llvm", "mcpu": "x86-64-v2"}


def build(folder: Path) -> None:
    """Write matmul.so, one copy for each of several dtypes, stream.so, parallel.so and vm.so."""
    import tvm
    from tvm import relax, te
    from tvm.s_tir import Schedule

    target = tvm.target.Target(TARGET)

    def export(name: str, *tensors: Any) -> None:
        function = te.create_prim_func(list(tensors)).with_attr("global_symbol", "main")
        tvm.compile(tvm.IRModule({"main": function}), target=target).export_library(str(folder / name))

    def copy_of(given: Any) -> Any:
        return lambda i: given[i]

    left, right = (te.placeholder((16, 16), "float32", name) for name in ("A", "B"))
    axis = te.reduce_axis((0, 16), "k")
    product = te.compute((16, 16), lambda i, j: te.sum(left[i, axis] * right[axis, j], axis=axis), "C")
    export("matmul.so", left, right, product)
    for dtype in ("int8", "int32", "int64", "uint8", "float16", "float64", "bool"):
        given = te.placeholder((8,), dtype, "A")
        export(f"{dtype}.so", given, te.compute((8,), copy_of(given), "B"))
    wide = te.placeholder((2**18,), "float32", "A")
    export("stream.so", wide, te.compute((2**18,), copy_of(wide), "B"))
    schedule = Schedule(te.create_prim_func([wide, te.compute((2**18,), copy_of(wide), "B")]))
    (loop,) = schedule.get_loops(schedule.get_sblock("B"))
    schedule.parallel(schedule.split(loop, [16, None])[0])
    tvm.compile(schedule.mod, target=target).export_library(str(folder / "parallel.so"))
    block = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((4, 8), "float32"))
    w = relax.Var("w", relax.TensorType((8, 8), "float32"))
    with block.function("main", [x, w]):
        with block.dataflow():
            y = block.emit(relax.op.matmul(x, w))
            outputs = block.emit_output((block.emit(relax.op.nn.relu(y)), y))
        block.emit_func_output(outputs)
    tvm.compile(block.get(), target=target).export_library(str(folder / "vm.so"))


if __name__ == "__main__":
    build(Path(sys.argv[1]))
