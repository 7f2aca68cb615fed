"""Trains the cost model that all jobs share: a stateless task for a worker of the build pool. Needs no TVM."""

from __future__ import annotations

import contextlib
import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from cross.targets.target import Target, parse_target
from fleet.cost_model.corrections import are_not_worse, fit_corrections
from fleet.cost_model.feature_codec import FEATURE_VERSION, TARGET_KINDS, target_kind, unpacked
from fleet.cost_model.model import evidence_of
from fleet.cost_model.packaged_model import has_prior, prior_for, prior_samples
from fleet.cost_model.samples import check, grouped
from fleet.cost_model.snapshot import Snapshot, pack
from fleet.cost_model.training import LEAST_SAMPLES, SURE, is_not_worse, train_snapshot
from fleet.domain.observation import Observation
from fleet.errors import ConfigError, InvalidRequest
from fleet.library import NewSnapshot

_HELD_OUT = 5
"""One workload in this many is held out of training: snapshots are compared on it."""

_LEAST_HELD_OUT = 3
"""Workloads to compare on: a model of a dozen workloads says little about others, and one of two says nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """Result of a training."""

    snapshot: NewSnapshot
    is_not_worse: bool
    """True if it is not worse than the snapshot in use, on workloads new to both; False if these are too few."""


def train(samples: Sequence[Observation], current: bytes | None) -> Trained | None:
    """Train a snapshot, or condition the packaged one on the records while they are of too few workloads to compare
    on; None while there is too little to learn from.
    """
    usable = usable_of(samples)
    conditioned = _conditioned(usable, current, max((sample.record_id for sample in samples), default=0))
    if conditioned is not None and not _are_enough([one for one in usable if _is_judged(one)]):
        return conditioned
    trained = train_anew(samples, current)
    if conditioned is None or (trained is not None and trained.is_not_worse):
        return trained
    return conditioned


def train_anew(samples: Sequence[Observation], current: bytes | None) -> Trained | None:
    """Train a snapshot and compare it with the one in use; None while there is too little to learn from.

    A current snapshot that this program cannot read is as good as none. Without one, the model that comes with the
    package is in use, for the targets that it is for. Its training data is used, too, if the library has processors
    alone: its value for GPUs has not been measured.
    """
    usable = usable_of(samples)
    packaged = [sample for sample in _packaged(usable) if not is_held_out(sample.workload)]
    lessons = [one for one in usable if not is_held_out(one.workload)]
    held_out = [one for one in usable if is_held_out(one.workload)]
    if not (kinds := _kinds_learnt(lessons)):
        return None
    learnt, held_out = ([one for one in some if _kind(one.target_key) in kinds] for some in (lessons, held_out))
    try:
        candidate = train_snapshot([*packaged, *lessons] if _are_of_processors(learnt) else lessons)
    except InvalidRequest:
        return None
    snapshot = NewSnapshot(
        content=candidate.content,
        feature_version=FEATURE_VERSION,
        record_count=len(lessons),
        workloads=dict(sorted(Counter(one.workload for one in lessons).items())),
        last_record_id=max(sample.record_id for sample in samples),
        metrics={**candidate.metrics, TARGET_KINDS: kinds},
    )
    return Trained(snapshot=snapshot, is_not_worse=_is_not_worse(candidate, current, packaged, learnt, held_out))


def _conditioned(usable: Sequence[Observation], current: bytes | None, last_record_id: int) -> Trained | None:
    """Return the packaged model with corrections for the library's processors; None if there are too few records, or a
    trained model is in use.
    """
    known = [one for one in usable if _has_prior(one.target_key)]
    groups = grouped(known)
    if not groups or (current is not None and _trained_in(current) is not None):
        return None
    target = _parsed(known[0].target_key)
    prior = None if target is None else prior_for(target)
    if prior is None or groups[0].features[0].shape[1] != prior.model.width:
        return None
    evidence = evidence_of(prior.model, groups)
    corrections = fit_corrections(prior.model.calibration, evidence)
    if not corrections:
        return None
    made = pack(replace(prior.model, corrections=corrections), prior.metrics)
    snapshot = NewSnapshot(
        content=made.content,
        feature_version=FEATURE_VERSION,
        record_count=len(known),
        workloads=dict(sorted(Counter(one.workload for one in known).items())),
        last_record_id=last_record_id,
        metrics={**made.metrics, TARGET_KINDS: sorted({_kind(one.target_key) for one in known})},
    )
    return Trained(snapshot=snapshot, is_not_worse=are_not_worse(prior.model.calibration, evidence))


def _trained_in(content: bytes) -> Snapshot | None:
    """Return a trained snapshot; None if it is the packaged one with corrections, or cannot be read."""
    with contextlib.suppress(InvalidRequest):
        found = Snapshot.of(content)
        return None if found.model.corrections else found
    return None


def _is_not_worse(
    candidate: Snapshot,
    current: bytes | None,
    packaged: Sequence[Observation],
    learnt: Sequence[Observation],
    held_out: Sequence[Observation],
) -> bool:
    before = None if current is None else _trained_in(current)
    replaces_package = before is None and bool(packaged) and any(_has_prior(one.target_key) for one in learnt)
    if replaces_package:
        held_out = [one for one in held_out if _has_prior(one.target_key)]
    if not _are_enough(held_out):
        return False
    if not replaces_package:
        return before is None or is_not_worse(candidate, before, held_out)
    # The package's own model has seen some of the test data. A model without its data must rank no worse.
    sure = SURE if _are_of_processors(learnt) else 0.0
    return is_not_worse(candidate, train_snapshot(packaged), held_out, sure=sure)


def _are_enough(held_out: Sequence[Observation]) -> bool:
    return len({group.workload for group in grouped(held_out, least=LEAST_SAMPLES)}) >= _LEAST_HELD_OUT


def _is_judged(one: Observation) -> bool:
    """Tell whether a trained model is compared with the packaged one on this record."""
    return is_held_out(one.workload) and _has_prior(one.target_key)


def _are_of_processors(learnt: Sequence[Observation]) -> bool:
    return all(_has_prior(one.target_key) for one in learnt)


def _has_prior(target_key: str) -> bool:
    target = _parsed(target_key)
    return target is not None and has_prior(target)


def _parsed(target_key: str) -> Target | None:
    """Return a record's target, or None if it has none, or one that is refused: it may be imported."""
    try:
        return parse_target(target_key)
    except ConfigError:
        return None


