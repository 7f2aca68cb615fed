"""Schedules of operators other than tiled products: right for odd shapes and types, and built for every processor."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from cross.targets.target import host_target, parse_target
from fleet.spaces.blocks import child_blocks
from fleet.spaces.fallback_rules import unscheduled
from fleet.spaces.space import schedules, space_of, static_schedule
from fleet.workloads.traces import replay, trace_json
from tests.unit.quick_compile import compile_quickly

pytestmark = pytest.mark.slow

HOST = host_target()
AVX2 = parse_target(json.dumps({"kind": "llvm", "mcpu": "x86-64-v3", "num-cores": 2}))
AVX512 = parse_target(json.dumps({"kind": "llvm", "mcpu": "x86-64-v4", "num-cores": 2}))

Make = Callable[[], list[Any]]


def tensors(*shapes: tuple[int, ...], dtype: str = "float32") -> list[Any]:
    from tvm import te

    return [te.placeholder(shape, dtype, name=f"p{index}") for index, shape in enumerate(shapes)]


def depthwise(size: int, channels: int, kernel: int, stride: int, dtype: str = "float32") -> Make:
    def make() -> list[Any]:
        from tvm import topi

        data, weights = tensors((1, size, size, channels), (kernel, kernel, 1, channels), dtype=dtype)
        sums = topi.nn.conv(
            data, weights, stride, kernel // 2, 1, channels, "NHWC", "HWIO", "int32" if dtype == "int8" else dtype
        )
        return [data, weights, topi.clip(sums, 0, 6)]

    return make


def grouped(size: int, channels: int, columns: int, groups: int, kernel: int) -> Make:
    def make() -> list[Any]:
        from tvm import topi

        data, weights = tensors((1, size, size, channels), (kernel, kernel, channels // groups, columns))
        return [data, weights, topi.nn.relu(topi.nn.conv(data, weights, 1, kernel // 2, 1, groups, "NHWC", "HWIO"))]

    return make


def padded_groups(groups: int, padded: int, width: int) -> Make:
    """The valid columns of each padded group, as in a convolution with groups that are no whole vectors."""

    def make() -> list[Any]:
        from tvm import te

        [data] = tensors((9, 7, groups * padded))
        shape = (9, 7, groups * width)
        return [data, te.compute(shape, lambda y, x, c: data[y, x, c // width * padded + c % width] + 1)]

    return make


def grouped_and_padded() -> list[Any]:
    """A convolution as in ShuffleNet: 28 columns of each group count, and 32 are computed."""
    from tvm import te, topi

    data, weights, bias = tensors((1, 9, 7, 24), (1, 1, 6, 128), (112,))
    sums = topi.nn.conv(data, weights, 1, 0, 1, 4, "NHWC", "HWIO")
    kept = te.compute((1, 9, 7, 112), lambda n, y, x, c: sums[n, y, x, c // 28 * 32 + c % 28], name="unpad")
    return [data, weights, bias, topi.nn.relu(topi.add(kept, bias))]


def pool(size: int, channels: int, kind: str, stride: int, layout: str = "NHWC") -> Make:
    def make() -> list[Any]:
        from tvm import topi

        [data] = tensors((1, size, size, channels) if layout == "NHWC" else (1, channels, size, size))
        return [data, topi.nn.pool2d(data, [3, 3], [stride] * 2, [1, 1], [1] * 4, kind, layout=layout)]

    return make


def neighbours(row: int, columns: int, *, rows_too: bool = False) -> Make:
    """Windows along the innermost axis, of something computed, as in a local response norm."""

    def make() -> list[Any]:
        from tvm import topi

        [data] = tensors((1, 1, 9, row, columns))
        kernel, border = ([1, 3, 5], [0, 1, 2]) if rows_too else ([1, 1, 5], [0, 0, 2])
        return [data, topi.nn.pool3d(topi.nn.relu(data), kernel, [1] * 3, [1] * 3, [*border, *border], "avg")]

    return make


def unary(name: str, shape: tuple[int, ...], dtype: str = "float32", **arguments: Any) -> Make:
    def make() -> list[Any]:
        from tvm import topi

        [data] = tensors(shape, dtype=dtype)
        function = getattr(topi.nn, name, None) or getattr(topi, name)
        return [data, function(data, **arguments)]

    return make


def norm(rows: int, size: int, *, with_mean: bool) -> Make:
    def make() -> list[Any]:
        from tvm import topi

        data, scale = tensors((rows, size), (size,))
        if with_mean:
            return [data, scale, topi.nn.layer_norm(data, scale, scale, [1], 1e-5)]
        return [data, scale, topi.nn.rms_norm(data, scale, [1], 1e-5)]

    return make


def stacked(*shapes: tuple[int, ...], axis: int) -> Make:
    """Pieces that lie one behind the other, as channels that come first do."""

    def make() -> list[Any]:
        from tvm import topi

        parts = tensors(*shapes)
        return [*parts, topi.nn.relu(topi.concatenate(parts, axis))]

    return make


def concat(*channels: int) -> Make:
    def make() -> list[Any]:
        from tvm import topi

        parts = tensors(*((1, 5, 7, size) for size in channels))
        return [*parts, topi.concatenate(parts, 3)]

    return make


def rotary() -> list[Any]:
    """A rotary embedding as in Llama: the halves of each of two heads are swapped, one of them negated."""
    from tvm import te, topi

    [data] = tensors((1, 9, 2 * 16))
    heads = topi.reshape(data, (1, 9, 2, 16))
    low, high = (topi.strided_slice(heads, [start], [start + 8], [1], axes=[3]) for start in (0, 8))
    turned = topi.add(heads, topi.concatenate([topi.negative(high), low], 3))
    return [data, te.compute(data.shape, lambda b, t, f: turned[b, t, f // 16, f % 16])]


def group_norm() -> list[Any]:
    from tvm import topi

    data, scale, shift = tensors((2, 12, 7, 9), (12,), (12,))
    return [data, scale, shift, topi.nn.group_norm(data, scale, shift, 3, 1, [2, 3], 1e-5)]


def mean_of_all() -> list[Any]:
    """A reduction to a single number, which has no loops."""
    from tvm import te, topi

    [data] = tensors((30, 50))
    total = topi.sum(data)
    return [data, te.compute((), lambda *at: total(*at) / 1500, name="mean")]


CASES: dict[str, Make] = {
    "depthwise": depthwise(14, 32, 3, 1),
    "depthwise, prime sizes": depthwise(13, 29, 3, 2),
    "depthwise, 5x5": depthwise(9, 20, 5, 1),
    "depthwise, 3 channels": depthwise(11, 3, 3, 1),
    "depthwise, int8": depthwise(13, 24, 3, 1, "int8"),
    "depthwise, float16": depthwise(13, 24, 3, 1, "float16"),
    "grouped, as shufflenet's": grouped(14, 28, 68, 2, 1),
    "grouped, 34 columns": grouped(5, 8, 136, 4, 3),
    "grouped, prime": grouped(5, 6, 21, 3, 3),
    "grouped, 5 vectors": grouped(7, 16, 320, 4, 1),
    "grouped and padded": grouped_and_padded,
    "padded groups": padded_groups(4, 24, 20),
    "padded groups, cut": padded_groups(4, 40, 34),
    "max pool": pool(17, 21, "max", 2),
    "average pool": pool(14, 16, "avg", 1),
    "max pool of planes": pool(28, 24, "max", 2, "NCHW"),
    "neighbours": neighbours(11, 64),
    "neighbours, prime sizes": neighbours(13, 29),
    "neighbours, rows too": neighbours(11, 48, rows_too=True),
    "global pool": unary("global_pool", (1, 7, 7, 70), pool_type="avg", layout="NHWC"),
    "sum of rows": unary("sum", (19, 197), axis=-1),
    "sum of all": unary("sum", (3, 50)),
    "mean of all": mean_of_all,
    "maximum of the middle": unary("max", (5, 31, 18), axis=1),
    "sum of int32": unary("sum", (64, 300), "int32", axis=1),
    "argmax": unary("argmax", (13, 100), axis=1),
    "softmax": unary("softmax", (128, 192)),
    "softmax, prime": unary("softmax", (3, 41, 197)),
    "softmax of channels": unary("softmax", (1, 21, 11, 16), axis=1),
    "softmax, one row": unary("softmax", (1, 1000)),
    "softmax, float16": unary("softmax", (16, 64), "float16"),
    "log_softmax": unary("log_softmax", (32, 100)),
    "layer_norm": norm(64, 96, with_mean=True),
    "layer_norm, prime": norm(11, 197, with_mean=True),
    "rms_norm": norm(64, 768, with_mean=False),
    "group_norm": group_norm,
    "transpose": unary("transpose", (1, 48, 13, 21), axes=[0, 2, 3, 1]),
    "transpose back": unary("transpose", (1, 56, 7, 64), axes=[0, 3, 1, 2]),
    "transpose int8": unary("transpose", (48, 80), "int8", axes=[1, 0]),
    "concat": concat(64, 24, 3),
    "concat of vectors": concat(16, 48, 8),
    "concat of planes": stacked((2, 16, 12, 12), (2, 24, 12, 12), axis=1),
    "concat of rows": stacked((1, 33, 7), (1, 9, 7), axis=1),
    "rotary embedding": rotary,
    "pad": unary("pad", (1, 9, 9, 20), pad_before=[0, 1, 2, 0], pad_after=[0, 2, 1, 0]),
    "reshape": unary("reshape", (6, 35), newshape=(5, 42)),
    "rows of pairs": unary("relu", (9, 54)),
    "every other column": unary("strided_slice", (9, 64), begin=[0, 0], end=[9, 64], strides=[1, 2]),
    "sigmoid": unary("sigmoid", (7, 13)),
    "one number": unary("exp", (1,)),
}


def module(make: Make) -> Any:
    import tvm
    from tvm import te

    return tvm.IRModule({"main": te.create_prim_func(make())})


def arrays_for(mod: Any) -> list[np.ndarray[Any, Any]]:
    rng = np.random.default_rng(0)
    params = [([int(size) for size in param.shape], str(param.dtype)) for param in mod["main"].params]
    return [
        rng.standard_normal(shape).astype(dtype) if "float" in dtype else rng.integers(-9, 9, shape).astype(dtype)
        for shape, dtype in params
    ]


def run(mod: Any, arrays: list[np.ndarray[Any, Any]], *, optimized: bool = False) -> np.ndarray[Any, Any]:
    import tvm

    buffers = [tvm.runtime.tensor(array) for array in arrays]
    compile_quickly(mod, optimized=optimized)["main"](*buffers)
    result: np.ndarray[Any, Any] = buffers[-1].numpy()
    return result


@pytest.mark.parametrize("case", CASES)
def test_a_schedule_computes_the_same(case: str) -> None:
    """The schedule is right for all shapes and types."""
    mod = module(CASES[case])
    arrays = arrays_for(mod)

    schedule = static_schedule(mod, HOST)

    assert schedule is not None
    tolerance = 1e-2 if "float16" in case else 1e-5
    computed = run(schedule.mod, arrays, optimized=True)
    np.testing.assert_allclose(computed, run(mod, arrays), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    "case", ["depthwise", "depthwise, prime sizes", "average pool", "neighbours", "grouped and padded"]
)
def test_a_reduction_by_columns_has_other_tiles_to_try(case: str) -> None:
    """Other tiles are different programs with equal results; the first few have both orders of the outer loops."""
    mod = module(CASES[case])
    arrays = arrays_for(mod)
    expected = run(mod, arrays)

    first, *others = itertools.islice(schedules(mod, HOST), 3)

    for other in others:
        assert trace_json(other) != trace_json(first)
        np.testing.assert_allclose(run(other.mod, arrays, optimized=True), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("case", "others"), [("softmax", 2), ("layer_norm", 1), ("rms_norm", 3), ("sum of all", 0)])
def test_rows_have_other_numbers_of_partial_results_to_try(case: str, others: int) -> None:
    """There are one to eight vectors of partial results, fewer than a row has; programs differ, and results are
    equal.
    """
    import tvm_ffi

    mod = module(CASES[case])
    arrays = arrays_for(mod)
    expected = run(mod, arrays)

    found = list(schedules(mod, AVX512))

    assert 1 + others == len({tvm_ffi.structural_hash(schedule.mod) for schedule in found}) == len(found)
    for schedule in found[1:]:
        np.testing.assert_allclose(run(schedule.mod, arrays, optimized=True), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("case", ["depthwise", "softmax"])
def test_a_schedule_is_the_same_whatever_was_made_before(case: str) -> None:
    """Its trace is its name: with others in it, one candidate would be measured again and again."""
    mod = module(CASES[case])
    space = space_of(mod, HOST)

    assert space is not None
    _, second = space.schedules_at([0, 1])
    [alone] = space.schedules_at([1])
    assert trace_json(alone) == trace_json(second)


def test_a_kept_schedule_of_padded_groups_can_be_replayed() -> None:
    """Its change to the buffer between the two blocks is an ordinary step of its trace."""
    import tvm_ffi

    mod = module(grouped_and_padded)
    schedule = static_schedule(mod, HOST)

    assert schedule is not None
    assert tvm_ffi.structural_equal(replay(mod, trace_json(schedule)).mod, schedule.mod)


def test_padding_of_groups_is_left_out_row_by_row() -> None:
    """Both blocks share one loop over rows, so that the second reads the first one's results from the nearest cache."""
    schedule = static_schedule(module(grouped_and_padded), AVX2)

    assert schedule is not None
    outermost = {schedule.get(schedule.get_loops(block)[0]).loop_var.name for block in child_blocks(schedule)}
    assert len(outermost) == 1


