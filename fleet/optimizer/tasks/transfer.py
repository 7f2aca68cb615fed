"""Adapts schedules of other workloads to this one: a neighbour's best is a better start than a random one.

A schedule of one of our spaces is a choice of knobs: of this workload's own space, the choice most like it is taken. In
one of MetaSchedule's the decisions are made anew: inner tiles stay, or become the nearest divisors, the outermost takes
the rest, and consequences of the shapes (vectors, unrolling) are left to the target's post-processing. Anything else
is replayed as it is.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from cross.targets.target import Target, make_target
from fleet.domain.observation import Observation
from fleet.domain.origin import Origin, Source
from fleet.domain.program_check import check_program
from fleet.errors import InvalidRequest
from fleet.optimizer.core.candidates import Candidate
from fleet.optimizer.tasks.search_state import SearchState
from fleet.spaces.blocks import child_blocks
from fleet.spaces.design_space import choice_text
from fleet.spaces.likeness import choice_of, nearest
from fleet.spaces.space import space_of
from fleet.workloads.traces import replay
from fleet.workloads.workload import module_of

if TYPE_CHECKING:
    from tvm.ir import IRModule
    from tvm.s_tir import Schedule
    from tvm.s_tir.schedule import Instruction, LoopRV, Trace

_MOST_GROWN = 2
"""Limit on the growth of a tile: a larger one may not fit the registers."""


class Misfit(enum.StrEnum):
    """Why a schedule is not tried on this workload."""

    BROKEN = "broken"
    """It does not fit its own origin, or its program or trace is not on the allowlist."""

    OTHER_BLOCKS = "other blocks"
    """It is for a function of other blocks."""

    REFUSED = "refused"
    """TVM refuses a step of it here."""


def adapted(
    state: SearchState, seeds: Sequence[Observation], left_out: Counter[Misfit] | None = None
) -> Iterator[Candidate]:
    """Yield the adapted schedules that fit this workload, in order.

    Args:
        left_out: counts those that do not fit.
    """
    for seed in seeds:
        found = _adapt(state, seed)
        if not isinstance(found, Misfit):
            yield found
        elif left_out is not None:
            left_out[found] += 1


def fitted_tiles(extent: int, tiles: Sequence[int], most_innermost: int | None = None) -> list[int]:
    """Return tiles, outermost first, whose product is a loop's extent, similar to those of another loop.

    Args:
        most_innermost: limit of the last; None: none.
    """
    left, fitted, most = extent, [], most_innermost or extent
    for tile in reversed(tiles[1:]):
        fitted.append(_nearest_divisor(left, max(1, tile), most))
        left, most = left // fitted[-1], extent
    return [left, *reversed(fitted)]


def _nearest_divisor(number: int, wanted: int, most: int) -> int:
    """Return the divisor closest in ratio to the wanted value, the smaller one of two."""
    divisors = [size for size in range(1, min(number, most, _MOST_GROWN * wanted - 1) + 1) if number % size == 0]
    return min(divisors, key=lambda size: max(size / wanted, wanted / size))


def _adapt(state: SearchState, seed: Observation) -> Candidate | Misfit:
    trace = seed.trace_json
    known = seed.origin or Origin.of_trace(trace)
    try:
        if seed.mod_json != state.mod_json:
            check_program(seed.mod_json)
        mod, origin = module_of(state.mod_json), module_of(seed.mod_json)
        made = replay(origin, trace)
    except InvalidRequest:
        return Misfit.BROKEN
    if seed.mod_json == state.mod_json:
        return state.make(made, replace(known, is_adapted=True))
    found = None if known.is_of_rules else _most_like(state, origin, made, known.knobs)
    if found is not None:
        return found
    recorded = _renamed(made, origin, mod)
    if recorded is None:
        return Misfit.OTHER_BLOCKS
    try:
        source = Source.RULES if known.is_of_rules else Source.STEPS
        return state.make(_fitted(mod, state.target, recorded), Origin(source=source, is_adapted=True))
    except InvalidRequest:
        return Misfit.REFUSED


def _most_like(state: SearchState, origin: IRModule, made: Schedule, knobs: str) -> Candidate | None:
    """Return the candidate of this workload's space with knobs most like another's, or None without knobs."""
    there, here = (space_of(mod, state.target) for mod in (origin, module_of(state.mod_json)))
    if there is None or here is None:
        return None
    chosen = choice_of(there, made, knobs)
    place = None if chosen is None else nearest(chosen, here.choices)
    if place is None:
        return None
    kept = Origin(source=Source.SPACE, knobs=choice_text(here.choices[place]), is_adapted=True)
    return state.make(next(here.schedules_at([place])), kept)


def _fitted(mod: IRModule, target: Target, recorded: Trace) -> Schedule:
    """Return a schedule with the tiles of a trace adapted if it has decisions, else with its steps unchanged.

    Raises:
        InvalidRequest: TVM refuses a step of it here.
    """
    from tvm.s_tir import Schedule
    from tvm.s_tir import meta_schedule as ms

    schedule = Schedule(mod)

    def decide(
        instruction: Instruction, inputs: Sequence[LoopRV], attributes: Sequence[int], decision: Sequence[int] | None
    ) -> object:
        if instruction.kind.name != "SamplePerfectTile" or decision is None:
            return decision
        _, most_innermost = attributes
        extent = int(schedule.get(inputs[0]).extent)
        return fitted_tiles(extent, [int(tile) for tile in decision], int(most_innermost))

    try:
        recorded.apply_to_schedule(schedule, True, decide)
        if not recorded.decisions:
            return schedule
        context = ms.TuneContext(mod, target=make_target(target), space_generator="post-order-apply", num_threads=1)
        schedule.enter_postproc()
        is_valid = all(step.apply(schedule) for step in context.space_generator.postprocs)
    except Exception as error:  # TVM's schedule steps raise many classes
        raise InvalidRequest(f"the schedule does not fit: {str(error).strip()[-300:]}") from error
    if not is_valid:
        raise InvalidRequest("the schedule does not fit: the target's post-processing refuses it")
    return schedule


def _renamed(made: Schedule, origin: IRModule, mod: IRModule) -> Trace | None:
    """Return a trace with the block names of another module, which may be numbered differently: "lv3_sum".

    None: the other module has more blocks, or fewer.
    """
    from tvm.s_tir import Schedule
    from tvm.s_tir.schedule import Instruction, Trace

    ours, others = (
        [schedule.get(block).name_hint for block in child_blocks(schedule)]
        for schedule in (Schedule(mod), Schedule(origin))
    )
    if len(ours) != len(others):
        return None
    names = dict(zip(others, ours, strict=True))
    steps, decisions = [], {}
    for step in made.trace.insts:
        attributes = step.attrs
        if step.kind.name == "GetSBlock":
            attributes = [names.get(str(attributes[0]), attributes[0]), *attributes[1:]]
        steps.append(Instruction(step.kind, step.inputs, attributes, step.outputs))
        if step in made.trace.decisions:
            decisions[steps[-1]] = made.trace.decisions[step]
    return Trace(steps, decisions)
