"""Our lowering keeps small buffers on the stack, aligns it, cuts vectors that reach too far; maxima begin with -inf."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cross.compile.cutting import with_cut_vectors
from cross.compile.lowering import lower_by_default, pass_context, tir_pipeline
from cross.targets.target import host_target, parse_target
from fleet.building.build_candidate import BuildTask, build_candidate
from fleet.optimizer.tasks.propose import ProposeTask, propose
from fleet.spaces.packing import pack_all
from fleet.workloads.programs import matmul

pytestmark = pytest.mark.slow


def tiled_sums(rows: int) -> Any:
    """Return a matrix product with `rows` x 64 sums in each thread."""
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

    target = parse_target(json.dumps({"kind": "llvm", "mcpu": "x86-64-v3"}))

    library = tvm.compile(tiled_sums(rows), target=dict(target.options), tir_pipeline=tir_pipeline(target)).mod

    assert ("TVMBackendAllocWorkspace" in library.inspect_source("ll")) == is_from_heap


@pytest.mark.parametrize(("mtriple", "frames"), [("x86_64-linux-gnu", 2), ("aarch64-linux-gnu", 0)], ids=["x86", "ARM"])
def test_frames_are_aligned_to_the_widest_vector(mtriple: str, frames: int) -> None:
    """The function and its threads' body align their stack for spilled vectors, independent of the caller.

    ARM's vectors are no wider than its stack is aligned to anyway.
    """
    import tvm

    target = parse_target(json.dumps({"kind": "llvm", "mtriple": mtriple}))

    library = tvm.compile(tiled_sums(6), target=dict(target.options), tir_pipeline=tir_pipeline(target)).mod

    assert library.inspect_source("s").count("$-64, %rsp") == frames
    assert library.inspect_source("ll").count("store volatile") == frames


def test_statements_without_effect_are_left_to_llvm(tmp_path: Path) -> None:
    """TVM's pass that removes them takes a tenth of the time, and the object file is the same without it."""
    import tvm

    target = parse_target(json.dumps({"kind": "llvm", "mcpu": "x86-64-v3"}))
    ours = pass_context(target, checks_arguments=False)

    def compiled(context: Any, mod: Any) -> bytes:
        with context:
            library = tvm.compile(mod, target=dict(target.options), tir_pipeline=tir_pipeline(target)).mod
        library.write_to_file(str(tmp_path / "code.o"), "o")
        return (tmp_path / "code.o").read_bytes()

    assert list(ours.disabled_pass) == ["tirx.RemoveNoOp"]
    for mod in (tiled_sums(6), one_more(24, 16, 2)):
        assert compiled(tvm.transform.PassContext(config={"tirx.disable_assert": True}), mod) == compiled(ours, mod)


def test_a_marked_function_is_lowered_so_by_default() -> None:
    """A marked function gets the whole pipeline by default; other functions in the process stay unchanged."""
    import tvm

    target = parse_target(json.dumps({"kind": "llvm", "mcpu": "x86-64-v3"}))
    ours = lower_by_default(lower_by_default(tiled_sums(6), target), target)

    sources = [tvm.compile(mod, target=dict(target.options)).mod for mod in (tiled_sums(6), ours, tiled_sums(6))]

    from_heap = ["TVMBackendAllocWorkspace" in library.inspect_source("ll") for library in sources]
    assert [True, False, True] == from_heap


def one_more(columns: int, lanes: int, rows: int) -> Any:
    """Return x + 1 for x of [5, columns], `rows` rows at a time, in unrolled vectors of `lanes`."""
    import tvm
    from tvm import s_tir, te

    data = te.placeholder((5, columns), name="data")
    result = te.compute(data.shape, lambda y, x: data[y, x] + 1, name="more")
    schedule = s_tir.Schedule(tvm.IRModule({"main": te.create_prim_func([data, result])}))
    y, x = schedule.get_loops(schedule.get_sblock("more"))
    schedule.split(y, [None, rows])
    vectors, lane = schedule.split(x, [None, lanes])
    schedule.unroll(vectors)
    schedule.vectorize(lane)
    return schedule.mod


def vectors_of(function: Any) -> list[int]:
    """Return the lanes of a function's vector loops, in order."""
    import tvm_ffi
    from tvm.tirx import For, ForKind

    found: list[int] = []

    def visit(loop: For) -> None:
        if loop.kind == ForKind.VECTORIZED:
            found.append(int(loop.extent))

    tvm_ffi.structural_walk(function.body, [(For, visit)])
    return found


@pytest.mark.parametrize(
    ("columns", "lanes", "expected"), [(24, 16, [16, 8]), (40, 16, [16, 8]), (4, 8, [4]), (32, 16, [16])]
)
@pytest.mark.parametrize("rows", [1, 2], ids=["rows", "rows with a border"])
def test_the_last_vector_is_cut(columns: int, lanes: int, expected: list[int], rows: int) -> None:
    """A vectorized loop with a bounds check becomes scalar code in TVM, so its last part is split off."""
    mod = one_more(columns, lanes, rows)

    assert expected == vectors_of(with_cut_vectors(mod["main"]))


