"""MetaSchedule's design space (post-order-apply) and its evolutionary search, guided by our cost model."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from cross.targets.target import make_target
from fleet.building.build_candidate import program_hash
from fleet.cost_model.features import extract_features
from fleet.cost_model.scoring import Ranker
from fleet.domain.observation import Features, Observation
from fleet.optimizer.core.candidates import Candidate
from fleet.optimizer.tasks.search_state import SearchState
from fleet.workloads.traces import tuning_record
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

_MOST_REFUSED = 320
"""A search ends after this many consecutive samples that no GPU could run: TVM's own figure, 5 populations of 64.
For a matrix product on a GPU nine in ten are refused, so a smaller population needs more attempts.
"""

_PARENTS = 0.2
"""Share of the first population that comes from records: TVM's own figure."""

_SPARE = 2
_LEAST_POPULATION = 16

EXPLORED = 0.05
"""Share of the result that is picked at random: TVM's own figure. It comes last."""

_MAX_SEED = 2**31 - 2


def blind_population(population: int, most: int) -> int:
    """Return the number of programs that a search without a model generates: enough to leave a choice.

    More are made in vain, and on GPUs each costs a twentieth of a second, of which most are refused.
    """
    return min(population, max(_LEAST_POPULATION, _SPARE * most))


@dataclass(frozen=True, slots=True, kw_only=True)
class Evolution:
    """One run of the search."""

    state: SearchState
    """The workload and its target."""

    parents: Sequence[Observation]
    """Measured candidates of these rules."""

    ranker: Ranker
    """Cost model that scores; a blind one scores at random."""

    population: int
    generations: int
    most: int
    """Schedules wanted; some may be of records."""

    seed: int
    threads: int = 1
    """Cores for feature extraction, which takes most of the time; the search itself uses one, to be repeatable."""

    def run(self) -> list[Candidate]:
        """Return candidates, with features if the ranker needed them; the best predicted first, random ones last.

        Empty for recurrent layers: the rules fail on a loop over several stages.
        """
        from tvm.s_tir import meta_schedule as ms

        from fleet.spaces.recurrent import is_recurrence

        if is_recurrence(module_of(self.state.mod_json)):
            return []
        known: dict[int, Features] = {}
        strategy = ms.search_strategy.EvolutionarySearch(
            population_size=self.population,
            init_measured_ratio=_PARENTS,
            init_min_unmeasured=min(_MIN_UNMEASURED, self.population // 2),
            genetic_num_iters=self.generations,
            eps_greedy=EXPLORED,
            max_fail_count=math.ceil(_MOST_REFUSED / self.population),
        )
        context = ms.TuneContext(
            module_of(self.state.mod_json),
            target=make_target(self.state.target),
            space_generator="post-order-apply",
            search_strategy=strategy,
            rand_state=1 + self.seed % _MAX_SEED,
            num_threads=1,
        )
        context.pre_tuning(
            max_trials=self.most,
            num_trials_per_iter=self.most,
            design_spaces=context.generate_design_space(),
            database=self._database(),
            cost_model=self._cost_model(known),
        )
        candidates = context.generate_measure_candidates() or []
        context.post_tuning()
        schedules = [candidate.sch for candidate in candidates]
        return [self.state.make_by_rules(schedule, known.get(program_hash(schedule))) for schedule in schedules]

    def _database(self) -> Database:
        """Return a database with the best few records that this search can mutate. The search replays all of them."""
        from tvm.s_tir import meta_schedule as ms

        database = ms.database.MemoryDatabase()
        workload = database.commit_workload(module_of(self.state.mod_json))
        target = json.loads(str(make_target(self.state.target)))
        able = [(one.run_sec, one.trace_json) for one in self.parents if math.isfinite(one.run_sec)]
        for sec, trace in sorted(able)[: max(1, math.ceil(_PARENTS * self.population))]:
            database.commit_tuning_record(tuning_record(trace, [sec], target, workload))
        return database

    def _cost_model(self, known: dict[int, Features]) -> CostModel:
        """Return a model that scores like the ranker, and caches the features that it needs in `known`."""
        from tvm.ir.utils import derived_object
        from tvm.s_tir import meta_schedule as ms

        ranker = self.ranker
        random = np.random.default_rng(self.seed)
        features_of = self._features_of

        @derived_object
        class RankerModel(ms.cost_model.PyCostModel):  # type: ignore[misc]
            """Scores like the ranker; it does not learn."""

            def load(self, path: str) -> None:
                """Do nothing: there is no file."""

            def save(self, path: str) -> None:
                """Do nothing: there is no file."""

            def update(
                self, context: TuneContext, candidates: Sequence[MeasureCandidate], results: Sequence[RunnerResult]
            ) -> None:
                """Do nothing: `learn` trains the model."""

            def predict(self, context: TuneContext, candidates: Sequence[MeasureCandidate]) -> NDArray[np.float64]:
                if ranker.is_blind:
                    return random.random(len(candidates))
                return ranker.score(features_of([candidate.sch for candidate in candidates], known))

        return RankerModel()

    def _features_of(self, schedules: Sequence[Schedule], known: dict[int, Features]) -> list[Features]:
        """Return features, cached by program: survivors are scored again in every generation."""
        programs = [program_hash(schedule) for schedule in schedules]
        new = {program: sch for program, sch in zip(programs, schedules, strict=True) if program not in known}
        if new:
            found = extract_features(self.state.mod_json, self.state.target, list(new.values()), threads=self.threads)
            known.update(zip(new, found, strict=True))
        return [known[program] for program in programs]
