"""Trials and measurements: the values that clients, optimizers and the library share."""

from __future__ import annotations

import enum
import math
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fleet.base.quantities import time_text
from fleet.base.text import sanitize
from fleet.errors import ErrorKind as ErrorKind
from fleet.errors import InvalidRequest

_SHOWN_CHARS = 200
"""Maximum length of an error's text in a `repr`."""

NO_VERDICT = frozenset({ErrorKind.LEASE_ENDED, ErrorKind.DEVICE_FAULTED, ErrorKind.ARTIFACT_MISSING})
"""Errors that say nothing about the candidate: it may be tried again."""

ABSURD_SEC = 1e7
"""No kernel runs for four months; a clock that was set, or a wrong unit, says so."""

POISON = frozenset({ErrorKind.CRASHED, ErrorKind.DEVICE_FAULTED, ErrorKind.POISONED})
"""A candidate that did this to one device is not sent to another unasked."""


class DisturbanceKind(enum.StrEnum):
    """Kind of disturbance. The names are those of fleet.v1.DisturbanceKind without their prefix."""

    REFERENCE_DRIFT = "REFERENCE_DRIFT"
    """The reference kernel took longer than usual, which casts doubt on everything measured since it last ran."""

    CONTENTION = "CONTENTION"
    THROTTLED = "THROTTLED"
    FOREIGN_PROCESSES = "FOREIGN_PROCESSES"
    GOVERNOR_CHANGED = "GOVERNOR_CHANGED"
    CLOCK_FELL = "CLOCK_FELL"
    STILL_WARM = "STILL_WARM"
    OTHER = "OTHER"
    """A kind from a newer peer, or from a record that kept only words."""


@dataclass(frozen=True, slots=True)
class Disturbance:
    """Condition that casts doubt on a time."""

    kind: DisturbanceKind
    text: str
    """Readable text: "throttled: thermal"."""


def disturbances_in(provenance: Mapping[str, object]) -> tuple[Disturbance, ...]:
    """Read the disturbances of a provenance; older records hold plain sentences."""
    found = provenance.get("disturbances", ())
    return tuple(map(_read_disturbance, found)) if isinstance(found, list | tuple) else ()


def _read_disturbance(found: object) -> Disturbance:
    if not isinstance(found, Mapping):
        return Disturbance(DisturbanceKind.OTHER, str(found))
    kind, text = (str(found.get(key, "")) for key in ("kind", "text"))
    return Disturbance(DisturbanceKind(kind) if kind in _DISTURBANCE_KINDS else DisturbanceKind.OTHER, text)


_DISTURBANCE_KINDS = frozenset(DisturbanceKind)


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Shape and element type of an array."""

    shape: tuple[int, ...]
    dtype: str
    """DLPack name: "float32", "int8", "bool"."""

    is_output: bool = False
    """The function writes it: allocated zeroed instead of filled with random numbers."""

    @property
    def size_bytes(self) -> int:
        """Size of its content [bytes]."""
        bits = re.search(r"\d+", self.dtype)
        return math.ceil(math.prod(self.shape) * (int(bits[0]) if bits else 8) / 8)

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"


@dataclass(frozen=True, slots=True)
class Tensor:
    """An array as its bytes."""

    spec: TensorSpec
    content: bytes
    """Row-major, little endian, no padding; its length is exactly that of `spec`."""


Argument = TensorSpec | Tensor | int | float
"""An argument of a function: a `TensorSpec` is allocated on the device, a `Tensor` is sent there."""


MOST_RUNS = 100_000
"""Timed runs per candidate. Each adds a time to the answer: 0.8 MB in all."""


def check_runs(name: str, count: int) -> None:
    """Raise InvalidRequest if a number of timed runs exceeds the limit."""
    if count > MOST_RUNS:
        raise InvalidRequest(f"{name}={count}: one measurement has at most {MOST_RUNS} timed runs; ask for fewer")


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluator:
    """Parameters of timing one candidate. Names and meaning are those of TVM's time_evaluator where it has them, except
    that flushing is called alike everywhere here: `flush_bytes` is its `cache_flush_bytes`."""

    number: int = 1
    """Runs averaged into one repeat, at least."""

    repeat: int = 1
    """Repeats, at least."""

    min_repeat_ms: int = 0
    """`number` grows until a repeat lasts this long [ms]."""

    limit_zero_time_iterations: int = 100
    cooldown_interval_ms: int = 0
    repeats_to_cooldown: int = 1
    flush_bytes: int = 0
    """Write through this much before each run, so that caches are cold [bytes]; 0 = do not."""

    flush_cache: bool = False
    """Flush all arguments but the first from the CPU's cache before each run."""

    max_repeat: int = 0
    """Adaptive: repeat up to this often while the spread is above `spread_target`; 0 = not adaptive."""

    spread_target: float = 0.03
    """Adaptive: enough when (max - min) / median of the repeats is at most this."""

    give_up_above_sec: float = 0.0
    """Adaptive: stop after the first repeat slower than this [s]; 0 = never."""

    look_runs: int = 0
    """Adaptive: number of runs after the first that decide, before any repeat, whether to continue; 0 = no such look.
    Kernels shorter than half a millisecond run several times in one of these."""

    hopeless_above_sec: float = 0.0
    """Stop after the first run of the look if it is slower than this [s], twice if it is short; 0 = never."""

    behind_above_sec: float = 0.0
    """Stop after the look if all of its runs are slower than this [s]; 0 = never."""

    cool_below_c: float = 0.0
    """Wait until the device is at most this warm before the first run [degC]; 0 = do not wait."""

    cool_timeout_ms: int = 30_000
    """Longest such wait."""

    f_preproc: str = ""
    """Global function of the runtime, called with the arguments before each run, as in TVM. Cannot be combined with
    `flush_cache`, which is one of these."""

    def __post_init__(self) -> None:
        """Raises:
        InvalidRequest: a number of runs exceeds MOST_RUNS.
        """
        for name in ("repeat", "max_repeat", "look_runs"):
            check_runs(name, getattr(self, name))


