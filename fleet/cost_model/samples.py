"""Inputs of the cost model: the context of a prediction, and usable observations in groups."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fleet.domain.observation import Features, Observation
from fleet.errors import InvalidRequest

_LONGEST_SEC = 3600.0
"""No candidate is allowed to run that long; a longer time is a mistake of its sender."""

DISTURBED_WEIGHT = 0.25
"""Weight of a disturbed time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """Workload and device of the predicted candidates."""

    flop: float = 0.0
    kind: str = ""
    """Kind of operator."""

    device_model: str = ""
    instruction_set: str = ""
    known: Sequence[Observation] = ()
    """Measurements of this workload on this device model."""


NO_CONTEXT = Context()
"""Neither is known."""


@dataclass(frozen=True)
class Group:
    """The usable observations of one workload on one device model, at least one."""

    observations: Sequence[Observation]

    @property
    def workload(self) -> str:
        """Hash of the workload."""
        return self.observations[0].workload

    @property
    def device_model(self) -> str:
        return self.observations[0].device_model

    @property
    def instruction_set(self) -> str:
        return self.observations[0].instruction_set

    @property
    def flop(self) -> float:
        """Operations of the workload."""
        return self.observations[0].flop

    @property
    def kind(self) -> str:
        """Kind of operator."""
        return self.observations[0].kind

    @property
    def context(self) -> Context:
        """Context of predictions that do not know these observations."""
        return Context(
            flop=self.flop, kind=self.kind, device_model=self.device_model, instruction_set=self.instruction_set
        )

    @cached_property
    def features(self) -> list[Features]:
        """Features of each candidate."""
        return [one.features for one in self.observations]

    @cached_property
    def log_sec(self) -> NDArray[np.float32]:
        """Natural logarithms of the times, [n_candidates]."""
        return np.log([one.run_sec for one in self.observations]).astype(np.float32)

    @cached_property
    def weights(self) -> NDArray[np.float32]:
        """Weights of the observations, [n_candidates]."""
        return weights_of(self.observations)

    def __len__(self) -> int:
        return len(self.observations)


def weights_of(observations: Iterable[Observation]) -> NDArray[np.float32]:
    """Return how far each time is to be believed, [n_candidates]."""
    return np.array([DISTURBED_WEIGHT if one.is_disturbed else 1.0 for one in observations], np.float32)


def check(samples: Iterable[Observation]) -> None:
    """Refuse impossible measurements.

    Raises:
        InvalidRequest: a time that is negative, zero, not a number or absurd, features that are not finite or of
            different numbers.
    """
    widths: set[int] = set()
    for sample in samples:
        if math.isnan(sample.run_sec) or not (0 < sample.run_sec <= _LONGEST_SEC or math.isinf(sample.run_sec)):
            raise InvalidRequest(f"workload {sample.workload}: {sample.run_sec} s is no time of a candidate")
        if sample.run_sec < 0:
            raise InvalidRequest(f"workload {sample.workload}: a negative time")
        if not np.isfinite(sample.features).all():
            raise InvalidRequest(f"workload {sample.workload}: features that are not finite")
        if sample.has_features:
            widths.add(sample.features.shape[1])
    if len(widths) > 1:
        raise InvalidRequest(f"features of several versions: {sorted(widths)} columns")


def grouped(samples: Iterable[Observation], *, least: int = 1) -> list[Group]:
    """Return successful observations by workload and device model, omitting groups smaller than a minimum."""
    found: dict[tuple[str, str], list[Observation]] = {}
    for sample in samples:
        if math.isfinite(sample.run_sec) and sample.has_features:
            found.setdefault((sample.workload, sample.device_model), []).append(sample)
    return [Group(group) for _, group in sorted(found.items()) if len(group) >= least]
