"""Trains the cost model that all jobs share: a stateless task for a worker of the build pool. Needs no TVM."""

from __future__ import annotations

import contextlib
import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fleet.cost_model.instruction_sets import instruction_set_of
from fleet.cost_model.prior import prior_for
from fleet.cost_model.samples import Sample, check, grouped
from fleet.cost_model.snapshot import Snapshot
from fleet.cost_model.stored import FEATURE_VERSION, TARGET_KINDS, target_kind, unpack_rows
from fleet.cost_model.training import LEAST_SAMPLES, is_not_worse, train_snapshot
from fleet.errors import ConfigError, InvalidRequest
from fleet.library import NewSnapshot, StoredSample

_HELD_OUT = 5
"""One workload in so many is not trained on: snapshots are compared on it."""

_LEAST_HELD_OUT = 3
"""Workloads to compare on: a model of a dozen workloads says little about others, and one of two says nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """What a training gave."""

    snapshot: NewSnapshot
    is_not_worse: bool
    """Than the one in use, on workloads that neither has seen; False while these are too few to tell."""


def train(samples: Sequence[StoredSample], current: bytes | None) -> Trained | None:
    """Train a snapshot and compare it with the one in use; None while there is too little to learn from.

    A current snapshot that this program cannot read is as good as none. Without one, the model that comes with the
    package is in use, for the targets that it is for.
    """
    usable = list(_usable(samples))
    seen = [sample for sample in usable if not _is_held_out(sample.workload)]
    try:
        candidate = train_snapshot(seen)
    except InvalidRequest:
        return None
    held_out = [sample for sample in usable if _is_held_out(sample.workload)]
    snapshot = NewSnapshot(
        content=candidate.content,
        feature_version=FEATURE_VERSION,
        record_count=len(seen),
        workloads=dict(sorted(Counter(sample.workload for sample in seen).items())),
        last_record_id=max(sample.record_id for sample in samples),
        metrics={**candidate.metrics, TARGET_KINDS: _target_kinds(samples)},
    )
    can_tell = len({group.workload for group in grouped(held_out, least=LEAST_SAMPLES)}) >= _LEAST_HELD_OUT
    return Trained(snapshot=snapshot, is_not_worse=can_tell and _is_not_worse(candidate, current, samples))


def _is_not_worse(candidate: Snapshot, current: bytes | None, samples: Sequence[StoredSample]) -> bool:
    held_out = [stored for stored in samples if _is_held_out(stored.workload)]
    before: Snapshot | None = None
    if current is not None:
        with contextlib.suppress(InvalidRequest):
            before = Snapshot.of(current)
    if before is None:
        held_out = [stored for stored in held_out if _prior_of(stored.target_key) is not None]
        before = _prior_of(held_out[0].target_key) if held_out else None
    return before is None or is_not_worse(candidate, before, list(_usable(held_out)))


def _prior_of(target_key: str) -> Snapshot | None:
    try:
        return prior_for(target_key)
    except ConfigError:  # an imported record, of a target that we refuse to build for, or of none
        return None


def _target_kinds(samples: Iterable[StoredSample]) -> list[str]:
    keys = {sample.target_key for sample in samples}
    return sorted({target_kind(key) for key in keys if key})  # MetaSchedule's records may name no target


def _usable(samples: Iterable[StoredSample]) -> Iterable[Sample]:
    """Leave out what no model should learn from: one such record must not keep all others from being learnt."""
    for stored in samples:
        with contextlib.suppress(InvalidRequest):
            sample = Sample(
                workload=stored.workload,
                run_sec=stored.run_sec,
                features=unpack_rows(stored.stores),
                flop=stored.flop,
                device_model=stored.device_model,
                instruction_set=instruction_set_of(stored.target_key),
                is_disturbed=stored.is_disturbed,
            )
            check([sample])
            yield sample


def _is_held_out(workload: str) -> bool:
    """Tell by the workload's name alone, so that no later snapshot is trained on it either."""
    return int(hashlib.sha256(workload.encode()).hexdigest(), 16) % _HELD_OUT == 0
