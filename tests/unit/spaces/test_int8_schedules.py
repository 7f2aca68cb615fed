"""Products of 8-bit integers: exact for all shapes, by the processor's own instruction."""

from __future__ import annotations

import itertools
import json
from typing import Any

import numpy as np
import pytest

from cross.targets.integer_units import IntegerUnit, integer_unit
from cross.targets.intrinsics import load_intrinsics
from cross.targets.target import Target, host_target, parse_target
from fleet.graph.marking import ATTRIBUTE as CONSTANTS
from fleet.spaces.packing import Packing, pack_all, packings_of
from fleet.spaces.space import finished, schedules, static_schedule
from fleet.workloads.traces import replay, trace_json

HOST = host_target()
AVX2 = parse_target(json.dumps({"kind": "llvm", "mcpu": "x86-64-v3", "num-cores": 2}))


def conv(unit: IntegerUnit, size: int, channels: int, columns: int) -> Any:
    """Return a 3x3 convolution of integers, sums shifted and scaled to codes again, as one function."""
    import tvm
    from tvm import te, topi

    data = te.placeholder((1, size, size, channels), unit.data_operand, name="data")
    weights = te.placeholder((3, 3, channels, columns), unit.weights, name="weights")
    scale = te.placeholder((1, 1, 1, columns), "float32", name="scale")
    sums = topi.nn.conv(data, weights, 1, 1, 1, 1, "NHWC", "HWIO", "int32")
    codes = topi.cast(topi.clip(topi.round(topi.cast(sums, "float32") * scale), -128, 127), "int8")
    return tvm.IRModule({"main": te.create_prim_func([data, weights, scale, codes]).with_attr(CONSTANTS, [1, 2])})


def operands(unit: IntegerUnit, size: int, channels: int, columns: int) -> list[np.ndarray[Any, Any]]:
    """Return the function's inputs, among them the largest numbers, and its result."""
    rng, limits = np.random.default_rng(0), np.iinfo(unit.data)
    data = rng.choice([limits.min, limits.max, 1, 77], (1, size, size, channels)).astype(unit.data_operand)
    weights = rng.choice([-128, 127, 5, -60], (3, 3, channels, columns)).astype(unit.weights)
    padded = np.pad(data.astype("int64"), ((0, 0), (1, 1), (1, 1), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(1, 2))
    sums = np.einsum("nyxcij,ijck->nyxk", windows, weights.astype("int64"))
    scale = np.full((1, 1, 1, columns), 2.0**-12, "float32")
    return [data, weights, scale, np.clip(np.rint(sums * 2.0**-12), -128, 127).astype("int8")]


def assembly(mod: Any, target: Target) -> str:
    import tvm

    built = tvm.compile(finished(mod, target), target=tvm.target.Target(dict(target.options)))
    return str(built.mod.inspect_source("asm"))


@pytest.mark.slow
@pytest.mark.parametrize("target", [HOST, AVX2], ids=["host", "avx2"])
@pytest.mark.parametrize(("size", "channels", "columns"), [(7, 8, 32), (13, 12, 24)])
def test_sums_are_exact(target: Target, size: int, channels: int, columns: int) -> None:
    """No partial sum saturates, as those of `vpmaddubsw` do; the schedule read back from its trace is the same."""
    import tvm

    load_intrinsics(target)
    unit = integer_unit(target)
    if unit is None:
        pytest.skip("no such instruction")
    mod, [*arguments, expected] = conv(unit, size, channels, columns), operands(unit, size, channels, columns)

    schedule = static_schedule(mod, target)

    assert schedule is not None
    again = replay(mod, trace_json(schedule))
    tvm.ir.assert_structural_equal(again.mod, schedule.mod)
    tensors = [tvm.runtime.tensor(a) for a in pack_all(arguments, packings_of(schedule, mod))]
    result = tvm.runtime.tensor(np.zeros_like(expected))
    tvm.compile(schedule.mod, target=tvm.target.Target(dict(target.options)))["main"](*tensors, result)
    np.testing.assert_array_equal(result.numpy(), expected)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "instruction"),
    [
        ({"mcpu": "x86-64-v4", "mattr": ["+avx512vnni"]}, "vpdpbusd\t%zmm"),
        ({"mcpu": "x86-64-v3", "mattr": ["+avxvnni"]}, "vpdpbusd\t%ymm"),
        ({"mcpu": "x86-64-v4"}, "vpmaddwd\t%zmm"),
        ({"mcpu": "x86-64-v3"}, "vpmaddwd\t%ymm"),
        ({"mcpu": "cortex-a76", "mtriple": "aarch64-linux-gnu"}, "sdot\t"),
    ],
)
def test_the_code_has_the_instruction(options: dict[str, object], instruction: str) -> None:
    """The instruction depends on the target alone, not on the compiling machine."""
    target = parse_target(json.dumps({"kind": "llvm", "mtriple": "x86_64-linux-gnu", "num-cores": 2} | options))
    load_intrinsics(target)
    unit = integer_unit(target)
    assert unit is not None

    schedule = static_schedule(conv(unit, 8, 8, 32), target)

    assert schedule is not None
    assert instruction in assembly(schedule.mod, target)


@pytest.mark.slow
def test_a_space_of_integers_holds_tiles_to_try() -> None:
    """The first ones differ, and all of them use the instruction."""
    load_intrinsics(AVX2)
    unit = integer_unit(AVX2)
    assert unit is not None

    found = [trace_json(schedule) for schedule in itertools.islice(schedules(conv(unit, 8, 8, 32), AVX2), 8)]

    assert 8 == len(set(found))
    assert all(unit.name in trace for trace in found)


def test_weights_are_packed_in_groups() -> None:
    """A vector of weights holds a group of the sum for each column."""
    array = np.arange(2 * 8 * 6).reshape(2, 8, 6)

    packing = Packing(argument=0, axis=2, size=3, group_axis=1, group=4)

    packed = packing.pack(array)
    assert (2, 2, 2, 3, 4) == packed.shape == packing.shape(array.shape)
    assert array[1, 4 + 2, 3 + 1] == packed[1, 1, 1, 1, 2]
