"""Proposes candidates for one workload: a stateless task for a worker of the build pool.

The first rounds take the schedules of the workload's own space (fleet.spaces) in their order, later ones those that the
cost model likes best. Then, and for workloads without a space of their own, come MetaSchedule's rules
(post-order-apply) with its evolutionary search. Each round starts anew from the records so far and a snapshot of the
cost model. So any worker can do any round, and a job that was interrupted goes on from its records. The same task gives
the same proposals.
"""

from __future__ import annotations

import functools
import itertools
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from cross.targets.intrinsics import load_intrinsics
from cross.targets.target import make_target
from fleet.cost_model.boosting import Trees
from fleet.cost_model.learn import extract_features
from fleet.domain.keys import trace_digest
from fleet.errors import InvalidRequest
from fleet.spaces.choose import schedules, static_schedule
from fleet.workloads.traces import replay, trace_json, tuning_record
from fleet.workloads.workload import module_of

if TYPE_CHECKING:
    from tvm.s_tir import Schedule
    from tvm.s_tir.meta_schedule import TuneContext
    from tvm.s_tir.meta_schedule.cost_model import CostModel
    from tvm.s_tir.meta_schedule.database import Database
    from tvm.s_tir.meta_schedule.runner import RunnerResult
    from tvm.s_tir.meta_schedule.search_strategy import MeasureCandidate

_MIN_UNMEASURED = 50
"""Fresh samples in each round's first population: TVM's own figure."""

_MAX_SEED = 2**31 - 2

_OWN_FIRST = 24
"""So many records of a workload come from its own space before MetaSchedule's rules compete for half of each batch."""

_POOL = 32
"""Untried schedules of the own space that the cost model chooses from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchRecord:
    """A measured candidate of the workload."""

    trace_json: str
    run_sec: float
    """Infinite if it failed: then it is neither proposed again nor used as a parent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposeTask:
    """One round of search."""

    mod_json: str
    target_json: str
    records: tuple[SearchRecord, ...] = ()
    model: bytes | None = None
    """Snapshot from `learn`; None scores at random."""

    count: int = 16
    """Proposals wanted."""

    seed: int = 0
    known: frozenset[str] = frozenset()
    """Digests of traces in flight, which must not be proposed again; nor are those of `records`."""

    population: int = 64
    generations: int = 2
    """64 programs over 2 generations cost a fifteenth of the stock 512 over 4 (0.7 s a round instead of 6-16 s), and
    in 64 trials found as good a matrix product and a better 1x1 convolution."""

    is_static: bool = False
    """Return only the static schedule, or nothing where there is none."""

    threads: int = 1
    """Cores for feature extraction, which takes most of the time; the search itself uses one, to be repeatable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A candidate worth measuring."""

    trace_json: str
    digest: str
    """Digest of the trace, see `trace_digest`."""

    predicted: float
    """Score by the model, higher is better; nan without a model."""


def propose(task: ProposeTask) -> list[Proposal]:
    """Return new candidates, most promising first; fewer than wanted, or none, when the design space has no more."""
    load_intrinsics(task.target_json)
    if task.is_static:
        static = static_schedule(module_of(task.mod_json), task.target_json)
        return [] if static is None else [_proposal(static, math.nan)]
    # Skip traces that do not replay, such as those imported for another program: the search can do without.
    task = replace(
        task, records=tuple(r for r in task.records if _program_hash(task.mod_json, r.trace_json) is not None)
    )
    own = _from_own_space(task)
    others = max(0, task.count - len(own)) if len(task.records) < _OWN_FIRST else task.count // 2
    found = own[: task.count - others]
    if others or len(found) < task.count:
        searched = _new_ones(task, search(task), found)
        found += list(itertools.islice(searched, task.count - len(found)))
    scores = _predictions(task, found)
    proposals = [_proposal(schedule, score) for schedule, score in zip(found, scores, strict=True)]
    return sorted(proposals, key=lambda proposal: -proposal.predicted) if task.model is not None else proposals


def _proposal(schedule: Schedule, score: float) -> Proposal:
    trace = trace_json(schedule)
    return Proposal(trace_json=trace, digest=trace_digest(trace), predicted=score)


