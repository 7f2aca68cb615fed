"""What travels through the tuning loop, and the conditions that all of a job's candidates share."""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

from fleet.artifacts import Artifact
from fleet.errors import BuildError
from fleet.library import Record
from fleet.measuring import Evaluator, Measurement
from fleet.optimizer.build_task import BuildTask, BuiltCandidate
from fleet.optimizer.progress import WorkloadProgress

T = TypeVar("T")


class Pool(Protocol):
    """Where search and builds run: an executor whose tasks have a time limit each."""

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]: ...

    def submit_within(self, timeout_sec: float, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """What every record of a job has in common."""

    job_name: str
    target_json: str
    device_model: str
    device_fingerprint: str
    tvm_version: str
    seed: int
    batch_size: int
    search_threads: int
    """Cores that one search may use."""

    enough: int
    """Trials of one workload over all jobs after which it is left alone."""

    evaluator: Evaluator
    trial_timeout_sec: float
    artifact_dir: Path
    started_at: float
    """time.monotonic() of the start of the process [s]."""

    def like_trials(self, evaluator: Evaluator) -> Evaluator:
        """Return an evaluator that rests and flushes as that of the candidates does: only such times compare."""
        asked = self.evaluator
        return replace(
            evaluator,
            cooldown_interval_ms=asked.cooldown_interval_ms,
            repeats_to_cooldown=asked.repeats_to_cooldown,
            cool_below_c=asked.cool_below_c,
            cool_timeout_ms=asked.cool_timeout_ms,
            cache_flush_bytes=asked.cache_flush_bytes,
            flush_cpu_cache=asked.flush_cpu_cache,
            f_preproc=asked.f_preproc,
        )

    def build_task(self, item: WorkloadProgress, trace_json: str | None) -> BuildTask:
        """Return the build of one candidate; `trace_json` None: of the unscheduled program."""
        return BuildTask(
            mod_json=item.workload.mod_json,
            target_json=self.target_json,
            trace_json=trace_json,
            out_dir=str(self.artifact_dir),
        )


@dataclass(slots=True, kw_only=True)
class Candidate:
    """One proposal on its way through the loop."""

    trace_json: str
    digest: str
    built: BuiltCandidate | None = None
    measurement: Measurement | None = None
    record: Record | None = None
    is_checked: bool = False
    """Its numbers were compared with the unscheduled program's, and are right."""

    @property
    def artifact(self) -> Artifact:
        """What was built.

        Raises:
            BuildError: nothing was.
        """
        if self.built is None:
            raise BuildError(f"candidate {self.digest} has no artifact")
        return self.built.artifact

    @property
    def median_sec(self) -> float:
        """Median of its times [s]; infinite while or because there is none."""
        return self.measurement.median_sec if self.measurement else math.inf
