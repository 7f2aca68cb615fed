"""What the core keeps of a job while it runs. Only the core changes these."""

from __future__ import annotations

import enum
import math
from collections import deque
from dataclasses import dataclass, field

from fleet.artifacts.artifact import Artifact
from fleet.cost_model.observation import Features
from fleet.domain.measuring import Measurement, Trial
from fleet.spaces.packing import Packing


class CandidateStage(enum.Enum):
    """How far a candidate has come. It only moves down this list, except that a repeat records it again."""

    PROPOSED = "proposed"
    BUILT = "built"
    RECORDED = "recorded"
    CHECKED = "checked"
    """Its numbers agree with the unscheduled program's."""

    OUT = "out"
    """Wrong, impossible to check, or failed: it can never be the best."""


@dataclass(slots=True, kw_only=True)
class Candidate:
    """One proposal on its way through a job."""

    workload: str
    """Hash of its workload."""

    trace_json: str
    digest: str
    stage: CandidateStage = CandidateStage.PROPOSED
    artifact: Artifact | None = None
    features: Features | None = None
    program: int | None = None
    """Hash of its scheduled program."""

    measurement: Measurement | None = None
    record_id: int | None = None
    packings: tuple[Packing, ...] = ()
    """How its arguments are made from the workload's."""

    may_be_built: set[str] = field(default_factory=set)
    """Digests of those that were proposed together with it, but for those that could not be built; they share it."""

    is_static: bool = False
    """It is the schedule that was chosen without a trial, and counts as none."""

    @property
    def median_sec(self) -> float:
        """Median of its times [s]; infinite if there is none."""
        return self.measurement.median_sec if self.measurement else math.inf


class Purpose(enum.Enum):
    """Why something is measured."""

    BASELINES = "baselines"
    """Unscheduled programs, before the search."""

    SEARCH = "search"
    RUN_OFF = "run-off"


@dataclass(slots=True, kw_only=True)
class Batch:
    """Trials measured together, including repeats of those that were disturbed."""

    purpose: Purpose
    workload: str
    """Hash of the workload; empty for baselines."""

    artifacts: dict[str, Artifact]
    """By digest."""

    all_trials: tuple[Trial, ...]
    trials: tuple[Trial, ...]
    """Trials of the current round."""

    seen: list[Measurement] = field(default_factory=list)
    """Results of the current round, in order."""

    repeats: int = 0
    """Repeat rounds so far."""

    tries: int = 1
    """Attempts so far, counting this one; a lost device or a slow model gets another."""

    times: dict[str, float] = field(default_factory=dict)
    """Newest good median by candidate id [s]."""


@dataclass(slots=True, kw_only=True)
class Checking:
    """Candidates of one workload whose numbers have to be compared, in this order."""

    purpose: Purpose
    waiting: deque[Candidate]
    right: list[Candidate] = field(default_factory=list)
