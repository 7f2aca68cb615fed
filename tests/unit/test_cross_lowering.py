"""Our lowering keeps small buffers on the stack, where TVM's own takes them from the heap."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cross.build.lowering import tir_pipeline

pytest.importorskip("tvm")
pytestmark = pytest.mark.slow


def tiled_sums(rows: int) -> Any:
    """Return a matrix product whose threads keep `rows` x 64 sums each."""
    import tvm
    from tvm import s_tir, te, topi

    data, weights = te.placeholder((2 * rows, 8), name="data"), te.placeholder((8, 64), name="weights")
    result = topi.nn.relu(topi.matmul(data, weights))
    schedule = s_tir.Schedule(tvm.IRModule({"main": te.create_prim_func([data, weights, result])}))
    last = schedule.get_sblock("compute")
    outer, _ = schedule.split(schedule.get_loops(last)[0], [None, rows])
    schedule.compute_at(schedule.get_sblock("T_matmul"), outer)
    schedule.parallel(outer)
    return schedule.mod


@pytest.mark.parametrize(("rows", "is_from_heap"), [(6, False), (1024, True)], ids=["1.5 KiB", "256 KiB"])
def test_a_tile_of_sums_is_on_the_stack(rows: int, is_from_heap: bool) -> None:
    """Two calls for each tile, and sums that are cleared and moved, took a third of the time; large buffers may."""
    import tvm

    target_json = json.dumps({"kind": "llvm", "mcpu": "x86-64-v3"})

    library = tvm.compile(tiled_sums(rows), target=json.loads(target_json), tir_pipeline=tir_pipeline(target_json)).mod

    assert ("TVMBackendAllocWorkspace" in library.inspect_source("ll")) == is_from_heap


def test_gpus_are_lowered_as_tvm_does() -> None:
    """Their buffers are in memories of their own."""
    assert tir_pipeline(json.dumps({"kind": "cuda", "arch": "sm_86"})) == "default"
