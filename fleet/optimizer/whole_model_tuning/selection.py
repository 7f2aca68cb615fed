"""Chooses among the best few schedules of each workload by their times in the model. Pure: times in, schedules out.

Alone, a kernel finds its weights in the caches and its neighbours gone; in the model it does not. So the best few by
their times alone run once more in their places: each of a few builds of the model holds another schedule of every
workload that matters, and each workload keeps the one that is fastest there.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from fleet.domain.measuring import OperatorCall
from fleet.domain.workload import Workload
from fleet.library import Record
from fleet.optimizer.profiling.profile import CALL_SEC, SLOWER_IN_PLACE
from fleet.workloads.slices import program_of

Lineup = Mapping[str, str]
"""Trace by workload hash, as `fleet.workloads.applying.apply_schedules` takes them."""

MOST_OPTIONS = 6
"""Schedules of a workload that run in the model beside the static one, if it is slower there than alone."""

_USUAL_OPTIONS = 3
"""The same limit for workloads that are not slower there."""

_REACH, _USUAL_REACH = 2.0, 1.3
"""Nothing that is slower alone than the best by this factor is tried."""

_LEAST_SHARE = 0.01
"""Share of the operators' time below which a workload is not worth a choice."""

_CLEARLY = 0.98
"""Another schedule than the fastest alone is taken only if it needs at most this share of its time in the model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """A workload with its schedules; the first is the one that the model has without a selection."""

    workload: Workload
    options: tuple[Record, ...]
    """Checked candidates, timed outside of the model with warm caches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """A workload with schedules that ran in place in the model."""

    selection: Selection
    in_place_secs: Mapping[str, tuple[float, ...]]
    """Mean time of its calls in one run [s], once per round, by trace; of those that ran."""

    chosen: Record

    def median_sec(self, option: Record) -> float:
        """Return the time of a schedule in place [s]; infinite if it did not run there."""
        return statistics.median(self.in_place_secs.get(option.trace_json, (math.inf,)))

    @property
    def is_slower_in_place(self) -> bool:
        """True if even the chosen schedule takes clearly longer in the model than alone."""
        return math.inf > self.median_sec(self.chosen) and is_slower(self.median_sec(self.chosen), self.chosen)


def is_slower(in_place_sec: float, option: Record) -> bool:
    """Tell whether a schedule takes clearly longer in the model than alone."""
    return in_place_sec > max(SLOWER_IN_PLACE * option.median_sec, option.median_sec + CALL_SEC)


def narrowed(selection: Selection, in_place_sec: float) -> Selection:
    """Return a selection with at most as many schedules as the workload is worth.

    Where the first takes clearly longer in the model than alone, its time alone says little about it, nor does that of
    the others: all of them run. Elsewhere only those do that are as good alone.

    Args:
        in_place_sec: of the first [s].
    """
    if is_slower(in_place_sec, selection.options[0]):
        return selection
    reach_sec = _USUAL_REACH * min(option.median_sec for option in selection.options)
    others = [option for option in selection.options[1:] if not option.is_static and option.median_sec <= reach_sec]
    static = [option for option in selection.options[1:] if option.is_static]
    kept = (selection.options[0], *others[: _USUAL_OPTIONS - 1], *static)
    return Selection(workload=selection.workload, options=kept)


def affordable(share_sec: float, compile_sec: float, measure_sec: float) -> int | None:
    """Return the number of further builds worth compiling, besides the decided and the static one.

    Args:
        share_sec: time limit of the whole comparison [s].
        compile_sec: cost of a build that is compiled beside others [s]. That of the winners is compiled alone, and
            costs about two.
        measure_sec: time of measuring one build [s].

    Returns:
        None if there is no time to compare even the existing builds.
    """
    left_sec = share_sec - 2 * compile_sec - 2 * measure_sec
    return int(left_sec / (compile_sec + measure_sec)) if left_sec >= 0 else None


