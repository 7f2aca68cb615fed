"""Times built candidates in a process of their own, one at a time, and repeats disturbed times."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.processes import Process, ProcessFailed, python
from fleet.artifacts.artifact import Artifact

_RUN_TIMEOUT_SEC = 30.0
_ATTEMPTS = 3
"""So often a candidate is timed while it is disturbed, as a job does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Measured times of a candidate."""

    run_secs: tuple[float, ...] = ()
    """By repeat; none if it failed."""

    is_disturbed: bool = False
    """Other work was running meanwhile."""

    @property
    def best_sec(self) -> float:
        """Least time; infinite if it failed."""
        return min(self.run_secs, default=math.inf)

    def __add__(self, other: Times) -> Times:
        """Join two measurements of a candidate; a disturbed one counts only if there is no other."""
        if self.run_secs and other.run_secs and self.is_disturbed != other.is_disturbed:
            return other if self.is_disturbed else self
        is_disturbed = self.is_disturbed or other.is_disturbed
        return Times(run_secs=self.run_secs + other.run_secs, is_disturbed=is_disturbed)


class Timer:
    """The process that times candidates; a new one after a crash. One caller at a time."""

    def __init__(self, prefix: Sequence[str], log_path: Path) -> None:
        self._command = [*prefix, *python("benchmarks.cost_data.timing")]
        self._log_path = log_path
        self._process: Process | None = None
        self.lock = threading.Lock()

    def __call__(self, artifact: Artifact, best_sec: float) -> list[float]:
        """Return seconds per run by repeat; none if it failed."""
        return list(self.time(artifact, best_sec).run_secs)

    def time_calmly(self, artifact: Artifact, best_sec: float) -> Times:
        """Time a candidate until nothing disturbs it, or three times."""
        found = Times()
        for _ in range(_ATTEMPTS):
            found += self.time(artifact, best_sec)
            if not found.is_disturbed:
                break
        return found

    def time(self, artifact: Artifact, best_sec: float) -> Times:
        """Time a candidate once; briefly if it is far slower than the best."""
        if self._process is None:
            self._process = Process(self._command, self._log_path, environment={"TVM_NUM_THREADS": "1"}).__enter__()
        args = [[list(spec.shape), spec.dtype, spec.is_output] for spec in artifact.args]
        request = {"path": str(artifact.path), "digest": artifact.digest, "args": args}
        try:
            best = best_sec if math.isfinite(best_sec) else None
            answer = self._process.ask({**request, "best_sec": best}, _RUN_TIMEOUT_SEC)
        except ProcessFailed:
            self.close()
            return Times()
        return Times(run_secs=tuple(answer.get("run_secs", ())), is_disturbed=answer.get("is_disturbed", False))

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.__exit__(None, None, None)
            self._process = None
