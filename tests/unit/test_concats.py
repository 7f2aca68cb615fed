"""Concats with operands written in place: the same numbers, and no copies."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np
import pytest

from cross.targets.target import parse_target
from fleet.graph.concats import CopyReason, concat_starts, is_fused_concat
from fleet.graph.pipeline import lower
from fleet.workloads.applying import apply_schedules
from fleet.workloads.concats import join_concats, skipped_programs
from fleet.workloads.slices import SLICE, Slice, is_indexed, on_slices, program_of, start_arguments
from tests.unit.graph_models import TARGET, function_of, operators, random_array, run

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tvm.ir import IRModule
    from tvm.relax import Expr
    from tvm.tirx import PrimFunc

    from fleet.workloads.concats import Joined
    from tests.unit.graph_models import Emit

CUDA = parse_target('{"kind": "cuda", "arch": "sm_86"}')


def program(shapes: Sequence[tuple[int, ...]], compute: Callable[..., object]) -> PrimFunc:
    """Return a tensor program that applies `compute` to tensors of these shapes."""
    from tvm import te

    given = [te.placeholder(shape, name=f"x{index}") for index, shape in enumerate(shapes)]
    return te.create_prim_func([*given, compute(*given)])


def concat_program(*shapes: tuple[int, ...], axis: int) -> PrimFunc:
    from tvm import topi

    return program(shapes, lambda *given: topi.concatenate(given, axis))


def scheduled(shapes: Sequence[tuple[int, ...]], body: Callable[..., Expr]) -> IRModule:
    """Return a graph with schedules, in which concats copy."""
    return apply_schedules(lower(function_of(list(shapes), body), TARGET), TARGET, {}).mod


def unfused(shapes: Sequence[tuple[int, ...]], body: Callable[..., Expr]) -> IRModule:
    """Return a graph with schedules in which each operator is a program of its own."""
    from tvm import relax

    return apply_schedules(relax.transform.LegalizeOps()(function_of(list(shapes), body)), TARGET, {}).mod


def conv(x: Expr, emit: Emit, channels: int, seed: int = 1) -> Expr:
    """Return a 1x1 convolution and an activation, which become one program."""
    from tvm import relax

    weights = relax.const(random_array(channels, int(x.ty.shape[1]), 1, 1, seed=seed))
    return emit(relax.op.nn.relu(emit(relax.op.nn.conv2d(x, weights))))


def check_same(copying: IRModule, joined: Joined, *shapes: tuple[int, ...]) -> None:
    """Check that both compute the same, to the last bit."""
    inputs = [random_array(*shape, seed=index) for index, shape in enumerate(shapes)]
    np.testing.assert_array_equal(run(copying, *inputs), run(joined.mod, *inputs))


@pytest.mark.slow
def test_a_concat_is_recognised_by_its_loops() -> None:
    """Concats along any axis, of any number of tensors, are recognised by their loops, not by their names."""
    assert concat_starts(concat_program((1, 3, 4), (1, 3, 5), axis=2)) == ((0, 0, 0), (0, 0, 4))
    assert concat_starts(concat_program((2, 3), (4, 3), (1, 3), axis=0)) == ((0, 0), (2, 0), (6, 0))


@pytest.mark.slow
def test_similar_operators_are_not_concats() -> None:
    """A following sum, a partial, mirrored or repeated operand, and a copy are no concats."""
    from tvm import te, topi

    def half(x: te.Tensor, y: te.Tensor) -> te.Tensor:
        return te.compute((8,), lambda i: te.if_then_else(4 <= i, y[i - 4], x[i]))

    def mirrored(x: te.Tensor, y: te.Tensor) -> te.Tensor:
        return te.compute((8,), lambda i: te.if_then_else(4 <= i, y[i - 4], x[3 - i]))

    def once(x: te.Tensor, y: te.Tensor) -> te.Tensor:
        return te.compute((8,), lambda i: te.if_then_else(4 <= i, y[i - 4] + 1.0, x[i]))

    assert concat_starts(program([(4,), (4,)], half)) == ((0,), (4,))
    assert concat_starts(program([(5,), (4,)], half)) is None
    assert concat_starts(program([(4,), (4,)], mirrored)) is None
    assert concat_starts(program([(4,), (4,)], once)) is None
    assert concat_starts(program([(4,)], lambda x: topi.concatenate([x, x], 0))) is None
    assert concat_starts(program([(4,)], topi.nn.relu)) is None


@pytest.mark.slow
def test_a_program_works_on_slices_of_larger_tensors() -> None:
    """A slice's start is an argument, except at 0; nothing beside the slice is touched."""
    import tvm
    from tvm import topi

    own = program([(2, 3)], topi.nn.relu)
    slices = {0: Slice((2, 5), (0, 2)), 1: Slice((4, 3), (1, 0))}
    moved = on_slices(own, slices)
    built = tvm.compile(moved)
    x, y = random_array(2, 5), np.full((4, 3), 7, np.float32)
    result = tvm.runtime.tensor(y)

    built(tvm.runtime.tensor(x), *[int(start.value) for start in start_arguments(own, slices)], result)

    expected = y.copy()
    expected[1:3] = np.maximum(x[:, 2:], 0)
    np.testing.assert_array_equal(expected, result.numpy())


