"""Checks whether a workload's own space is still the one of its recorded candidates."""

from __future__ import annotations

import itertools

from benchmarks.cost_data.dataset import Group
from cross.targets.intrinsics import load_intrinsics
from cross.targets.target import parse_target
from fleet.optimizer.tasks.search_state import SearchState

_FIRST = 8
"""Number of schedules that tuning tries first and that `collect` always takes; the rest of a large space is a
sample.
"""


def has_other_space(group: Group) -> bool:
    """Tell whether the space begins with other programs than the recorded ones. Runs where TVM may be loaded."""
    target = parse_target(group.program.target_json)
    load_intrinsics(target)
    state = SearchState(group.program.mod_json, target)
    now = list(dict.fromkeys(made.program for made in itertools.islice(state.own_space(), _FIRST)))
    own = [trace for trace, source in zip(group.traces, group.sources, strict=True) if source == "own"]
    return [state.program_of(trace) for trace in own[: len(now)]] != now
