"""Reports of a tuning run: its progress while it runs, and its final report."""

from __future__ import annotations

import enum
from dataclasses import asdict, dataclass, field

from fleet.base.quantities import count_text
from fleet.checking.weakness import Weakness
from fleet.domain.decisions import Reason
from fleet.domain.jobs import Remaining, share_done
from fleet.domain.measuring import RepeatCount


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadReport:
    """One workload at the end of a job."""

    name: str
    """TVM's name of it."""

    operator: str
    """A name for people: "conv2d 3x3 64->128 56x56"."""

    weight: int
    trials: int
    """Trials in this job."""

    trials_before: int
    untuned_us: float | None
    """Time of the unscheduled program [us]; None if it is unknown."""

    static_us: float | None
    """Time with the static schedule; None: it was not measured in this job."""

    best_us: float | None
    """Best time with checked numbers, from this and earlier jobs [us]; None: none found yet."""

    gflops: float | None
    speedup: float | None
    """Speedup of the program that the model gets: 1 if it keeps the unscheduled one."""

    uses_schedule: bool
    """False: no schedule is known, or none that is faster than the unscheduled program."""

    weakness: Weakness | None
    """Why the check of its numbers says little; None: it says enough, or there was none."""

    errors: dict[str, int]
    note: str
    """Why it got no (more) trials, or empty."""

    is_untuned_above: bool = False
    """The unscheduled program was stopped at `untuned_us`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionReport:
    """One schedule that ran in the model."""

    alone_us: float
    in_place_us: float | None
    """Mean time of its calls in the model; None: it did not come to run there."""

    is_static: bool
    is_chosen: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedReport:
    """One workload with best schedules that were compared in the model."""

    name: str
    operator: str
    is_slower_in_place: bool
    """Even the chosen one takes clearly longer in the model than alone."""

    options: tuple[OptionReport, ...]
    """The fastest alone first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RatioReport:
    """Ratio of two times measured in turns, with its 99 % confidence interval."""

    ratio: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelReport:
    """The whole model at the end of a job."""

    untuned_ms: float | None = None
    """Time of one run [ms]; None if it was stopped or failed."""

    untuned_above_ms: float | None = None
    """Time at which the untuned model was stopped [ms]: ten times that with static schedules. None if it was not."""

    untuned_problem: str = ""
    """Reason why the untuned model did not run, such as lack of memory; empty if it ran."""

    static_ms: float | None = None
    """Time with static schedules."""

    tuned_ms: float | None = None
    alone_ms: float | None = None
    """Time with the schedules that are fastest alone, if others are faster in the model; None: they are the same,
    or were not compared there.
    """

    keeps_static: bool = False
    """The others are the static ones: `tuned_ms` is their time, and later builds of the model have them."""

    onnxruntime_ms: float | None = None
    """None when ONNX Runtime is not installed, the model is not ONNX, or the device is another machine."""

    reference_ms: float | None = None
    """Time of the engine in `reference`; None where the device is another machine."""

    rounds: int = 0
    """Number of rounds in which each program ran."""

    is_static: bool = False
    """The tuned model is the same program as the model with static schedules: one run counts for both."""

    is_untuned_static: bool = False
    """The untuned model is the same program as the model with static schedules."""

    against_static: RatioReport | None = None
    """Time of the tuned model divided by that with static schedules; None for the same program or too few rounds."""

    against_engine: RatioReport | None = None
    """Time of the tuned model divided by the engine's; None if the engine did not run here, or for too few rounds."""

    is_slower: bool = False
    """The tuned model is significantly slower than with static schedules: use the static ones."""

    max_abs_error: float | None = None
    """Largest difference of the tuned model's outputs from the reference; None if there is no reference."""

    tolerance: float | None = None
    """Tolerance at the element with that difference. It follows from the lengths of sums, the types, `roundings`, and
    the error of the reference against float64 if that is known."""

    tolerance_by: str = "sums"
    """ "float64" if that error is known, else "sums"."""

    roundings: int = 0
    """Number of roundings to 8-bit codes on the way to an output; 0: the model is not quantized."""

    reference: str = ""
    """Engine of the reference:  "onnxruntime", "torch", "ai_edge_litert" or "untuned"."""

    weakness: Weakness | None = None
    """Why agreement with the reference says little; None: it says enough."""

    unchecked: str = ""
    """Reason why its answers were not compared; empty if they were."""

    is_right: bool = True
    """The tuned model's answers agree with the reference, by the same rule as in `fleet serve-check`."""

    message: str = ""
    """Difference of its answers from the reference's, and the reason; empty: they agree."""

    loop_nests: tuple[str, ...] = ()
    """Parts of the tuned model that nothing can schedule: functions, blocks of them, operators."""

    in_place: tuple[PlacedReport, ...] = ()
    """Workloads with best schedules that were compared in the model, the costliest first."""

    in_place_sec: float = 0.0
    """Time of that [s]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndReport:
    """A search that ended before its trials and minutes were used, since its rest should gain too little."""

    trials_asked: int
    """Number of requested trials; 0: the time limits them."""

    gain_us: float
    """Expected gain of the next tenth of the budget [us of the model's latency]."""

    latency_us: float
    sentence: str
    """The same, for people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneReport:
    """Final report of `fleet tune`."""

    job: str
    title: str
    device: str
    device_model: str
    library: str
    trials: int
    wall_sec: float
    first_trial_sec: float | None
    last_record_sec: float | None
    """From the start of the process until the last record was stored [s]."""

    workloads: tuple[WorkloadReport, ...]
    model: ModelReport | None
    repeats: RepeatCount = field(default_factory=RepeatCount)
    ended: EndReport | None = None
    """Reason for an early end of the search; None: it used its budget."""

    charged_sec: float = 0.0
    """Device time that the job is charged [s]: of trials on a workload that n jobs searched, 1/n."""

    target_json: str = ""
    """Target of the artifacts; empty in reports of older versions."""

    def __repr__(self) -> str:
        ran = (
            f"{self.model.tuned_ms:.3g} ms"
            if self.model and self.model.tuned_ms
            else f"{len(self.workloads)} workloads"
        )
        return f"<{type(self).__name__} {self.job}: {self.title} on {self.device_model}, {self.trials} trials, {ran}>"

    def to_json(self) -> dict[str, object]:
        """Return plain values, with the keys that scripts rely on."""
        return {**asdict(self, dict_factory=_plain), "repeated": self.repeats.count}


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionReport:
    """A batch that the prioritizer wanted next."""

    operator: str
    count: int
    reason: Reason
    sentence: str
    """The reason, for people."""

    def __str__(self) -> str:
        return f"{count_text(self.count, 'candidate')} of {self.operator}: {self.sentence}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressReport:
    """Progress of a job, as stored in the library."""

    selector: str = ""
    """Kind of board."""

    builder_count: int = 0
    """Builders of its optimizer; 0: not known."""

    activity: str = ""
    device: str = ""
    snapshot: str = ""
    """Digest of the shared cost model's snapshot that it searches with; empty: the one that comes with the package."""

    trials_done: int = 0
    """Trials of the job, including earlier runs of it."""

    trials_total: int = 0
    """0: as many as fit into its time."""

    trials_failed: int = 0
    """Since the job last went on."""

    repeats: RepeatCount = field(default_factory=RepeatCount)
    charged_sec: float = 0.0
    """Device time that the job is charged so far [s]: of trials on a workload that n jobs search, 1/n."""

    elapsed_sec: float = 0.0
    """Since it last went on [s]."""

    search_sec: float | None = None
    """The value of `elapsed_sec` at which its search ends whatever it has found; None: no time was named."""

    left: Remaining | None = None
    """Remaining time of its search, if it uses all of its trials or time; None: not known yet, or not searching."""

    rest_share: float | None = None
    """Share of the latency that the next tenth of its budget should gain; None: not known yet."""

    workloads: tuple[WorkloadReport, ...] = ()
    decisions: tuple[DecisionReport, ...] = ()
    """The newest, oldest first."""

    plan: tuple[DecisionReport, ...] = ()
    """The batches that would be next, the most valuable first."""

    notices: tuple[str, ...] = ()
    """The newest messages that its user should not miss, oldest first."""

    @property
    def share(self) -> float:
        """Progress of the search, from 0 to 1: the larger of the shares of trials and time."""
        return share_done(self.trials_done, self.trials_total, elapsed_sec=self.elapsed_sec, search_sec=self.search_sec)


def _plain(fields: list[tuple[str, object]]) -> dict[str, object]:
    return {name: value.value if isinstance(value, enum.Enum) else value for name, value in fields}