@pytest.mark.slow
def test_a_program_with_a_pointer_to_a_parameter_keeps_it() -> None:
    """Indices can be moved; a foreign function's use of a pointer cannot."""
    from tvm import te, tirx

    x = te.placeholder((8,), name="x")
    outside = te.extern(
        (8,),
        [x],
        lambda inputs, outputs: tirx.call_packed("outside", inputs[0].access_ptr("r"), outputs[0].access_ptr("w")),
    )
    function = te.create_prim_func([x, outside])

    assert not is_indexed(function, 0)
    assert not is_indexed(function, 1)
    assert is_indexed(concat_program((4,), (4,), axis=0), 2)


@pytest.mark.slow
def test_a_program_with_a_view_of_a_parameter_keeps_it() -> None:
    """Intrinsics take several rows at once, which lie behind each other in a tensor, but not in a slice."""
    from tvm.script import tirx as T  # noqa: N812 - as all of TVM's scripts

    @T.prim_func(s_tir=True)
    def doubled(x: T.Buffer((8, 8), "float32"), y: T.Buffer((8, 8), "float32")) -> None:
        for i in range(2):
            with T.sblock("rows"):
                row = T.axis.spatial(2, i)
                T.reads(x[row * 4 : row * 4 + 4, 0:8])
                T.writes(y[row * 4 : row * 4 + 4, 0:8])
                part = T.match_buffer(x[row * 4 : row * 4 + 4, 0:8], (4, 8), offset_factor=1)
                for a, b in T.grid(4, 8):
                    y[row * 4 + a, b] = part[a, b] + part[a, b]

    assert not is_indexed(doubled, 0)
    assert is_indexed(doubled, 1)


@pytest.mark.slow
def test_producers_write_into_the_result_of_the_concat() -> None:
    """In a fire module, two convolutions of one tensor write side by side; the concat's program is gone."""
    from tvm import relax

    def fire(x: Expr, emit: Emit) -> Expr:
        squeezed = conv(x, emit, 8)
        both = emit(relax.op.concat([conv(squeezed, emit, 16, seed=2), conv(squeezed, emit, 24, seed=3)], 1))
        return conv(both, emit, 8, seed=4)

    copying = scheduled([(1, 8, 5, 6)], fire)
    joined = join_concats(copying, TARGET)

    assert (joined.in_place, joined.copied) == (1, ())
    assert operators(joined.mod)["call_tir"] == operators(copying)["call_tir"] - 2
    assert operators(joined.mod)["call_tir_inplace"] == 1
    assert not any("concat" in variable.name_hint for variable in joined.mod.functions)
    check_same(copying, joined, (1, 8, 5, 6))


def grown(x: Expr, emit: Emit) -> Expr:
    """A dense block: each layer reads all earlier results and adds its own."""
    from tvm import relax

    x = conv(x, emit, 16)
    for layer in range(3):
        normed = emit(relax.op.nn.relu(emit(relax.op.add(x, relax.const(np.float32(layer))))))
        x = emit(relax.op.concat([x, conv(normed, emit, 8, seed=layer)], 1))
    return conv(x, emit, 8, seed=9)


@pytest.mark.slow
def test_a_growing_concat_is_one_buffer() -> None:
    """Each layer writes its slice, and reads those before it; all slices have the same programs."""
    copying = scheduled([(1, 8, 5, 6)], grown)
    joined = join_concats(copying, TARGET)

    assert (joined.in_place, joined.copied) == (3, ())
    written = Counter(
        program_of(str(call.args[0].name_hint))
        for block in joined.mod["main"].body.blocks
        for call in (binding.value for binding in block.bindings)
        if "call_tir" in str(getattr(call, "op", "")) and call.ty.shape[-1] == 40
    )
    assert written.total() == 4, "the first convolution and that of each layer write into the largest of the tensors"
    check_same(copying, joined, (1, 8, 5, 6))