def test_a_program_with_cut_vectors_computes_the_same() -> None:
    """All columns are computed, and none beyond them."""
    import tvm

    target = host_target()
    data, result = np.random.default_rng(0).standard_normal((2, 5, 24)).astype("float32")
    buffers = [tvm.runtime.tensor(array) for array in (data, result)]

    tvm.compile(one_more(24, 16, 2), target=dict(target.options), tir_pipeline=tir_pipeline(target))["main"](*buffers)

    np.testing.assert_array_equal(data + 1, buffers[1].numpy())


def test_gpus_are_lowered_as_tvm_does() -> None:
    """Their buffers are in memories of their own."""
    assert tir_pipeline(parse_target(json.dumps({"kind": "cuda", "arch": "sm_86"}))) == "default"


def conversions(has_half: bool) -> str:
    """Return the LLVM code that TVM adds to a small program to convert half-precision numbers."""
    import tvm

    target = parse_target(json.dumps({"kind": "llvm", "mcpu": "x86-64-v3"}))
    lowering = tir_pipeline(target, has_half=has_half)
    source = tvm.compile(tiled_sums(6), target=dict(target.options), tir_pipeline=lowering).mod.inspect_source("ll")
    return "".join(
        part.partition("\n}")[0] for part in source.split("\ndefine ") if "fhf2(" in part or "hfsf2(" in part
    )


def test_a_program_without_half_precision_does_not_convert_it() -> None:
    """For a small program LLVM spends a sixth of its time on these two functions, which nothing calls."""
    assert "shl" in conversions(has_half=True)
    assert "shl" not in conversions(has_half=False)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_candidate_computes_the_same_where_the_processor_lacks_conversions(dtype: str, tmp_path: Path) -> None:
    """The first of these processors has no instruction for half precision: there the functions are called."""
    import tvm

    target = parse_target(json.dumps({"kind": "llvm", "mcpu": "x86-64-v2"}))
    task = ProposeTask(mod_json=matmul(16, dtype).mod_json, target=target, count=1)
    trace = propose(task)[0].trace_json

    built = build_candidate(BuildTask(mod_json=task.mod_json, target=target, trace_json=trace, out_dir=str(tmp_path)))

    rows, columns = (np.random.default_rng(seed).random((16, 16)).astype(dtype) for seed in (1, 2))
    inputs = pack_all([rows, columns], built.packings)
    arrays = [tvm.runtime.tensor(array) for array in (*inputs, np.zeros((16, 16), dtype))]
    tvm.runtime.load_module(str(built.artifact.path))["main"](*arrays)
    np.testing.assert_allclose(rows @ columns, arrays[-1].numpy(), rtol=1e-2)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize(("reduce", "infinity"), [("max", -np.inf), ("min", np.inf)])
def test_the_maximum_of_minus_infinities_is_minus_infinity(reduce: str, infinity: float, dtype: str) -> None:
    """Code that detects masked rows compares with it. The last finite number, TVM's initial value, stays itself."""
    import tvm
    from tvm import te, topi

    last = np.copysign(np.finfo(dtype).max, infinity)
    rows = np.array([[infinity, infinity], [infinity, last], [1, -1]], dtype)
    data = te.placeholder(rows.shape, dtype, name="data")
    mod = tvm.IRModule({"main": te.create_prim_func([data, getattr(topi, reduce)(data, axis=1)])})
    target, result = host_target(), tvm.runtime.tensor(np.zeros(3, dtype))

    tvm.compile(mod, target=dict(target.options), tir_pipeline=tir_pipeline(target))["main"](
        tvm.runtime.tensor(rows), result
    )

    np.testing.assert_array_equal(result.numpy(), [infinity, last, -np.sign(infinity)])


def test_fills_with_the_lowest_number_are_kept() -> None:
    """Masks of models do so on purpose: an infinity less an infinity is no number."""
    import tvm
    from tvm import te
    from tvm.tirx import const, min_value

    data = te.placeholder((4,), name="data")
    masked = te.compute((4,), lambda i: te.if_then_else(i < 2, data[i], min_value("float32")), name="masked")
    filled = te.compute((4,), lambda i: const(np.finfo("float32").min, "float32"), name="filled")
    target = host_target()
    mod = tvm.IRModule({"main": te.create_prim_func([data, masked, filled])})
    results = [tvm.runtime.tensor(np.zeros(4, "float32")) for _ in range(2)]

    tvm.compile(mod, target=dict(target.options), tir_pipeline=tir_pipeline(target))["main"](
        tvm.runtime.tensor(np.ones(4, "float32")), *results
    )

    assert all(np.isfinite(result.numpy()).all() for result in results)