@pytest.mark.parametrize("case", ["neighbours", "neighbours, rows too"])
def test_windows_along_the_columns_have_no_conditions(case: str) -> None:
    """Conditions would differ from lane to lane; the input is padded before, by no more than a tile of rows needs."""
    schedule = static_schedule(module(CASES[case]), AVX512)

    assert schedule is not None
    assert "if_then_else" not in str(schedule.mod)
    padding = next(block for block in child_blocks(schedule) if "pad" in schedule.get(block).name_hint)
    assert len(schedule.get_loops(padding)) > len(schedule.get(padding).iter_vars)


def test_a_scan_has_no_schedule() -> None:
    """An opaque function stays as it is; that is no error."""
    assert static_schedule(module(unary("cumsum", (4, 9), axis=1)), HOST) is None


@pytest.mark.parametrize(("case", "lanes"), [("padded groups", 4), ("padded groups, cut", 8)])
def test_no_vector_reaches_into_the_next_group(case: str, lanes: int) -> None:
    """Its parts would be fetched one by one: widths that divide a group are taken, or its last vector is cut."""
    from tvm.tirx import ForKind

    schedule = static_schedule(module(CASES[case]), AVX2)

    assert schedule is not None
    loops = [schedule.get(loop) for loop in schedule.get_loops(child_blocks(schedule)[-1])]
    assert [lanes] == [int(loop.extent) for loop in loops if loop.kind == ForKind.VECTORIZED]
    assert [4] == [int(loop.extent) for loop in loops[-3:-2]]  # groups


