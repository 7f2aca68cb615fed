"""Static schedules: made without a trial, right, packed where weights are constant, and never a bare loop nest."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from cross.targets.target import host_target, parse_target
from fleet.graph.marking import ATTRIBUTE as CONSTANTS
from fleet.spaces.blocks import child_blocks, find_product
from fleet.spaces.facts import processor_facts
from fleet.spaces.fallback_rules import schedule_rest
from fleet.spaces.inlining import inline_all
from fleet.spaces.packing import Packing, pack_all, packings_of
from fleet.spaces.product import schedule_product
from fleet.spaces.space import finished, schedules, static_schedule
from fleet.spaces.tiles import Order, Tile, tiles
from fleet.workloads.traces import replay, trace_json
from tests.unit.quick_compile import compile_quickly

pytestmark = pytest.mark.slow

HOST = host_target()


def function_of(shapes: Sequence[tuple[int, ...]], compute: Callable[..., Any], constants: Sequence[int] = ()) -> Any:
    """Return a module with one function: `compute` of float32 tensors."""
    import tvm
    from tvm import te

    inputs = [te.placeholder(shape, name=f"p{index}") for index, shape in enumerate(shapes)]
    return tvm.IRModule(
        {"main": te.create_prim_func([*inputs, compute(*inputs)]).with_attr(CONSTANTS, list(constants))}
    )


def run(mod: Any, arrays: Sequence[np.ndarray[Any, Any]], *, optimized: bool = False) -> np.ndarray[Any, Any]:
    import tvm

    tensors = [tvm.runtime.tensor(array) for array in arrays]
    compile_quickly(mod, optimized=optimized)["main"](*tensors)
    result: np.ndarray[Any, Any] = tensors[-1].numpy()
    return result


def conv(*, stride: int = 1, pad: int = 0, groups: int = 1) -> Callable[..., Any]:
    from tvm import topi

    def compute(data: Any, weights: Any, bias: Any) -> Any:
        found = topi.nn.conv(data, weights, stride, pad, 1, groups, "NHWC", "HWIO")
        return topi.nn.relu(topi.add(found, bias))

    return compute


def matmul(data: Any, weights: Any) -> Any:
    from tvm import topi

    return topi.nn.matmul(data, weights)


def heads(data: Any, weights: Any) -> Any:
    """A projection with its result cut into attention heads."""
    from tvm import topi

    return topi.transpose(topi.reshape(topi.nn.matmul(data, weights), (16, 4, 16)), [1, 0, 2])


CASES = {
    "conv 3x3": ([(1, 14, 14, 32), (3, 3, 32, 64), (1, 1, 1, 64)], conv(pad=1), [1]),
    "conv 1x1, stride 2": ([(1, 14, 14, 32), (1, 1, 32, 48), (1, 1, 1, 48)], conv(stride=2), [1]),
    "conv, odd sizes": ([(1, 13, 13, 3), (5, 5, 3, 24), (1, 1, 1, 24)], conv(pad=2), [1]),
    "conv, 21 channels": ([(1, 7, 7, 8), (1, 1, 8, 21), (1, 1, 1, 21)], conv(), [1]),
    "conv, a vector and a half": ([(1, 9, 9, 8), (1, 1, 8, 24), (1, 1, 1, 24)], conv(), [1]),
    "depthwise": ([(1, 14, 14, 32), (3, 3, 1, 32), (1, 1, 1, 32)], conv(pad=1, groups=32), [1]),
    "grouped": ([(1, 14, 14, 32), (3, 3, 8, 64), (1, 1, 1, 64)], conv(pad=1, groups=4), [1]),
    "matrix product": ([(24, 64), (64, 96)], matmul, [1]),
    "one row": ([(1, 256), (256, 1000)], matmul, [1]),
    "two variables": ([(4, 24, 32), (4, 32, 24)], matmul, []),
    "heads": ([(16, 32), (32, 64)], heads, [1]),
}


@pytest.mark.parametrize("case", CASES)
def test_a_static_schedule_computes_the_same(case: str) -> None:
    """The schedule is right for all shapes, with weights packed as it requires."""
    shapes, compute, constants = CASES[case]
    mod = function_of(shapes, compute, constants)
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal([int(n) for n in param.shape]).astype("float32") for param in mod["main"].params]

    schedule = static_schedule(mod, HOST)

    assert schedule is not None
    packed = pack_all(arrays, packings_of(schedule, mod))
    computed = run(schedule.mod, packed, optimized=True)
    np.testing.assert_allclose(computed, run(mod, arrays), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("mcpu", ["x86-64", "x86-64-v3", "x86-64-v4"])
def test_constant_weights_are_packed_for_the_tile(mcpu: str) -> None:
    """The function's parameter changes its shape as described by the packing."""
    target = parse_target(json.dumps({"kind": "llvm", "mcpu": mcpu, "num-cores": 2}))
    mod = function_of([(64, 64), (64, 128)], matmul, constants=[1])

    schedule = static_schedule(mod, target)

    assert schedule is not None
    [packing] = packings_of(schedule, mod)
    facts = processor_facts(target)
    assert facts is not None
    assert packing.argument == 1
    assert packing.axis == 1
    assert packing.size % facts.lanes == 0
    assert tuple(map(int, schedule.mod["main"].params[1].shape)) == (128 // packing.size, 64, packing.size)


@pytest.mark.parametrize("columns", [24, 40, 136])
def test_columns_that_are_no_whole_vectors_are_one_tile_with_a_short_last_one(columns: int) -> None:
    """With 16 lanes, two vectors and a half are three: those of 8 would be five, each as dear."""
    mod = function_of([(1, 14, 14, 32), (1, 1, 32, columns), (1, 1, 1, columns)], conv(), constants=[1])

    schedule = static_schedule(mod, parse_target(json.dumps({"kind": "llvm", "mcpu": "x86-64-v4"})))

    assert schedule is not None
    [packing] = packings_of(schedule, mod)
    assert columns == packing.size
    lanes = [schedule.get(schedule.get_loops(block)[-1]) for block in child_blocks(schedule)]
    assert {16} == {int(loop.extent) for loop in lanes}


def test_weights_that_are_no_constants_stay_as_they_are() -> None:
    """Only the function itself could pack them."""
    mod = function_of([(64, 64), (64, 128)], matmul)

    schedule = static_schedule(mod, HOST)

    assert schedule is not None
    assert packings_of(schedule, mod) == ()


def test_a_space_holds_other_tiles_and_packings() -> None:
    """They come in the order worth trying; all are different programs."""
    import tvm_ffi

    mod = function_of(*CASES["conv 3x3"])
    found = [schedule for schedule, _ in zip(schedules(mod, HOST), range(8), strict=False)]

    assert len({int(tvm_ffi.structural_hash(schedule.mod)) for schedule in found}) == 8
    assert len({packings_of(schedule, mod) for schedule in found}) > 1


@pytest.mark.parametrize(
    ("case", "tile"),
    [
        ("conv 3x3", Tile(y=2, x=3, vectors=2, lanes=8, order=Order.COLUMNS, depth=16)),
        ("matrix product", Tile(y=1, x=5, vectors=1, lanes=8, order=Order.COLUMNS, depth=16)),
    ],
)
def test_all_rows_may_pass_a_part_of_the_weights(case: str, tile: Tile) -> None:
    """The sums wait in memory, also where the last tile of a row is smaller."""
    from tvm import s_tir

    shapes, compute, constants = CASES[case]
    mod = function_of(shapes, compute, constants)
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal([int(n) for n in param.shape]).astype("float32") for param in mod["main"].params]
    schedule = s_tir.Schedule(mod)
    products = {block: find_product(schedule.get(block)) for block in child_blocks(schedule)}
    [(block, product)] = [(block, product) for block, product in products.items() if product is not None]

    schedule_product(schedule, block, product, tile, packs=True)

    packed = pack_all(arrays, packings_of(schedule, mod))
    np.testing.assert_allclose(run(schedule.mod, packed), run(mod, arrays), rtol=1e-4, atol=1e-4)