TIMING = Evaluator(repeat=5, min_repeat_ms=50)
"""Default evaluator of `fleet time` and `module.time`: repeats that show whether they agree."""


class Stop(enum.StrEnum):
    """Why timing a candidate stopped early. The names are those of fleet.v1.Stop without their prefix."""

    HOPELESS = "HOPELESS"
    """Slower than `hopeless_above_sec` at once."""

    BEHIND = "BEHIND"
    """Slower than `behind_above_sec` in every run of the look."""

    SLOW = "SLOW"
    """Slower than `give_up_above_sec` in the first repeat."""


class ModuleKind(enum.StrEnum):
    """Calling convention of an artifact's functions."""

    FUNCTIONS = "FUNCTIONS"
    """All arguments are passed, outputs last, and written into."""

    RELAX_VM = "RELAX_VM"
    """Inputs are passed, outputs returned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Clocks:
    """Separate clocks of one candidate [s]."""

    wait_sec: float = 0.0
    load_sec: float = 0.0
    run_sec: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorCall:
    """One call that the Relax VM makes, over some runs. The time of calls within it is theirs, not its."""

    function: str
    """A compiled function, or one of the VM's own: "vm.builtin.alloc_tensor"."""

    min_sec: float
    median_sec: float


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorProfile:
    """Time per operator of a Relax VM function."""

    calls: tuple[OperatorCall, ...]
    """Every call of one run, in the order in which they begin."""

    run_secs: tuple[float, ...]
    """Each instrumented run as a whole [s]; the instrument makes it longer than the runs that are timed without."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """The result of one candidate on one device: times, or an error."""

    candidate_id: str
    run_secs: tuple[float, ...] = ()
    """Seconds per run, one entry per repeat; empty when `error` is set."""

    error: ErrorKind | None = None
    error_message: str = ""
    signal: int = 0
    """Signal that ended the worker, with CRASHED."""

    clocks: Clocks = field(default_factory=Clocks)
    provenance: dict[str, object] = field(default_factory=dict)
    """State of the device around the measurement, JSON-ready: before, after, worker_pid, epoch, disturbances, ..."""

    time_source: str = "wall"
    """ "wall", "event" (the device's own timestamps) or "cycles" (counted by the device)."""

    run_cycles: tuple[int, ...] = ()
    """Cycles per run, one entry per repeat, if the time source is "cycles"."""

    stopped: Stop | None = None
    """Why `run_secs` holds fewer times than asked for, of shorter repeats; None: it holds all, or the agent is an older
    one, which does not say."""

    operators: OperatorProfile | None = None
    """Times of operators, if `operator_runs` was set; None from an agent or a runtime that cannot measure them."""

    def __repr__(self) -> str:
        if self.error is not None:
            return f"<Measurement {self.error}: {sanitize(self.error_message, _SHOWN_CHARS)}>"
        times = f"{time_text(self.median_sec)}, median of {len(self.run_secs)}" if self.run_secs else "without times"
        doubts = ", ".join(sorted({found.kind for found in self.disturbances}))
        return f"<Measurement {times}{f', disturbed by {doubts}' if doubts else ''}>"

    @property
    def disturbances(self) -> tuple[Disturbance, ...]:
        """Disturbances that cast doubt on the times; empty if none is known."""
        return disturbances_in(self.provenance)

    @property
    def median_sec(self) -> float:
        """Median of the repeats [s]; infinite when there is none."""
        return statistics.median(self.run_secs) if self.run_secs else math.inf


@dataclass(slots=True, kw_only=True)
class RepeatCount:
    """Measurements repeated because something disturbed the first, and their budget."""

    count: int = 0
    device_sec: float = 0.0
    """Device time that they took [s]."""

    budget_sec: float = 0.0
    """Device time that they may take in this job, as far as it can be foreseen [s]."""

    is_spent: bool = False
    """A disturbed time was kept because the budget was spent."""


def spread(run_secs: Sequence[float]) -> float:
    """Return (max - min) / median of some times."""
    middle = statistics.median(run_secs)
    return (max(run_secs) - min(run_secs)) / middle if middle > 0 else math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One candidate to be measured: an artifact, a function of it, and how to time it."""

    candidate_id: str
    artifact_digest: str
    function: str = "main"
    args: tuple[Argument, ...] = ()
    evaluator: Evaluator = field(default_factory=Evaluator)
    timeout_sec: float = 10.0
    """The worker is killed if loading and running take longer."""

    module_kind: ModuleKind = ModuleKind.FUNCTIONS
    ends_batch: bool = False
    """Nothing follows soon, so the agent runs its reference kernel after this one even if it is not due."""

    operator_runs: int = 0
    """RELAX_VM: number of additional runs after timing, in which each call is timed in its place."""

    allow_poison: bool = False
    """Run it even if a device faulted while it ran before; otherwise its error is POISONED."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One run of a function, for its results."""

    artifact_digest: str
    function: str = "main"
    args: tuple[Argument, ...] = ()
    timeout_sec: float = 60.0
    """The worker is killed when it takes longer."""

    module_kind: ModuleKind = ModuleKind.FUNCTIONS
    is_apart: bool = False
    """Run in a fresh worker."""

    allow_poison: bool = False
    """See Trial."""
