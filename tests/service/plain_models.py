"""Builds the models of the plain runtime's tests: `python -m tests.service.plain_models FOLDER TARGET_JSON`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from cross.targets.target import parse_target


def build(folder: Path, target_json: str) -> None:
    """Write matmul.so, parallel.so, workspace.so, packed.so, exp.so."""
    import tvm
    from tvm import te
    from tvm.s_tir import Schedule

    from cross.compile.library import build as build_artifact

    def export(name: str, function: object) -> None:
        built = build_artifact(tvm.IRModule({"main": function}), parse_target(target_json), folder)
        built.path.replace(folder / name)

    def prim(*tensors: object) -> object:
        return te.create_prim_func(list(tensors)).with_attr("global_symbol", "main")

    left, right = (te.placeholder((64, 64), "float32", name) for name in ("A", "B"))
    axis = te.reduce_axis((0, 64), "k")
    product = te.compute((64, 64), lambda i, j: te.sum(left[i, axis] * right[axis, j], axis=axis), "C")
    export("matmul.so", prim(left, right, product))
    wide = te.placeholder((2**16,), "float32", "A")
    schedule = Schedule(prim(wide, te.compute((2**16,), lambda i: wide[i] * 2.0, "B")))
    (loop,) = schedule.get_loops(schedule.get_sblock("B"))
    schedule.parallel(schedule.split(loop, [16, None])[0])
    export("parallel.so", schedule.mod["main"])
    between = te.compute((2**16,), lambda i: wide[i] + 1.0, "between")
    export("workspace.so", prim(wide, te.compute((2**16,), lambda i: between[2**16 - 1 - i] * 3.0, "B")))
    given = te.placeholder((8,), "float32", "A")
    export("exp.so", prim(given, te.compute((8,), lambda i: te.exp(given[i]), "B")))
    divided = te.placeholder((8,), "int32", "A")
    export("divide.so", prim(divided, te.compute((8,), lambda i: te.indexdiv(1000, divided[i]), "B")))
    doubled = te.extern(
        (8,),
        [given],
        lambda ins, outs: tvm.tirx.call_packed("fabric.double", ins[0].data, outs[0].data, 8),
        dtype="float32",
        name="B",
    )
    export("packed.so", prim(given, doubled))


if __name__ == "__main__":
    json.loads(sys.argv[2])
    build(Path(sys.argv[1]), sys.argv[2])
