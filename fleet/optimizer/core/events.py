"""Events of a job, and their effects. Plain values, no I/O.

`workload` is always the hash of one; `digest` that of a candidate's trace, or
BASELINE for the unscheduled program.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fleet.domain.measuring import ErrorKind, Measurement, Trial

if TYPE_CHECKING:
    from fleet.artifacts.artifact import Artifact
    from fleet.building.built_candidate import BuiltCandidate
    from fleet.checking.weakness import Weakness
    from fleet.domain.observation import Observation
    from fleet.domain.proving import Proof
    from fleet.optimizer.core.candidates import Candidate
    from fleet.optimizer.core.news import News


@dataclass(frozen=True, slots=True)
class RoundWanted:
    """There is room for another batch. Answered by Claim with candidates from the backlog; by Learn and Propose if the
    next workload's backlog is empty (then ask again after that search); or by nothing.

    While no search is under way, nothing means that the search is over. A workload is in one search at a time.
    """

    now_sec: float = 0.0
    """On the clock of the job's deadline."""


@dataclass(frozen=True, slots=True)
class AheadWanted:
    """There is room for a search in parallel. Answered by Learn and Propose; by nothing if all backlogs are full."""

    now_sec: float = 0.0
    """On the clock of the job's deadline."""


@dataclass(frozen=True, slots=True)
class EndWanted:
    """No more searches: the results so far are compared and stored. Emitted automatically at the job's deadline."""

    reason: str


@dataclass(frozen=True, slots=True)
class StaticWanted:
    """There is room for the static schedule of a workload, which is no trial. Answered by Propose."""

    workload: str


@dataclass(frozen=True, slots=True)
class Found:
    """A search has ended: its proposals replace the backlog of its workload."""

    workload: str
    proposals: tuple[Candidate, ...]
    """Those to be measured first come first."""

    builder_sec: float = 0.0
    """Processor time that it took [s]."""


@dataclass(frozen=True, slots=True)
class Proposed:
    """Candidates were claimed for this job. Answered by Build."""

    workload: str
    proposals: tuple[Candidate, ...]
    is_static: bool = False

    taken: frozenset[str] = frozenset()
    """Digests of candidates that were found, too, but are another job's to measure."""

    shared_with: frozenset[str] = frozenset()
    """Names of other running jobs that search the workload in this scope."""


@dataclass(frozen=True, slots=True)
class SearchFailed:
    """A search crashed or took too long."""

    workload: str
    message: str


@dataclass(frozen=True, slots=True)
class Learnt:
    """A newer cost model was trained."""

    builder_sec: float
    """Processor time that training took [s]."""


@dataclass(frozen=True, slots=True)
class LearningFailed:
    """Training failed: the cost model is unchanged."""

    message: str


@dataclass(frozen=True, slots=True)
class Built:
    """A candidate is built."""

    workload: str
    digest: str
    build: BuiltCandidate
    builder_sec: float = 0.0
    """Processor time that it took [s]."""


@dataclass(frozen=True, slots=True)
class BuildFailed:
    """A build failed. Answered by Store."""

    workload: str
    digest: str
    kind: ErrorKind
    message: str


@dataclass(frozen=True, slots=True)
class BaselineBuilt:
    """An unscheduled program is built."""

    workload: str
    artifact: Artifact


@dataclass(frozen=True, slots=True)
class BaselinesWanted:
    """These unscheduled programs are built and can be timed. Answered by Measure."""

    workloads: Sequence[str]


@dataclass(frozen=True, slots=True)
class BatchWanted:
    """The built ones of these candidates can be measured. Answered by Measure, or the next step if none was built."""

    workload: str
    digests: Sequence[str]


@dataclass(frozen=True, slots=True)
class RunOffWanted:
    """The search is over: compare the best few of a workload once more. Answered by Check and Measure."""

    workload: str


@dataclass(frozen=True, slots=True)
class Measured:
    """A device has finished a trial. Answered by Store."""

    batch: int
    device_name: str
    measurement: Measurement


@dataclass(frozen=True, slots=True)
class MeasureEnded:
    """A device has finished a Measure. Answered by Measure for disturbed candidates, by Check, or nothing."""

    batch: int
    device_name: str
    wall_sec: float
    """Time since its start, without waits for a lost device [s]."""

    is_suspected: bool = False
    """True if so many consecutive candidates crashed that the rest was not sent: the device has to be probed first."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A record is in the library."""

    result: Store
    record_id: int
    at_sec: float
    """The reference outputs of a workload are available."""


@dataclass(frozen=True, slots=True)
class ReferenceMade:
    """The reference outputs of a workload are known."""

    workload: str
    weakness: Weakness | None


@dataclass(frozen=True, slots=True)
class ReferenceFailed:
    """No candidate of a workload can be checked."""

    workload: str
    message: str


class Purpose(enum.Enum):
    """Purpose of a measurement."""

    BASELINES = "baselines"
    """Unscheduled programs, before the search."""

    SEARCH = "search"
    RUN_OFF = "run-off"


