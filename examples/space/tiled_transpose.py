"""Transposes of matrices, a square at a time: its reads and its writes stay in the nearest memory."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tvm.ir import IRModule, TensorLoad
from tvm.s_tir import Schedule

from fleet.spaces.design_space import Facts, Space
from fleet.spaces.facts import GpuFacts


@dataclass(frozen=True)
class Square:
    """The only knob."""

    side: int


class TransposeRule:
    """For processors and GPUs."""

    def space(self, mod: IRModule, facts: Facts) -> Space | None:
        rows_and_columns = shape_of_transpose(mod)
        if rows_and_columns is None:
            return None
        most = facts.threads_per_block or 256 if isinstance(facts, GpuFacts) else facts.l1_bytes // 8
        choices = [
            Square(side) for side in (16, 32, 8, 4, 1) if math.gcd(*rows_and_columns) % side == 0 and side**2 <= most
        ]

        def schedules_at(places: Sequence[int]) -> Iterator[Schedule]:
            for place in places:
                yield tiled(mod, choices[place], is_gpu=isinstance(facts, GpuFacts))

        return Space(rule="transpose", choices=tuple(choices), schedules_at=schedules_at)


def shape_of_transpose(mod: IRModule) -> tuple[int, int] | None:
    """Return the sizes of a function that only computes out[i, j] = in[j, i]; None for any other."""
    schedule = Schedule(mod)
    blocks = [schedule.get(block) for block in schedule.get_child_blocks(schedule.get_sblock("root"))]
    if len(blocks) != 1 or len(blocks[0].iter_vars) != 2:
        return None
    value = getattr(blocks[0].body, "value", None)
    i, j = (iterator.var for iterator in blocks[0].iter_vars)
    if not isinstance(value, TensorLoad) or len(value.indices) != 2:
        return None
    if not (value.indices[0].same_as(j) and value.indices[1].same_as(i)):
        return None
    rows, columns = (int(iterator.dom.extent) for iterator in blocks[0].iter_vars)
    return rows, columns


def tiled(mod: IRModule, choice: Square, *, is_gpu: bool) -> Schedule:
    """Return the transpose in squares: one to a block of threads, or a part of them to each core."""
    schedule = Schedule(mod)
    [block] = schedule.get_child_blocks(schedule.get_sblock("root"))
    i, j = schedule.get_loops(block)
    i_outer, i_inner = schedule.split(i, [None, choice.side])
    j_outer, j_inner = schedule.split(j, [None, choice.side])
    schedule.reorder(i_outer, j_outer, i_inner, j_inner)
    squares = schedule.fuse(i_outer, j_outer)
    if is_gpu:
        schedule.bind(squares, "blockIdx.x")
        schedule.bind(schedule.fuse(i_inner, j_inner), "threadIdx.x")
    else:
        schedule.parallel(squares)
        schedule.vectorize(j_inner)
    return schedule