@pytest.mark.slow
def test_concats_along_different_axes_nest() -> None:
    """The starts of nested slices add up."""
    from tvm import relax

    def tiles(x: Expr, emit: Emit) -> Expr:
        halves = [emit(relax.op.nn.relu(x)), emit(relax.op.exp(x))]
        row = emit(relax.op.concat(halves, 1))
        both = emit(relax.op.concat([row, emit(relax.op.sqrt(row))], 0))
        return relax.op.negative(both)

    copying = unfused([(2, 3)], tiles)
    joined = join_concats(copying, TARGET)

    assert (joined.in_place, joined.copied) == (2, ())
    check_same(copying, joined, (2, 3))


@pytest.mark.slow
def test_unshareable_tensors_are_copied_and_marked() -> None:
    """A tensor in two concats, a result of the model and an input of it are copied; the rest is written in place."""
    from tvm import relax

    def mixed(x: Expr, emit: Emit) -> Expr:
        left, right, returned, other = (
            emit(op(x)) for op in (relax.op.nn.relu, relax.op.exp, relax.op.abs, relax.op.negative)
        )
        first = emit(relax.op.concat([left, right], 0))
        shared = emit(relax.op.concat([right, other], 0))
        result = emit(relax.op.concat([returned, first], 0))
        given = emit(relax.op.concat([x, shared], 0))
        return relax.op.add(emit(relax.op.add(result, given)), relax.op.concat([returned, returned, returned], 0))

    copying = unfused([(3, 2)], mixed)
    joined = join_concats(copying, TARGET)

    assert joined.in_place == 2
    assert joined.copied == (CopyReason.SHARED, CopyReason.NOT_COMPUTED, CopyReason.SHARED)
    check_same(copying, joined, (3, 2))


@pytest.mark.slow
def test_an_operand_that_the_model_returns_is_copied() -> None:
    """Its user gets a tensor of its own."""
    from tvm import relax

    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((2, 3), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            left = builder.emit_output(relax.op.exp(x))
            both = builder.emit_output(relax.op.concat([left, builder.emit(relax.op.abs(x))], 0))
        builder.emit_func_output(relax.Tuple([left, both]))
    lowered = relax.transform.LegalizeOps()(builder.finalize())

    joined = join_concats(apply_schedules(lowered, TARGET, {}).mod, TARGET)

    assert (joined.in_place, joined.copied) == (0, (CopyReason.RETURNED,))


@pytest.mark.slow
def test_eliminated_concats_are_known_before_scheduling() -> None:
    """Such programs are not tuned; one that is still called elsewhere, or runs on a GPU, is not among them."""
    from tvm import relax

    def twice(x: Expr, emit: Emit) -> Expr:
        first = emit(relax.op.concat([emit(relax.op.exp(x)), emit(relax.op.abs(x))], 1))
        second = emit(relax.op.concat([x, emit(relax.op.sqrt(x))], 1))
        rows = [emit(relax.op.nn.relu(first)), emit(relax.op.nn.relu(second))]
        return relax.op.negative(emit(relax.op.concat(rows, 0)))

    lowered = relax.transform.LegalizeOps()(function_of([(2, 3)], twice))

    assert skipped_programs(lowered, TARGET) == {"concatenate1"}
    assert skipped_programs(lowered, CUDA) == frozenset()


@pytest.mark.slow
def test_gpus_keep_their_copies() -> None:
    """Their programs were never run with slices."""
    joined = join_concats(scheduled([(1, 8, 5, 6)], grown), CUDA)

    assert (joined.in_place, joined.copied) == (0, (CopyReason.GPU,) * 3)


@pytest.mark.slow
def test_a_concat_fused_with_its_consumer_is_recognised() -> None:
    """It copies nothing that its program would not write anyway."""
    from tvm import topi

    fused = program([(4,), (4,)], lambda *given: topi.nn.relu(topi.concatenate(given, 0)))

    assert is_fused_concat(fused)
    assert concat_starts(fused) is None
    assert not is_fused_concat(concat_program((4,), (4,), axis=0))


def test_a_program_on_slices_names_its_workload() -> None:
    """Profiles count its time for the workload that was tuned."""
    assert program_of(f"fused_conv2d3_relu{SLICE}2") == "fused_conv2d3_relu"
    assert program_of("fused_conv2d3_relu") == "fused_conv2d3_relu"
