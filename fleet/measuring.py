"""What is measured and what comes of it: the values that clients, optimizers and the library share."""

from __future__ import annotations

import enum
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field


class ErrorKind(enum.StrEnum):
    """Why a candidate has no time. The names are those of fleet.v1.ErrorKind without their prefix."""

    TIMEOUT = "TIMEOUT"
    CRASHED = "CRASHED"
    OUT_OF_MEMORY = "OUT_OF_MEMORY"
    OUT_OF_DISK = "OUT_OF_DISK"
    WRONG_OUTPUT = "WRONG_OUTPUT"
    LOAD_FAILED = "LOAD_FAILED"
    RUN_FAILED = "RUN_FAILED"
    BUILD_FAILED = "BUILD_FAILED"
    BUILD_TIMEOUT = "BUILD_TIMEOUT"
    BAD_ARGUMENTS = "BAD_ARGUMENTS"
    LEASE_ENDED = "LEASE_ENDED"
    DEVICE_FAULTED = "DEVICE_FAULTED"
    ARTIFACT_MISSING = "ARTIFACT_MISSING"


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Shape and element type of an array."""

    shape: tuple[int, ...]
    dtype: str
    """DLPack name: "float32", "int8", "bool"."""

    is_output: bool = False
    """The function writes it: allocated zeroed instead of filled with random numbers."""

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluator:
    """How to time one candidate. Names and meaning are those of TVM's time_evaluator where it has them."""

    number: int = 1
    """Runs averaged into one repeat, at least."""

    repeat: int = 1
    """Repeats, at least."""

    min_repeat_ms: int = 0
    """`number` grows until a repeat lasts this long [ms]."""

    limit_zero_time_iterations: int = 100
    cooldown_interval_ms: int = 0
    repeats_to_cooldown: int = 1
    cache_flush_bytes: int = 0

    flush_cpu_cache: bool = False
    """Flush all arguments but the first from the CPU's cache before each run."""

    max_repeat: int = 0
    """Adaptive: repeat up to this often while the spread is above `spread_target`; 0 = not adaptive."""

    spread_target: float = 0.03
    """Adaptive: enough when (max - min) / median of the repeats is at most this."""

    give_up_above_sec: float = 0.0
    """Adaptive: stop after the first repeat slower than this [s]; 0 = never."""

    cool_below_c: float = 0.0
    """Wait until the device is at most this warm before the first run [degC]; 0 = do not wait."""

    cool_timeout_ms: int = 30_000
    """Longest such wait."""

    f_preproc: str = ""
    """Global function of the runtime called with the arguments before each run, as TVM's of that name. Not together
    with `flush_cpu_cache`, which is one of these."""


class ModuleKind(enum.StrEnum):
    """How an artifact's functions are called."""

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
class Measurement:
    """What came of one candidate on one device: times, or an error."""

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
    """With "cycles": cycles per run, one entry per repeat."""

    @property
    def disturbances(self) -> tuple[str, ...]:
        """What speaks against the times, in words; empty: nothing that anybody knows of."""
        found = self.provenance.get("disturbances", ())
        return tuple(map(str, found)) if isinstance(found, list | tuple) else ()

    @property
    def median_sec(self) -> float:
        """Median of the repeats [s]; infinite when there is none."""
        return statistics.median(self.run_secs) if self.run_secs else math.inf


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
    args: tuple[TensorSpec, ...] = ()
    evaluator: Evaluator = field(default_factory=Evaluator)
    timeout_sec: float = 10.0
    """The worker is killed when loading and running take longer."""

    module_kind: ModuleKind = ModuleKind.FUNCTIONS
    ends_batch: bool = False
    """Nothing follows soon: the agent runs its reference kernel after this one, whether it is due or not."""
