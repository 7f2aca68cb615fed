"""Fits schedules of other workloads to this one: what was best for a neighbour is a better start than a random one.

A trace without decisions, such as those of our own spaces, is replayed as it is. In one of MetaSchedule's the decisions
are made anew: each tile is the largest divisor of its new loop that is no larger than the neighbour's, and what follows
from the shapes (vectors, unrolling) is left to the target's post-processing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cross.targets.target import make_target
from fleet.errors import InvalidRequest
from fleet.optimizer.tasks.evolution import has_decisions
from fleet.spaces.blocks import child_blocks
from fleet.workloads.traces import replay
from fleet.workloads.workload import module_of

if TYPE_CHECKING:
    from tvm.ir import IRModule
    from tvm.s_tir import Schedule
    from tvm.s_tir.schedule import Instruction, LoopRV, Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class Seed:
    """A schedule that was good for another workload, or for this one on another device."""

    mod_json: str
    """What it was made for."""

    trace_json: str


def adapted(mod_json: str, target_json: str, seeds: Sequence[Seed]) -> Iterator[Schedule]:
    """Yield the schedules that fit this workload, in order; those that do not are left out."""
    for seed in seeds:
        try:
            if seed.mod_json == mod_json or not has_decisions(seed.trace_json):
                yield replay(module_of(mod_json), seed.trace_json)
            else:
                yield _fitted(mod_json, target_json, seed)
        except InvalidRequest:
            continue


def fitted_tiles(extent: int, tiles: Sequence[int]) -> list[int]:
    """Return tiles, outermost first, whose product is the extent of a loop, like those of another loop."""
    left, fitted = extent, []
    for tile in reversed(tiles[1:]):
        fitted.append(max(size for size in range(1, min(left, max(1, tile)) + 1) if left % size == 0))
        left //= fitted[-1]
    return [left, *reversed(fitted)]


def _fitted(mod_json: str, target_json: str, seed: Seed) -> Schedule:
    """Return the schedule with its tiles made anew.

    Raises:
        InvalidRequest: it does not fit.
    """
    from tvm.s_tir import Schedule
    from tvm.s_tir import meta_schedule as ms

    mod = module_of(mod_json)
    context = ms.TuneContext(mod, target=make_target(target_json), space_generator="post-order-apply", num_threads=1)
    schedule, recorded = Schedule(mod), _renamed(seed, mod)

    def decide(
        instruction: Instruction, inputs: Sequence[LoopRV], attributes: object, decision: Sequence[int] | None
    ) -> object:
        if instruction.kind.name != "SamplePerfectTile" or decision is None:
            return decision
        return fitted_tiles(int(schedule.get(inputs[0]).extent), [int(tile) for tile in decision])

    try:
        recorded.apply_to_schedule(schedule, True, decide)
        schedule.enter_postproc()
        is_valid = all(step.apply(schedule) for step in context.space_generator.postprocs)
    except Exception as error:
        raise InvalidRequest(f"the schedule does not fit: {str(error).strip()[-300:]}") from error
    if not is_valid:
        raise InvalidRequest("the schedule does not fit: the target's post-processing refuses it")
    return schedule


def _renamed(seed: Seed, mod: IRModule) -> Trace:
    """Return a trace with the names of another module's blocks, which may be numbered otherwise: "lv3_sum"."""
    from tvm.s_tir import Schedule
    from tvm.s_tir.schedule import Instruction, Trace

    origin = module_of(seed.mod_json)
    trace = replay(origin, seed.trace_json).trace
    ours, others = (
        [schedule.get(block).name_hint for block in child_blocks(schedule)]
        for schedule in (Schedule(mod), Schedule(origin))
    )
    if len(ours) != len(others):
        raise InvalidRequest("the schedule does not fit: it is for other blocks")
    names = dict(zip(others, ours, strict=True))
    steps, decisions = [], {}
    for step in trace.insts:
        attributes = step.attrs
        if step.kind.name == "GetSBlock":
            attributes = [names.get(str(attributes[0]), attributes[0]), *attributes[1:]]
        steps.append(Instruction(step.kind, step.inputs, attributes, step.outputs))
        if step in trace.decisions:
            decisions[steps[-1]] = trace.decisions[step]
    return Trace(steps, decisions)
