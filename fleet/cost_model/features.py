"""MetaSchedule's per-store features of scheduled programs."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from cross.targets.target import Target, make_target
from fleet.workloads.workload import module_of

if TYPE_CHECKING:
    from tvm.s_tir import Schedule
    from tvm.s_tir.meta_schedule import TuneContext
    from tvm.s_tir.meta_schedule.feature_extractor import FeatureExtractor


def extract_features(
    mod_json: str, target: Target, schedules: Sequence[Schedule], *, threads: int = 1
) -> list[NDArray[np.float32]]:
    """Return MetaSchedule's per-store features of scheduled programs."""
    from tvm.s_tir.meta_schedule.search_strategy import MeasureCandidate

    candidates = [MeasureCandidate(schedule, []) for schedule in schedules]
    context, extractor = _extraction(mod_json, target, threads)
    return [tensor.numpy().astype(np.float32) for tensor in extractor.extract_from(context, candidates)]


@functools.lru_cache(maxsize=16)
def _extraction(mod_json: str, target: Target, threads: int) -> tuple[TuneContext, FeatureExtractor]:
    from tvm.s_tir import meta_schedule as ms

    context = ms.TuneContext(module_of(mod_json), target=make_target(target), num_threads=threads)
    return context, ms.feature_extractor.PerStoreFeature()
