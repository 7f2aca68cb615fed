"""Runs searches, trainings and builds in the pool for the core, and reports the results."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable

from cross.compile.cache import BuildCache
from cross.targets.target import parse_target
from fleet.building.build_candidate import BuildTask, build_candidate
from fleet.building.built_candidate import BuiltCandidate
from fleet.building.metered import metered
from fleet.building.pool import Pool, run_within
from fleet.cost_model.job_trees import learn
from fleet.domain.measuring import ErrorKind
from fleet.domain.workload import Workload
from fleet.errors import BuildError, InvalidRequest
from fleet.optimizer.builder_plan import shared
from fleet.optimizer.conditions import Conditions
from fleet.optimizer.core.events import (
    BaselineBuilt,
    Build,
    BuildFailed,
    Built,
    Found,
    Learn,
    LearningFailed,
    Learnt,
    Propose,
    Proposed,
    SearchFailed,
)
from fleet.optimizer.tasks.propose import ProposeTask, propose

_SEARCH_TIMEOUT_SEC = 120.0
_BASELINE_TIMEOUT_SEC = 600.0
"""Longer than a candidate: nothing can be checked without it, and a busy machine took over 30 s for one of VGG-19."""


class Searcher:
    """Runs a job's tasks in the pool. Keeps the newest cost model."""

    def __init__(
        self,
        pool: Pool,
        conditions: Conditions,
        workload_of: Callable[[str], Workload],
        cache: BuildCache | None = None,
    ) -> None:
        """Run nothing yet.

        Args:
            cache: built libraries that outlive the job.
        """
        self._pool = pool
        self._conditions = conditions
        self._target = parse_target(conditions.scope.target_json)
        self._workload_of = workload_of
        self._cache = cache
        self._snapshot: bytes | None = None
        self.shared: bytes | None = None
        """Snapshot of the library's cost model, once there is one."""

    async def learn(self, effect: Learn) -> AsyncGenerator[Learnt | LearningFailed, None]:
        """Fit trees to the job's own records for the next search."""
        try:
            learnt = await run_within(self._pool, _SEARCH_TIMEOUT_SEC, metered, learn, effect.observations)
        except BuildError as error:
            yield LearningFailed(str(error))
        else:
            self._snapshot = learnt.value
            yield Learnt(learnt.builder_sec)

    async def propose(self, effect: Propose) -> AsyncGenerator[Found | Proposed | SearchFailed, None]:
        """Search for new candidates."""
        task = ProposeTask(
            mod_json=self._workload_of(effect.workload).mod_json,
            target=self._target,
            device_model=self._conditions.scope.device_model,
            records=effect.records,
            model=self._snapshot if self._conditions.uses_model else None,
            is_guided=self._conditions.uses_model,
            count=effect.count,
            ahead=effect.ahead,
            flop=self._workload_of(effect.workload).flop,
            kind=self._workload_of(effect.workload).kind,
            seed=effect.seed,
            known=effect.known,
            shared=self.shared,
            seeds=effect.seeds,
            threads=self._conditions.search_threads,
            is_static=effect.is_static,
            strategy=self._conditions.strategy,
            replayed=effect.replayed,
        )
        try:
            pool = shared(self._pool, effect.shared_with)
            near = pool.submit_near(effect.workload, _SEARCH_TIMEOUT_SEC, metered, propose, task)
            searched = await asyncio.wrap_future(near)
        except (BuildError, InvalidRequest) as error:
            yield SearchFailed(effect.workload, str(error))
            return
        found = tuple(searched.value)
        if effect.is_static:
            yield Proposed(effect.workload, found, is_static=True)
        else:
            yield Found(effect.workload, found, searched.builder_sec)

    async def build(self, effect: Build) -> AsyncGenerator[Built | BuildFailed, None]:
        """Build candidates, all at once. MetaSchedule's come first: they compile several times as long."""
        ordered = sorted(effect.proposals, key=lambda one: not one.is_of_rules)
        pool = shared(self._pool, effect.shared_with)
        building = [
            self._build(pool, effect.workload, one.digest, one.trace_json, wants_features=one.features is None)
            for one in ordered
        ]
        for built in asyncio.as_completed(building):
            yield await built

    async def build_baseline(self, shash: str) -> BaselineBuilt:
        """Build an unscheduled program."""
        task = self._task(shash, None)
        built = await run_within(self._pool, _BASELINE_TIMEOUT_SEC, build_candidate, task)
        return BaselineBuilt(shash, built.artifact)

    async def build_again(self, shash: str, trace_json: str) -> BuiltCandidate | None:
        """Build a schedule of the library; return None if the build fails."""
        built = await self._build(self._pool, shash, "", trace_json, wants_features=False)
        return built.build if isinstance(built, Built) else None

    async def _build(
        self, pool: Pool, shash: str, digest: str, trace_json: str, *, wants_features: bool
    ) -> Built | BuildFailed:
        task = self._task(shash, trace_json, wants_features=wants_features)
        try:
            metered_build = await asyncio.wrap_future(pool.submit(metered, build_candidate, task))
        except (BuildError, InvalidRequest) as error:
            kind = ErrorKind(error.kind) if isinstance(error, BuildError) else ErrorKind.BUILD_FAILED
            return BuildFailed(shash, digest, kind, str(error))
        return Built(shash, digest, metered_build.value, builder_sec=metered_build.builder_sec)

    def _task(self, shash: str, trace_json: str | None, *, wants_features: bool = True) -> BuildTask:
        """Describe the build of a candidate, or of the unscheduled program if `trace_json` is None."""
        return BuildTask(
            mod_json=self._workload_of(shash).mod_json,
            target=self._target,
            trace_json=trace_json,
            out_dir=str(self._conditions.artifact_dir),
            wants_features=wants_features,
            cache=self._cache,
            keeps_object=True,
        )
