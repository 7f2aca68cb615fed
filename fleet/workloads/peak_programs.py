"""Programs that only compute or only read: their speed is the device's roofline.

Both reduce into accumulators that stay in registers, ten vectors of them, so that the latency of one step hides behind
the others: two units with a latency of four or five cycles. How wide a vector may be is found by trying.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cross.targets.target import Target
from fleet.domain.measuring import TensorSpec
from fleet.workloads.default_schedule import default_schedule, needs_schedule

if TYPE_CHECKING:
    from tvm.ir import IRModule
    from tvm.te import Tensor
    from tvm.tirx import Expr, Var

VECTOR_LANES = (4, 8, 16)
"""float32 lanes of 128, 256 and 512 bits. Too wide vectors spill, and are slower."""

_ACCUMULATORS = 10
_STEPS = 2_000
_CPU_TASKS, _GPU_TASKS = 240, 4_096
"""Parallel pieces of arithmetic: most numbers of cores divide the one, the other fills a GPU."""

_CPU_READ_TASKS, _GPU_READ_TASKS = 24, 4_096
"""Parallel pieces to read. On a processor few, so that each is long also where all of it fits a cache. On a GPU enough
threads for all its multiprocessors: with 1,024 pieces, a third of what an H100 holds, it read two thirds as fast as a
copy moves data there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeakProgram:
    """A program, its arguments, and its amount of work in a run."""

    args: tuple[TensorSpec, ...]
    flop: float = 0.0
    read_bytes: int = 0


def arithmetic(target: Target, lanes: int) -> tuple[IRModule, PeakProgram]:
    """Return a program of multiply-adds on vectors of `lanes` numbers."""
    from tvm import te, tirx

    tasks = _GPU_TASKS if needs_schedule(target) else _CPU_TASKS
    shape = (tasks, _ACCUMULATORS, lanes)

    def chain(accumulator: Expr, value: Expr) -> Expr:
        return accumulator * value + value

    multiply_add = te.comm_reducer(chain, lambda dtype: tirx.const(0, dtype))
    given = te.placeholder((lanes,), name="x", dtype="float32")
    step = te.reduce_axis((0, _STEPS), name="step")
    result = te.compute(shape, lambda task, a, lane: multiply_add(given[lane], axis=step), name="y")
    args = (TensorSpec((lanes,), "float32"), TensorSpec(shape, "float32", is_output=True))
    return _scheduled(given, result, target), PeakProgram(args=args, flop=2.0 * _STEPS * math.prod(shape))


def reading(target: Target, size_bytes: int) -> tuple[IRModule, PeakProgram]:
    """Return a program that reads about this many bytes and sums them."""
    from tvm import te

    is_gpu = needs_schedule(target)
    tasks, lanes = _GPU_READ_TASKS if is_gpu else _CPU_READ_TASKS, VECTOR_LANES[1]
    rows = max(1, size_bytes // (4 * tasks * _ACCUMULATORS * lanes))
    # Threads of a GPU read neighbouring addresses; each core reads its own contiguous range.
    shape = (rows, tasks, _ACCUMULATORS, lanes) if is_gpu else (tasks, rows, _ACCUMULATORS, lanes)
    given = te.placeholder(shape, name="x", dtype="float32")
    row = te.reduce_axis((0, rows), name="row")

    def total(task: Var, a: Var, lane: Var) -> Expr:
        return te.sum(given[row, task, a, lane] if is_gpu else given[task, row, a, lane], axis=row)

    result = te.compute((tasks, _ACCUMULATORS, lanes), total, name="y")
    args = (TensorSpec(shape, "float32"), TensorSpec((tasks, _ACCUMULATORS, lanes), "float32", is_output=True))
    return _scheduled(given, result, target), PeakProgram(args=args, read_bytes=4 * math.prod(shape))


def _scheduled(given: Tensor, result: Tensor, target: Target) -> IRModule:
    """Return the program with its accumulators in registers, one task per thread at a time."""
    import tvm
    from tvm import te

    mod = tvm.IRModule({"main": te.create_prim_func([given, result]).with_attr("global_symbol", "main")})
    if needs_schedule(target):
        return default_schedule(mod, target)
    from tvm.s_tir import Schedule

    schedule = Schedule(mod)
    block = schedule.get_sblock("y")
    task, accumulator, lane, step = schedule.get_loops(block)
    schedule.reorder(task, step, accumulator, lane)
    schedule.parallel(task)
    written = schedule.cache_write(block, 0, "local")
    schedule.reverse_compute_at(written, task)
    schedule.unroll(accumulator)
    schedule.vectorize(lane)
    schedule.vectorize(schedule.get_loops(written)[-1])
    init = schedule.decompose_reduction(block, step)
    *_, accumulator, lane = schedule.get_loops(init)
    schedule.unroll(accumulator)
    schedule.vectorize(lane)
    return schedule.mod