class Verdict(enum.Enum):
    """The result of a check."""

    RIGHT = "right"
    WRONG = "wrong"
    LOST = "lost"
    """The device went away during the check."""

    NOT_CHECKED = "not checked"
    """There is nothing to compare with."""

    NOT_PROVEN = "not proven"
    """The output of a single call is right, but the claimed time is refuted."""


@dataclass(frozen=True, slots=True)
class Checked:
    """A candidate's numbers were compared. Answered by MarkChecked or MarkWrong, and by the next step."""

    workload: str
    digest: str
    verdict: Verdict
    message: str = ""
    proof: Proof | None = None
    """Proof of its time; None if no proof was attempted."""


@dataclass(frozen=True, slots=True)
class ProofWanted:
    """The search is over: prove the time of a workload's best schedule unless it is proven. Answered by Prove."""

    workload: str


@dataclass(frozen=True, slots=True)
class Proven:
    """A proof of a known schedule has ended. Answered by KeepProof; a refutation also by Prove for the next best."""

    wanted: Prove
    proof: Proof


Event = (
    RoundWanted
    | AheadWanted
    | EndWanted
    | StaticWanted
    | Found
    | Proposed
    | SearchFailed
    | Learnt
    | LearningFailed
    | Built
    | BuildFailed
    | BaselineBuilt
    | BaselinesWanted
    | BatchWanted
    | RunOffWanted
    | Measured
    | MeasureEnded
    | ReferenceMade
    | ReferenceFailed
    | Checked
    | ProofWanted
    | Proven
)


@dataclass(frozen=True, slots=True)
class Learn:
    """To the pool: fit the cost model. The next Propose uses it."""

    observations: Sequence[Observation]


@dataclass(frozen=True, slots=True)
class Propose:
    """To the pool: search. Answered with Found or SearchFailed; for a static schedule with Proposed."""

    workload: str
    count: int
    seed: int
    records: tuple[Observation, ...]
    known: frozenset[str]
    """Digests that are under way."""

    replayed: tuple[str, ...] = ()
    """Traces that a replay proposes, in this order."""

    is_static: bool = False
    """Only the schedule that the workload's space chooses without a trial is wanted."""

    seeds: tuple[Observation, ...] = ()
    """Best schedules of other workloads and devices."""

    ahead: int = 0
    """Number of additional candidates for later, as far as the search examines them anyway."""

    shared_with: frozenset[str] = frozenset()
    """Names of other jobs that share the search."""


@dataclass(frozen=True, slots=True)
class Claim:
    """To the library: claim candidates. Answered with Proposed, without candidates of other jobs."""

    workload: str
    proposals: tuple[Candidate, ...]
    worth: float = 0.0
    """Of the batch, in the prioritizer's currency."""


@dataclass(frozen=True, slots=True)
class Build:
    """To the pool: build candidates. Each is answered with Built or BuildFailed."""

    workload: str
    proposals: tuple[Candidate, ...]
    shared_with: frozenset[str] = frozenset()
    """Names of other jobs that share them."""


@dataclass(frozen=True, slots=True)
class Measure:
    """To a device: measure these, in order, after a pause. Answered with Measured for each, then MeasureEnded."""

    batch: int
    artifacts: tuple[Artifact, ...]
    trials: tuple[Trial, ...]
    pause_sec: float = 0.0


@dataclass(frozen=True, slots=True)
class Store:
    """To the library: store a result. Answered with Stored, before anything else happens to it."""

    candidate: Candidate
    device_name: str
    measurement: Measurement
    purpose: Purpose = Purpose.SEARCH

    @property
    def is_checked(self) -> bool | None:
        """True if its candidate's numbers were found right; None: they were not compared yet."""
        return True if self.purpose is Purpose.RUN_OFF and not self.candidate.is_baseline else None


@dataclass(frozen=True, slots=True)
class CheckOutputs:
    """To a device: compare a candidate's numbers with the unscheduled program's. Answered with Checked."""

    candidate: Candidate
    claimed_sec: float = 0.0
    """Time to prove once the output is right [s]; 0 for no proof."""


@dataclass(frozen=True, slots=True)
class Prove:
    """To a device: prove a checked schedule. Answered with Proven, unless the device is lost or the build fails."""

    workload: str
    trace_json: str
    claimed_sec: float
    build: BuiltCandidate | None = None
    """Build in this job; None if it has to be built."""


@dataclass(frozen=True, slots=True)
class KeepProof:
    """To the library: store the result of a proof. A refuted schedule must never be used."""

    workload: str
    trace_json: str
    proof: Proof


@dataclass(frozen=True, slots=True)
class MarkChecked:
    """To the library: a candidate computes the right numbers."""

    record_id: int


@dataclass(frozen=True, slots=True)
class MarkWrong:
    """To the library: a candidate must never be used."""

    record_id: int
    message: str


@dataclass(frozen=True, slots=True)
class Notice:
    """Show the user an important message."""

    news: News


Effect = (
    Learn
    | Propose
    | Claim
    | Build
    | Measure
    | Store
    | CheckOutputs
    | Prove
    | MarkChecked
    | MarkWrong
    | KeepProof
    | Notice
)
