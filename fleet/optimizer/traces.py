"""Schedules as text: a trace is the JSON of the scheduling steps; replayed on its workload it gives the candidate."""

from __future__ import annotations

import json
from typing import Any

from fleet.errors import InvalidRequest


def trace_json(schedule: Any) -> str:
    """Return the steps of a schedule, post-processing included, in the form that MetaSchedule's databases store."""
    return json.dumps(schedule.trace.as_json(), default=_plain, separators=(",", ":"))


def replay(mod: Any, trace: str) -> Any:
    """Return the schedule that a trace makes of a module.

    Raises:
        InvalidRequest: the trace does not fit the module.
    """
    from tvm.s_tir import Schedule
    from tvm.s_tir.schedule import Trace

    schedule = Schedule(mod)
    try:
        Trace.apply_json_to_schedule(json.loads(trace), schedule)
    except Exception as error:
        raise InvalidRequest(f"the trace does not fit its workload: {str(error).strip()[-300:]}") from error
    return schedule


def _plain(value: Any) -> Any:
    """Turn TVM's boxed numbers into plain ones."""
    return value.value