@pytest.mark.parametrize(("core", "sums"), [("x86-64-v3", 10), ("x86-64-v4", 25)])
def test_a_tile_of_a_grouped_convolution_fills_the_registers(core: str, sums: int) -> None:
    """Multiply-adds wait for each other if there are few of them: 25 of 32 registers hold sums, or 10 of 16."""
    schedule = static_schedule(
        module(grouped(10, 16, 320, 4, 1)), parse_target(json.dumps({"kind": "llvm", "mcpu": core}))
    )

    assert schedule is not None
    loops = [schedule.get(loop) for loop in schedule.get_loops(schedule.get_sblock("group_conv2d_nhwc_update"))]
    *rows, lanes = [int(loop.extent) for loop in loops[-4:]]
    assert (sums, 8 if core == "x86-64-v3" else 16) == (math.prod(rows), lanes)


@pytest.mark.parametrize(("case", "lanes"), [("concat of vectors", 8), ("concat", None)])
def test_pieces_of_whole_vectors_are_copied_in_vectors(case: str, lanes: int | None) -> None:
    """Copies use as many lanes as always lie in one piece; without such a number they are left to LLVM."""
    from tvm.tirx import ForKind

    schedule = static_schedule(module(CASES[case]), AVX2)

    assert schedule is not None
    loops = [schedule.get(loop) for loop in schedule.get_loops(child_blocks(schedule)[-1])]
    assert [int(loop.extent) for loop in loops if loop.kind == ForKind.VECTORIZED] == ([lanes] if lanes else [])