def _kinds_learnt(lessons: Sequence[Observation]) -> list[str]:
    """Return the kinds of the targets with enough samples."""
    groups = grouped(lessons, least=LEAST_SAMPLES)
    learnt = {(group.workload, group.device_model) for group in groups}
    keys = {one.target_key for one in lessons if (one.workload, one.device_model) in learnt}
    return sorted({_kind(key) for key in keys} - {""})


def _kind(target_key: str) -> str:
    return target_kind(target_key) if target_key else ""  # MetaSchedule's records may have no target


def usable_of(samples: Iterable[Observation]) -> list[Observation]:
    """Drop records that no model should learn from: one bad record must not prevent training on all others."""
    found: list[Observation] = []
    for stored in samples:
        target = _parsed(stored.target_key)
        with contextlib.suppress(InvalidRequest):
            instruction_set = "" if target is None else target.instruction_set
            observation = replace(unpacked(stored), instruction_set=instruction_set)
            check([observation])
            if observation.has_features:  # otherwise its schedule does not apply any more
                found.append(observation)
    widths = Counter(_width(one) for one in found)
    return [one for one in found if _width(one) == widths.most_common(1)[0][0]]


def _packaged(usable: Sequence[Observation]) -> list[Observation]:
    """Return the training data of the package's model, if the library has records of its targets."""
    if not any(_has_prior(key) for key in {one.target_key for one in usable}):
        return []
    samples = prior_samples()
    return samples if samples[0].features.shape[1] == _width(usable[0]) else []


def _width(one: Observation) -> int:
    return int(one.features.shape[1])


def is_held_out(workload: str) -> bool:
    """Decide by the workload's name alone, so that no later snapshot is trained on it either."""
    return int(hashlib.sha256(workload.encode()).hexdigest(), 16) % _HELD_OUT == 0