def selection_of(workload: Workload, decided: str, records: Sequence[Record]) -> Selection | None:
    """Return the selection of a workload; None if the decided schedule has no record or nothing to compete with.

    Args:
        decided: the trace that the model has without a selection.
        records: checked candidates, the fastest alone first.
    """
    first = next((record for record in records if record.trace_json == decided), None)
    if first is None:
        return None
    reach_sec = _REACH * min(record.median_sec for record in records)
    others = [record for record in records if record is not first]
    close = [record for record in others if record.median_sec <= reach_sec and not record.is_static]
    static = [record for record in others if record.is_static]
    chosen = [first, *close[: MOST_OPTIONS - 1], *static[:1]]
    return Selection(workload=workload, options=tuple(chosen)) if len(chosen) > 1 else None


def that_matter(selections: Iterable[Selection], secs_by_workload: Mapping[str, float]) -> list[Selection]:
    """Return the selections whose workloads take a relevant part of the model's time, narrowed, costliest first.

    Args:
        secs_by_workload: mean time of a call in place [s].
    """
    found = [narrowed(one, secs_by_workload.get(one.workload.shash, 0.0)) for one in selections]
    found = [selection for selection in found if len(selection.options) > 1]
    total_sec = sum(secs_by_workload.values())
    costs = {
        selection.workload.shash: selection.workload.weight * secs_by_workload.get(selection.workload.shash, 0.0)
        for selection in found
    }
    matter = [selection for selection in found if costs[selection.workload.shash] >= _LEAST_SHARE * total_sec > 0]
    return sorted(matter, key=lambda selection: (-costs[selection.workload.shash], selection.workload.name))


def lineups(decided: Lineup, selections: Sequence[Selection], most: int) -> list[Lineup]:
    """Return the builds that are needed in addition to the decided and the static one, up to a limit.

    The k-th holds each workload's k-th schedule, where it has one.
    """
    rivals = [
        (selection.workload.shash, [option for option in selection.options[1:] if not option.is_static])
        for selection in selections
    ]
    needed = max((len(options) for _, options in rivals), default=0)
    return [
        {**decided, **{shash: options[k].trace_json for shash, options in rivals if k < len(options)}}
        for k in range(min(needed, most))
    ]


def secs_in_place(calls: Iterable[OperatorCall], workloads: Iterable[Workload]) -> dict[str, float]:
    """Return the mean time of each workload's calls [s] by its hash, of the shortest runs: disturbed least."""
    shash_by_function = {workload.name: workload.shash for workload in workloads}
    secs: dict[str, list[float]] = {}
    for call in calls:
        shash = shash_by_function.get(program_of(call.function))
        if shash is not None:
            secs.setdefault(shash, []).append(call.min_sec)
    return {shash: statistics.fmean(own) for shash, own in secs.items()}


def place(selection: Selection, rounds: Sequence[tuple[Lineup, Mapping[str, float]]]) -> Placed:
    """Choose the schedule of a workload that is fastest in place.

    Args:
        rounds: schedules of a build, and the result of `secs_in_place` in it, once per build and round.
    """
    shash = selection.workload.shash
    static = next((option.trace_json for option in selection.options if option.is_static), "")
    in_place: dict[str, tuple[float, ...]] = {}
    for lineup, secs in rounds:
        trace = lineup.get(shash, static)
        if shash in secs and trace in {option.trace_json for option in selection.options}:
            in_place[trace] = (*in_place.get(trace, ()), secs[shash])
    first = selection.options[0]
    placed = Placed(selection=selection, in_place_secs=in_place, chosen=first)
    fastest = min(selection.options, key=placed.median_sec)
    is_clear = placed.median_sec(fastest) <= _CLEARLY * placed.median_sec(first)
    is_known = first.trace_json in in_place
    return Placed(selection=selection, in_place_secs=in_place, chosen=fastest if is_clear and is_known else first)