def softmax(data: Any) -> Any:
    from tvm import topi

    return topi.nn.softmax(data)


@pytest.mark.parametrize(("shapes", "compute"), [([(4, 64)], softmax), (CASES["conv 3x3"][0], conv(pad=1))])
def test_a_kept_schedule_means_the_program_that_was_measured(
    shapes: list[tuple[int, ...]], compute: Callable[..., Any]
) -> None:
    """Replayed from a library, in another process, it gives the same code, vector functions included."""
    import tvm_ffi

    mod = function_of(shapes, compute)
    schedule = static_schedule(mod, HOST)

    assert schedule is not None
    replayed = replay(mod, trace_json(schedule))
    first, second = (finished(one.mod, HOST) for one in (schedule, replayed))
    assert tvm_ffi.structural_equal(first, second)
    assert "T.exp(" not in second.script()


def test_shared_steps_leave_schedules_unchanged() -> None:
    """Each step of a schedule is the same, whether it is made alone or after others."""
    from tvm.s_tir import Schedule

    mod, facts = function_of(*CASES["conv 3x3"]), processor_facts(HOST)
    assert facts is not None
    found = list(itertools.islice(schedules(mod, HOST), 8))

    fresh = Schedule(mod)
    products = {fresh.get(block).name_hint: find_product(fresh.get(block)) for block in child_blocks(fresh)}
    ((name, product),) = ((name, product) for name, product in products.items() if product is not None)

    def alone(tile: Tile) -> str:
        schedule = Schedule(mod)
        inline_all(schedule, frozenset([name]))
        block = next(block for block in child_blocks(schedule) if schedule.get(block).name_hint == name)
        schedule_product(schedule, block, product, tile, packs=True)
        return trace_json(schedule_rest(schedule, facts))

    some = tiles(product, facts)[:8]
    assert len({replace(tile, unroll=1) for tile in some}) < len(some)
    assert [alone(tile) for tile in some] == [trace_json(schedule) for schedule in found]


def test_gpus_have_no_static_schedule_here() -> None:
    """TVM's rules serve them."""
    assert (
        static_schedule(
            function_of(*CASES["matrix product"]), parse_target(json.dumps({"kind": "cuda", "arch": "sm_86"}))
        )
        is None
    )


def test_a_packed_array_has_its_blocks_first() -> None:
    """[2, 6] in blocks of 3 along axis 1 is [2 blocks, 2, 3]."""
    array = np.arange(12).reshape(2, 6)

    packed = Packing(argument=0, axis=1, size=3).pack(array)

    assert packed.tolist() == [[[0, 1, 2], [6, 7, 8]], [[3, 4, 5], [9, 10, 11]]]
