"""`FleetCostModel`: the fleet's cost model for MetaSchedule.

    ms.tune_tir(mod, target, ..., cost_model=FleetCostModel())
    ms.tune_tir(mod, target, ..., cost_model=FleetCostModel(library="postgresql://db/fleet"))

It knows something before the first trial: the snapshot that comes with the package, or that of a library. Then it
learns from measurements. TVM's own XGBModel knows nothing, and scores at random below a hundred records.
"""

from __future__ import annotations

import math
import os
import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from tvm.ir.utils import derived_object
from tvm.s_tir.meta_schedule.cost_model import PyCostModel
from tvm.s_tir.meta_schedule.cost_model.xgb_model import FeatureGroup, XGBModel
from tvm.s_tir.meta_schedule.feature_extractor import PerStoreFeature
from tvm.s_tir.meta_schedule.utils import shash2hex

from cross.targets.target import Target, parse_target
from fleet.cost_model.feature_codec import FEATURE_VERSION, target_kinds
from fleet.cost_model.job_trees import learn
from fleet.cost_model.packaged_model import prior_for
from fleet.cost_model.samples import Context
from fleet.cost_model.scoring import Ranker
from fleet.cost_model.snapshot import Snapshot
from fleet.domain.observation import Observation
from fleet.errors import InvalidRequest
from fleet.library import Library, StoredSnapshot

if TYPE_CHECKING:
    from tvm.s_tir.meta_schedule import TuneContext
    from tvm.s_tir.meta_schedule.runner import RunnerResult
    from tvm.s_tir.meta_schedule.search_strategy import MeasureCandidate

_FAILED_SEC = 1e10
"""Time that XGBModel stores for a failed candidate [s]."""

_MOST_RECORDS = 4096
"""Newest records that are learnt from."""


@derived_object
class FleetCostModel(PyCostModel):  # type: ignore[misc]
    """Scores candidates by the model of all workloads, and by the records of this run."""

    def __init__(
        self, snapshot: Snapshot | None = None, *, library: Library | str | os.PathLike[str] | None = None
    ) -> None:
        """Start with a snapshot.

        Args:
            snapshot: None: that of the library, and where none is for the target, the one that comes with the package,
                for processors.
            library: an open one, or an argument of `Library.open`. The snapshot that is in use there is read now;
            records
                of this run go to a `FleetDatabase`, not from here.

        Raises:
            LibraryError: it cannot be opened or read.
            InvalidRequest: its snapshot is of another version.
        """
        super().__init__()
        stored = None if snapshot is not None or library is None else _in_use(library)
        self._snapshot = snapshot if stored is None else Snapshot.of(stored.content)
        self._kinds = None if stored is None else target_kinds(stored)
        self._extractor = PerStoreFeature()
        self._lessons: list[Observation] = []
        self._own: bytes | None = None
        self._rankers: dict[str, Ranker] = {}

    def predict(self, context: TuneContext, candidates: Sequence[MeasureCandidate]) -> NDArray[np.float64]:
        """Return a positive score per candidate, higher is faster."""
        return self._ranker(context).score(self._features(context, candidates))

    def update(
        self, context: TuneContext, candidates: Sequence[MeasureCandidate], results: Sequence[RunnerResult]
    ) -> None:
        """Learn from measured candidates."""
        workload = shash2hex(context.mod)
        for features, result in zip(self._features(context, candidates), results, strict=True):
            secs = [float(sec) for sec in result.run_secs or ()]
            run_sec = statistics.median(secs) if secs else math.inf
            if len(features):
                self._lessons.append(Observation(workload=workload, run_sec=run_sec, features=features))
        self._learn()

    def save(self, path: str) -> None:
        """Write the records, and trees on them, as a file of MetaSchedule's XGBModel."""
        stock = XGBModel(num_warmup_samples=0, num_tuning_cores=1)
        for lesson in self._lessons:
            cost = np.array([lesson.run_sec if math.isfinite(lesson.run_sec) else _FAILED_SEC], np.float32)
            if lesson.workload in stock.data:
                stock.data[lesson.workload].append([lesson.features], cost)
            else:
                stock.data[lesson.workload] = FeatureGroup(lesson.workload, [lesson.features], cost)
        stock.data_size = len(self._lessons)
        if self._lessons:  # XGBModel's `load` requires trees
            groups = list(stock.data.values())
            ratios = np.concatenate([group.min_cost / group.costs for group in groups])
            stock._train([one for group in groups for one in group.features], ratios)  # noqa: SLF001
        stock.save(path)

    def load(self, path: str) -> None:
        """Refuse any file: it contains pickles, which can run code when loaded.

        Raises:
            RuntimeError: always; TVM makes it of an InvalidRequest.
        """
        raise InvalidRequest(
            f"{path} is not read: files of MetaSchedule's XGBModel hold pickles, which can run code. Keep records in "
            "a FleetDatabase, or import MetaSchedule's database with `fleet library import`; then use "
            "FleetCostModel(library=...)"
        )

    def _learn(self) -> None:
        self._own = learn(self._lessons[-_MOST_RECORDS:])
        self._rankers.clear()

    def _ranker(self, context: TuneContext) -> Ranker:
        workload = shash2hex(context.mod)
        if workload not in self._rankers:
            known = [lesson.features for lesson in self._lessons if lesson.workload == workload]
            target = parse_target(str(context.target))
            context = Context(instruction_set=target.instruction_set)
            self._rankers[workload] = Ranker(self._shared(target), self._own, context, records=len(known))
        return self._rankers[workload]

    def _shared(self, target: Target) -> Snapshot | None:
        """Return the model of all workloads for a kind of targets."""
        if self._kinds is not None and target.kind not in self._kinds:
            return prior_for(target)
        return self._snapshot or prior_for(target)

    def _features(self, context: TuneContext, candidates: Sequence[MeasureCandidate]) -> list[NDArray[np.float32]]:
        return [found.numpy().astype(np.float32) for found in self._extractor.extract_from(context, candidates)]


def _in_use(library: Library | str | os.PathLike[str]) -> StoredSnapshot | None:
    if isinstance(library, Library):
        return library.memory.newest_snapshot(FEATURE_VERSION)
    with Library.open(library) as opened:
        return opened.memory.newest_snapshot(FEATURE_VERSION)
