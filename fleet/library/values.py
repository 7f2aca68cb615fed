"""Values stored in the library: jobs, workloads, records. Independent of the database.

A record is one verdict about one candidate on one device. Only the check of its output ever changes it: the same
candidate measured again leaves another record.
"""

from __future__ import annotations

import enum
import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from fleet.base.quantities import time_text
from fleet.base.text import sanitize
from fleet.domain.jobs import JobState as JobState
from fleet.domain.making import Making
from fleet.domain.measuring import ErrorKind, disturbances_in
from fleet.domain.observation import Observation
from fleet.domain.origin import Origin
from fleet.domain.scope import RecordScope
from fleet.domain.workload import StoredWorkload as StoredWorkload
from fleet.domain.workload import WorkloadOutline as WorkloadOutline


class RecordKind(enum.StrEnum):
    """Kind of the measured program."""

    CANDIDATE = "candidate"
    """A schedule that a search proposed: a trial."""

    STATIC = "static"
    """The schedule that a workload's space chooses by itself: no trial."""

    BASELINE = "baseline"
    """The original workload without any schedule: "untuned"."""

    IN_PLACE = "in place"
    """The schedule chosen by running the best few in the whole model, with its time there. Its provenance has the
    digests of all that were "compared"."""


SCHEDULED = (RecordKind.CANDIDATE, RecordKind.STATIC)
"""Kinds of records of scheduled programs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One tuning run."""

    name: str
    """ "jobs/<id>"."""

    title: str
    model_digest: str = ""
    conditions: Mapping[str, object] = field(default_factory=dict)
    """The options it was started with, JSON-ready: target, trials, seed, selector, ..."""

    tuner: str = ""
    state: JobState = JobState.RUNNING
    message: str = ""
    """Why it is in this state, for people."""

    holder: str = ""
    host: str = ""
    pid: int = 0
    trials_total: int = 0
    """Trials that it may do; 0 = unknown."""

    trials_done: int = 0
    """Candidates of this job with a verdict, failed ones included; static schedules are none."""

    trials_failed: int = 0
    started_at: datetime
    touched_at: datetime
    """Its last sign of life."""

    ended_at: datetime | None = None
    spec: Mapping[str, object] | None = None
    """Job specification for an optimizer, JSON-ready; None: it cannot be run again from the library alone."""

    owner: str = ""
    """Key id of the account that started or submitted it; empty if it has no key, or in jobs of older versions."""

    tags: tuple[str, ...] = ()
    """Its user's words to find it by, sorted."""

    priority: int = 0
    is_queued: bool = False
    """It was submitted: any optimizer of the library runs it."""

    optimizer: str = ""
    """Its optimizer or process."""

    is_stop_asked: bool = False
    progress: Mapping[str, object] | None = None
    """Last progress reported by its runner, JSON-ready."""

    report: Mapping[str, object] | None = None
    """Final report, JSON-ready."""

    reverted_at: datetime | None = None
    """Time from which its records are excluded from all use; None: they are used."""

    @property
    def trials_asked(self) -> int:
        """Number of requested trials; 0: as many as fit into its minutes, or unknown."""
        is_bound_by_time = self.conditions.get("minutes") is not None and self.conditions.get("trials") is None
        return 0 if is_bound_by_time else self.trials_total

    def __repr__(self) -> str:
        trials = f"{self.trials_done} of {self.trials_asked}" if self.trials_asked else f"{self.trials_done}"
        return f"<Job {self.name} {self.state}: {sanitize(self.title)}, {trials} trials>"


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerRecord:
    """A process that takes jobs from the library."""

    name: str
    """ "optimizers/<id>"."""

    tracker: str
    """The fleet that it measures on, as its user named it."""

    holder: str
    host: str
    pid: int
    started_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordProgram:
    """A record's scheduled program, as used by search and cost model. Written by `fleet.cost_model.feature_codec`."""

    program_hash: str = ""
    """Hash of the program in hexadecimal: two traces can make one program. Empty: not known."""

    feature_version: str
    """Version of the features' extraction."""

    stores: bytes
    """Features of each of its stores, packed."""

    @property
    def number(self) -> int | None:
        """Its hash; None: not known."""
        return int(self.program_hash, 16) if self.program_hash else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One verdict: `run_secs`, or an `error`. The library completes it where it is stored."""

    workload: str
    """`shash` of a workload that the library has."""

    scope: RecordScope
    trace_json: str = ""
    """The schedule as `Trace.as_json` gives it, decisions included; empty for a baseline."""

    run_secs: tuple[float, ...] = ()
    """Seconds per run, every repeat."""

    error: ErrorKind | None = None
    error_message: str = ""
    job_name: str = ""
    device_name: str = ""
    """ "devices/<id>"."""

    device_fingerprint: str = ""
    artifact_digest: str = ""
    kind: RecordKind = RecordKind.CANDIDATE
    provenance: Mapping[str, object] = field(default_factory=dict)
    """State of the device around the measurement, or where the record was imported from; JSON-ready."""

    checked: bool | None = None
    """Output compared with the unscheduled program: equal, wrong, or not compared yet."""

    created_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    """With a time zone."""

    uid: str = ""
    """Unique id: of two records with one uid the first is kept, so a store may be repeated; empty = generated."""

    program: RecordProgram | None = None
    """Only for storing; `Library.memory` reads it."""

    environment: Mapping[str, object] | None = None
    """Only for storing: see `fleet.domain.environment`. None: not known."""

    making: Making | None = None
    """Only for storing; `Library.makings` reads it. None: not known."""

    id: int = 0
    """Number in the library; 0 until it is stored."""

    trace_digest: str = ""
    """`fleet.domain.keys.trace_digest` of the trace; empty until it is stored."""

    is_proven: bool | None = None
    """True if its time is proven (see `fleet.domain.proving`), False if it is refuted, None without a valid proof."""

    def __repr__(self) -> str:
        verdict, model = self.error or time_text(self.median_sec), self.scope.device_model or "any device"
        return f"<Record {self.id}: {verdict}, {self.kind} of {self.workload} on {sanitize(model)}>"

    @property
    def is_static(self) -> bool:
        """True if it is a record of the static schedule, which the workload's space chooses without trials."""
        return self.kind is RecordKind.STATIC

    @property
    def needs_proof(self) -> bool:
        """True if the schedule was chosen by its time, and that time is not proven."""
        return not self.is_static and not self.is_proven

    @property
    def median_sec(self) -> float:
        """Median of the repeats [s]; infinite for a failed one."""
        return math.inf if self.error or not self.run_secs else statistics.median(self.run_secs)

    def observation(self, program: RecordProgram | None = None) -> Observation:
        """Return its result for searches and the cost model."""
        return Observation(
            workload=self.workload,
            trace_json=self.trace_json,
            run_sec=self.median_sec,
            origin=Origin.of_record(self.provenance, self.trace_json),
            program=None if program is None else program.number,
            stores=b"" if program is None else program.stores,
            is_disturbed=bool(disturbances_in(self.provenance)),
            record_id=self.id,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedTrace:
    """The parts of a record that other programs than ours can use."""

    target_json: str
    trace_json: str
    run_secs: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NewSnapshot:
    """A trained cost model, ready to be stored."""

    content: bytes
    feature_version: str
    """Version of the features that it was trained on, and predicts from."""

    record_count: int
    """Samples that it was trained on."""

    workloads: Mapping[str, int]
    """Samples of each workload, by `shash`."""

    last_record_id: int
    """Newest record in its data, whether it was trained on or held out."""

    metrics: Mapping[str, object] = field(default_factory=dict)
    """Quality of its ranking; JSON-ready."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredSnapshot(NewSnapshot):
    """A trained cost model, as stored."""

    digest: str
    """ "sha256:<hex>" of its content."""

    made_at: datetime
    published_at: datetime | None
    """Time of publication; None: it ranked worse than its predecessor, or could not be compared, and is not used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRun:
    """Latency of a whole model, before and after a job."""

    job_name: str
    untuned_ms: float | None = None
    tuned_ms: float | None = None
    onnxruntime_ms: float | None = None
    max_abs_error: float | None = None
    """Largest difference of any output from the reference."""

    created_at: datetime | None = None
    """Time with a time zone; None = now. A job has one run per time, so a store may be repeated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadSummary:
    """Results of one job for one workload on one device model."""

    workload: StoredWorkload
    device_model: str
    """Empty: nothing was measured yet."""

    weight: float
    """Number of its calls in the model."""

    trials: int
    errors: Mapping[ErrorKind, int]
    untuned_sec: float | None
    best_sec: float | None
    """Best time of its own trials and of this scope's records at its start, as `Library.best` chooses [s]."""

    known_sec: float | None = None
    """Best time of this scope in the library before the job began [s]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Charges:
    """Device time that a job is charged."""

    device_sec: float
    newest: int
    """Largest id of a record that is part of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSummary:
    """A job with its results."""

    job: Job
    workloads: tuple[WorkloadSummary, ...]
    """Results by device model, in the order of their first measurement and of the job's workloads."""

    model_runs: tuple[ModelRun, ...]

    def __repr__(self) -> str:
        title = sanitize(self.job.title)
        return f"<JobSummary {self.job.name} {self.job.state}: {title}, {len(self.workloads)} workloads>"