def test_cores_share_the_outer_loops_of_a_reduction_of_another_kind() -> None:
    """All loops in one leave a division for each index of each number: a pool of planes took twice as long."""
    schedule = static_schedule(module(CASES["max pool of planes"]), AVX2)

    assert schedule is not None
    [block] = [one for one in child_blocks(schedule) if "update" in schedule.get(one).name_hint]
    assert [24, 14, 14, 3, 3] == [int(schedule.get(loop).extent) for loop in schedule.get_loops(block)]


def test_a_piece_that_lies_together_is_copied_in_vectors_of_all_its_axes() -> None:
    """12 columns hold no vector of 16, a plane of 12 x 12 does; LLVM would test the origin of every number."""
    from tvm.tirx import ForKind

    schedule = static_schedule(module(CASES["concat of planes"]), AVX512)

    assert schedule is not None
    lanes = schedule.get(schedule.get_loops(child_blocks(schedule)[-1])[-1])
    assert (ForKind.VECTORIZED, 16) == (lanes.kind, int(lanes.extent))


@pytest.mark.parametrize("case", ["rows of pairs", "every other column"])
def test_rows_that_vectors_do_not_suit_are_left_to_the_compiler(case: str) -> None:
    """The compiler is faster on them: a static schedule must not be slower than the untuned program."""
    from tvm.tirx import ForKind

    schedule = static_schedule(module(CASES[case]), AVX2)

    assert schedule is not None
    loops = [schedule.get(loop) for loop in schedule.get_loops(child_blocks(schedule)[-1])]
    assert ForKind.VECTORIZED not in {loop.kind for loop in loops}


