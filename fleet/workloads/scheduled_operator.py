"""Builds one operator of a model as a separate program: scheduled as in the model, with its weights packed."""

from __future__ import annotations

from dataclasses import dataclass

from tvm.ir import IRModule

from cross.targets.target import Target
from fleet.domain.keys import NO_TRACE
from fleet.domain.measuring import TensorSpec
from fleet.spaces.packing import pack_specs, packings_of
from fleet.spaces.space import finished, static_schedule
from fleet.workloads.default_schedule import default_schedule, needs_schedule
from fleet.workloads.loop_nests import blocks_left
from fleet.workloads.traces import replay
from fleet.workloads.workload import argument_specs


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledOperator:
    """A scheduled operator."""

    mod: IRModule
    args: tuple[TensorSpec, ...]
    """Arguments in the schedule's layout: weights packed if it expects that."""

    loop_nests: tuple[str, ...] = ()
    """Parts without a schedule, on processors."""


def schedule_operator(original: IRModule, target: Target, trace_json: str | None) -> ScheduledOperator:
    """Schedule an operator with a trace; with None its static schedule, with NO_TRACE the default one.

    Raises:
        InvalidRequest: the trace does not fit it.
    """
    args = argument_specs(original)
    if trace_json is None:
        schedule = static_schedule(original, target)
    else:
        schedule = replay(original, trace_json) if trace_json != NO_TRACE else None
    is_wanted = trace_json != NO_TRACE and not needs_schedule(target)
    loop_nests = tuple(blocks_left("main", schedule)) if is_wanted else ()
    if schedule is None:
        return ScheduledOperator(mod=default_schedule(original, target), args=args, loop_nests=loop_nests)
    return ScheduledOperator(
        mod=finished(schedule.mod, target),
        args=pack_specs(args, packings_of(schedule, original)),
        loop_nests=loop_nests,
    )
