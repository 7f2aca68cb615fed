"""Candidates of a job: the backlog of each workload, and candidates in progress.

A candidate is claimed only when it is chosen to be built. To drop one from a backlog, because a newer search has found
better ones or the job ends, costs nothing and keeps no other job from it.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fleet.domain.observation import Observation, no_features
from fleet.errors import InvalidRequest

if TYPE_CHECKING:
    from tvm.s_tir import Schedule

    from fleet.building.built_candidate import BuiltCandidate
    from fleet.domain.measuring import Measurement
    from fleet.domain.observation import Features
    from fleet.domain.origin import Origin
    from fleet.optimizer.prioritizer.values import LogSecs


class CandidateStage(enum.Enum):
    """Progress of a candidate. It only moves down this list, except that a repeat records it again."""

    PROPOSED = "proposed"
    BUILT = "built"
    RECORDED = "recorded"
    CHECKED = "checked"
    """Its numbers agree with the unscheduled program's."""

    OUT = "out"
    """Wrong, impossible to check, or failed: it can never be the best."""


@dataclass(slots=True, kw_only=True)
class Candidate:
    """A schedule worth measuring. A search proposes it, and a job completes it on its way to the record."""

    trace_json: str
    """Empty for the unscheduled program."""

    digest: str
    """Digest of the trace, see `trace_digest`; BASELINE without a trace."""

    origin: Origin | None = None
    program: int | None = None
    """Hash of the scheduled program, which two traces can make; None: not known."""

    schedule: Schedule | None = field(default=None, compare=False, repr=False)
    """Applied; only in the search's process, and there only until the features are known."""

    predicted: float = field(default=math.nan, compare=False)
    """Score by the model, higher is better; nan without a model."""

    features: Features | None = field(default=None, compare=False)
    """From the search, else from the build; None: neither has any. The trace decides them."""

    log_secs: NDArray[np.float32] | None = field(default=None, compare=False)
    """Natural logarithms of the times [s] that the members of the model predict, shape [n_members]; None: there is no
    model, or too few records."""

    workload: str = ""
    """Hash of its workload; empty until a job builds it."""

    stage: CandidateStage = CandidateStage.PROPOSED
    build: BuiltCandidate | None = None
    measurement: Measurement | None = None
    record_id: int | None = None
    may_be_built: set[str] = field(default_factory=set)
    """Digests of the batch's candidates that can still be built. The batch shares this set."""

    shared_with: frozenset[str] = frozenset()
    """Names of other jobs that were searching its workload when it was claimed: they are charged for it, too."""

    is_static: bool = False
    """It is the schedule that was chosen without a trial, and counts as none."""

    @property
    def is_baseline(self) -> bool:
        """True for the unscheduled program."""
        return not self.trace_json

    @property
    def is_of_rules(self) -> bool:
        """True if MetaSchedule's rules are known to have made it."""
        return self.origin is not None and self.origin.is_of_rules

    @property
    def median_sec(self) -> float:
        """Median of its times [s]; infinite without a measurement."""
        return self.measurement.median_sec if self.measurement else math.inf

    def observation(self) -> Observation:
        """Return its result for searches and the cost model."""
        return Observation(
            workload=self.workload,
            trace_json=self.trace_json,
            run_sec=self.median_sec,
            features=no_features() if self.features is None else self.features,
            origin=self.origin,
            program=self.program,
            is_disturbed=self.measurement is not None and bool(self.measurement.disturbances),
        )

    @property
    def built(self) -> BuiltCandidate:
        """Its build.

        Raises:
            InvalidRequest: it was not built.
        """
        if self.build is None:
            raise InvalidRequest(f"candidate {self.digest} is not built")
        return self.build


@dataclass(slots=True, kw_only=True)
class Backlog:
    """Candidates of one workload from searches ahead, in the order of measurement."""

    candidates: tuple[Candidate, ...] = ()
    made_at: int = 0
    """Trials of the workload at the time of the search."""

    def age(self, trials: int) -> int:
        """Return the number of trials since the search, which it could not take into account."""
        return trials - self.made_at

    def take(self, count: int) -> tuple[Candidate, ...]:
        """Remove and return the first ones."""
        taken, self.candidates = self.candidates[:count], self.candidates[count:]
        return taken

    def drop(self, digests: Collection[str]) -> None:
        """Remove some."""
        self.candidates = tuple(one for one in self.candidates if one.digest not in digests)

    def predictions(self) -> LogSecs | None:
        """Return predictions for the leading candidates that have one, [n_members, n_candidates]."""
        known: list[NDArray[np.float32]] = []
        for one in self.candidates:
            if one.log_secs is None:
                break
            known.append(one.log_secs)
        return np.stack(known, axis=1).astype(np.float64) if known else None