@pytest.mark.parametrize(
    "case", ["depthwise", "max pool", "mean of all", "softmax", "layer_norm", "group_norm", "concat", "transpose"]
)
def test_no_block_stays_an_unscheduled_loop_nest(case: str) -> None:
    """An operator left as a plain loop nest would be named."""
    schedule = static_schedule(module(CASES[case]), HOST)

    assert schedule is not None
    assert unscheduled(schedule) == ()


@pytest.mark.parametrize(
    "target",
    [
        {"kind": "llvm", "mcpu": "x86-64-v4"},
        {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mattr": ["+neon"]},
        {"kind": "llvm", "mtriple": "armv7l-linux-gnueabihf", "mattr": ["+neon"], "mfloat-abi": "hard"},
    ],
    ids=["x86-64-v4", "aarch64", "armv7"],
)
@pytest.mark.parametrize("case", ["depthwise, prime sizes", "softmax"])
def test_other_processors_have_vectors_too(case: str, target: dict[str, object]) -> None:
    """A schedule for them is compiled to vector instructions."""
    import tvm

    schedule = static_schedule(module(CASES[case]), parse_target(json.dumps(target)))

    assert schedule is not None
    code = tvm.compile(schedule.mod, target=tvm.target.Target(target)).mod.inspect_source("ll")
    assert "<16 x float>" in code if target.get("mcpu") else "<4 x float>" in code