def _from_own_space(task: ProposeTask) -> list[Schedule]:
    """Return untried schedules of the workload's own space: the first ones in their order, later the best predicted."""
    space = _new_ones(task, schedules(module_of(task.mod_json), task.target_json))
    if task.model is None or len(task.records) < task.count:
        return list(itertools.islice(space, task.count))
    pool = list(itertools.islice(space, _POOL))
    scores = _predictions(task, pool)
    return [pool[index] for index in sorted(range(len(pool)), key=lambda index: -scores[index])]


def search(task: ProposeTask) -> Sequence[Schedule]:
    """Run one round of evolutionary search and return its schedules."""
    from tvm.s_tir import meta_schedule as ms

    wanted = task.count + len(task.records) + len(task.known)  # the search may return all known ones again
    strategy = ms.search_strategy.EvolutionarySearch(
        population_size=task.population,
        init_min_unmeasured=min(_MIN_UNMEASURED, task.population // 2),
        genetic_num_iters=task.generations,
    )
    context = ms.TuneContext(
        module_of(task.mod_json),
        target=make_target(task.target_json),
        space_generator="post-order-apply",
        search_strategy=strategy,
        rand_state=1 + task.seed % _MAX_SEED,
        num_threads=1,
    )
    context.pre_tuning(
        max_trials=wanted,
        num_trials_per_iter=wanted,
        design_spaces=context.generate_design_space(),
        database=_database(task),
        cost_model=_cost_model(task),
    )
    candidates = context.generate_measure_candidates() or []
    context.post_tuning()
    return [candidate.sch for candidate in candidates]


def _new_ones(task: ProposeTask, schedules: Iterable[Schedule], chosen: Sequence[Schedule] = ()) -> Iterator[Schedule]:
    """Drop what was measured already, or is chosen. Two traces can make one program, so programs are compared."""
    import tvm_ffi

    seen = {_program_hash(task.mod_json, record.trace_json) for record in task.records}
    seen.update(int(tvm_ffi.structural_hash(schedule.mod)) for schedule in chosen)
    for schedule in schedules:
        program = int(tvm_ffi.structural_hash(schedule.mod))
        if program not in seen and trace_digest(trace_json(schedule)) not in task.known:
            seen.add(program)
            yield schedule


@functools.lru_cache(maxsize=4096)
def _program_hash(mod_json: str, trace: str) -> int | None:
    """Return a hash of the scheduled program; None if the trace does not fit the workload."""
    import tvm_ffi

    try:
        return int(tvm_ffi.structural_hash(replay(module_of(mod_json), trace).mod))
    except InvalidRequest:
        return None


def _database(task: ProposeTask) -> Database:
    """Return a MetaSchedule database with the workload's good records."""
    from tvm.s_tir import meta_schedule as ms

    database = ms.database.MemoryDatabase()
    workload = database.commit_workload(module_of(task.mod_json))
    target = json.loads(str(make_target(task.target_json)))
    for record in task.records:
        if math.isfinite(record.run_sec):
            database.commit_tuning_record(tuning_record(record.trace_json, [record.run_sec], target, workload))
    return database


def _cost_model(task: ProposeTask) -> CostModel:
    from tvm.ir.utils import derived_object
    from tvm.s_tir import meta_schedule as ms

    trees = Trees(task.model) if task.model is not None else None
    random = np.random.default_rng(task.seed)

    @derived_object
    class SnapshotModel(ms.cost_model.PyCostModel):  # type: ignore[misc]
        """Scores with the snapshot; it does not learn."""

        def load(self, path: str) -> None:
            """Do nothing: there is no file."""

        def save(self, path: str) -> None:
            """Do nothing: there is no file."""

        def update(
            self, context: TuneContext, candidates: Sequence[MeasureCandidate], results: Sequence[RunnerResult]
        ) -> None:
            """Do nothing: `learn` does the learning."""

        def predict(self, context: TuneContext, candidates: Sequence[MeasureCandidate]) -> NDArray[np.float64]:
            if trees is None:
                return random.random(len(candidates))
            schedules = [candidate.sch for candidate in candidates]
            return trees.score(extract_features(task.mod_json, task.target_json, schedules, threads=task.threads))

    return SnapshotModel()


def _predictions(task: ProposeTask, schedules: Sequence[Schedule]) -> list[float]:
    if task.model is None or not schedules:
        return [math.nan] * len(schedules)
    features = extract_features(task.mod_json, task.target_json, schedules, threads=task.threads)
    return [float(score) for score in Trees(task.model).score(features)]
