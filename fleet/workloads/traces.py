"""Schedules as text: a trace is the JSON of scheduling steps; replaying it on its workload gives the candidate."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fleet.domain.trace_check import check_trace
from fleet.errors import InvalidRequest
from fleet.graph.block_names import block_names, name_in

if TYPE_CHECKING:
    from tvm.ir import IRModule
    from tvm.s_tir import Schedule
    from tvm.s_tir.meta_schedule.database import TuningRecord
    from tvm.s_tir.meta_schedule.database import Workload as MetaScheduleWorkload
    from tvm.tirx import FloatImm, IntImm


def trace_json(schedule: Schedule) -> str:
    """Return the steps of a schedule, post-processing included, in the form that MetaSchedule's databases store."""
    return json.dumps(schedule.trace.as_json(), default=_plain, separators=(",", ":"))


def replay(mod: IRModule, trace: str) -> Schedule:
    """Replay a trace on a module and return the schedule.

    Raises:
        InvalidRequest: the trace does not fit the module, or its steps or annotations are not on the allowlist.
    """
    from tvm.s_tir import Schedule
    from tvm.s_tir.schedule import Trace

    check_trace(trace)
    schedule = Schedule(mod)
    try:
        Trace.apply_json_to_schedule(_with_names_of(mod, json.loads(trace)), schedule)
    except Exception as error:  # TVM's schedule steps raise many classes
        raise InvalidRequest(f"the trace does not fit its workload: {str(error).strip()[-300:]}") from error
    return schedule


def _with_names_of(mod: IRModule, steps: list[Any]) -> list[Any]:
    """Return a trace as JSON with the module's block names: the same program may have had other names."""
    from tvm.tirx import PrimFunc

    names = [name for found in mod.functions.values() if isinstance(found, PrimFunc) for name in block_names(found)]
    for kind, _, attributes, _ in steps[0]:
        if kind == "GetSBlock":
            attributes[0] = name_in(attributes[0], names)
    return steps


def tuning_record(
    trace: str, run_secs: Sequence[float], target: object, workload: MetaScheduleWorkload
) -> TuningRecord:
    """Return a time in MetaSchedule's form, for its databases.

    Args:
        target: the target's JSON as an object, or None.

    Raises:
        InvalidRequest: its steps or annotations are not on the allowlist.
        Exception: whatever TVM raises for a trace that it cannot read.
    """
    from tvm.s_tir.meta_schedule.database import TuningRecord

    check_trace(trace)
    steps = _with_names_of(workload.mod, json.loads(trace))
    return TuningRecord.from_json([steps, list(run_secs), target, None], workload)


def _plain(value: IntImm | FloatImm) -> int | float:
    """Convert TVM's boxed numbers to plain ones."""
    number: int | float = value.value
    return number
