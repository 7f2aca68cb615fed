"""Times every call of the Relax VM by its instrument hook.

The VM calls an instrument right before and right after each of its calls, with the function's name and all that is
passed. Ours only notes the time, half a microsecond in all. Where work goes on behind the host's back, as on GPUs, it
waits for its end first, so that each call pays for its own; the model as a whole gets slower by that.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from device_agents.runtimes.contract import CandidateFailed
from fleet.domain.measuring import ErrorKind, OperatorCall, OperatorProfile

MOST_RUNS = 1000
"""Notes on every call stay in memory until the last run."""

Event: TypeAlias = tuple[str, bool, float]
"""Function, whether its call begins, and when [s]."""


def profile_calls(
    run: Callable[[], object],
    set_instrument: Callable[[Callable[..., None]], object],
    runs: int,
    *,
    synchronize: Callable[[], object] | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> OperatorProfile:
    """Run a function of a Relax VM repeatedly and time its calls. The VM keeps the instrument.

    Args:
        synchronize: waits for the device to finish its work; None if calls return when they are done.

    Raises:
        CandidateFailed: the function makes other calls each time, so that they cannot be matched.
    """
    events: list[Event] = []

    def note(*arguments: object) -> None:
        if synchronize is not None:
            synchronize()
        events.append((str(arguments[1]), bool(arguments[2]), clock()))

    set_instrument(note)
    secs_by_call: list[list[float]] = []
    functions: list[str] = []
    run_secs = []
    for _ in range(runs):
        events.clear()
        started = clock()
        run()
        if synchronize is not None:
            synchronize()
        run_secs.append(clock() - started)
        calls = own_secs(events)
        if secs_by_call and functions != [function for function, _ in calls]:
            raise CandidateFailed(ErrorKind.RUN_FAILED, "it calls other functions in each run; there is no one profile")
        functions = [function for function, _ in calls]
        secs_by_call = secs_by_call or [[] for _ in calls]
        for secs, (_, sec) in zip(secs_by_call, calls, strict=True):
            secs.append(sec)
    return OperatorProfile(
        calls=tuple(
            OperatorCall(function=function, min_sec=min(secs), median_sec=statistics.median(secs))
            for function, secs in zip(functions, secs_by_call, strict=True)
        ),
        run_secs=tuple(run_secs),
    )


def own_secs(events: Sequence[Event]) -> list[tuple[str, float]]:
    """Return each call's function and own time (without nested calls), in order of their starts."""
    calls: list[tuple[str, float]] = []
    under_way: list[_Call] = []
    for function, begins, at_sec in events:
        if begins:
            under_way.append(_Call(len(calls), at_sec))
            calls.append((function, 0.0))
            continue
        ended = under_way.pop()
        took_sec = at_sec - ended.began_sec
        calls[ended.index] = (function, took_sec - ended.within_sec)
        if under_way:
            under_way[-1].within_sec += took_sec
    return calls


@dataclass(slots=True)
class _Call:
    """A call that is running."""

    index: int
    began_sec: float
    within_sec: float = 0.0
    """Time of calls within it."""
