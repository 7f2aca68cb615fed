"""Candidates of a workload, good and bad ones: its own space, MetaSchedule's rules at random, and evolved ones."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cross.targets.intrinsics import load_intrinsics
from cross.targets.target import Target
from fleet.cost_model.scoring import Ranker
from fleet.domain.observation import Observation
from fleet.domain.origin import has_decisions
from fleet.optimizer.core import candidates as proposed
from fleet.optimizer.tasks.evolution import Evolution
from fleet.optimizer.tasks.search_state import SearchState

_FIRST_OWN = 8
"""Of its own space the first ones, which tuning tries first, and then any."""

_OWN_REACH = 240
"""Depth of the search in its own space: applying a schedule takes 10 ms."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateTask:
    """A batch of candidates of one workload."""

    mod_json: str
    target: Target
    count: int
    times: tuple[tuple[str, float], ...] = ()
    """Traces that were measured, with their times [s], infinite for failures."""

    model: bytes | None = None
    """Model that guides evolution; None: candidates at random."""

    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One schedule."""

    trace_json: str
    source: str


def own_candidates(task: CandidateTask) -> list[Candidate]:
    """Return schedules of the workload's own space: the first few, and any. Runs in a worker of the build pool."""
    load_intrinsics(task.target)
    state = SearchState(task.mod_json, task.target)
    own = list(itertools.islice(state.own_space(), _OWN_REACH))
    rest = own[_FIRST_OWN:]
    random.Random(task.seed).shuffle(rest)
    return list(_new(own[:_FIRST_OWN] + rest, "own", set(), task.count))


def searched_candidates(task: CandidateTask) -> list[Candidate]:
    """Return new schedules that MetaSchedule's rules make. Runs in a worker of the build pool."""
    load_intrinsics(task.target)
    state = SearchState(task.mod_json, task.target)
    seen = {state.program_of(trace) for trace, _ in task.times}
    # Twice without a model, because one run of the search returns similar programs.
    source, runs = ("evolved", 1) if task.model else ("rules", 2)
    found: list[Candidate] = []
    for run in range(runs):
        wanted = (task.count - len(found)) // (runs - run)
        found += _new(_evolution(task, state, wanted, run).run(), source, seen, wanted)
    return found


def _evolution(task: CandidateTask, state: SearchState, wanted: int, run: int) -> Evolution:
    return Evolution(
        state=state,
        parents=[
            Observation(workload="", trace_json=trace, run_sec=sec) for trace, sec in task.times if has_decisions(trace)
        ],
        ranker=Ranker(None, task.model, records=len(task.times)),
        population=max(32, math.ceil(1.2 * wanted)),
        generations=2 if task.model else 1,
        most=2 * wanted + len(task.times),
        seed=task.seed + run,
    )


def _new(made: Sequence[proposed.Candidate], source: str, seen: set[int | None], most: int) -> Iterator[Candidate]:
    for one in made:
        if most <= 0:
            return
        if one.program not in seen:
            seen.add(one.program)
            most -= 1
            yield Candidate(trace_json=one.trace_json, source=source)
