"""Conditions shared by all candidates of a job."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from fleet.domain.jobs import DEFAULT_STRATEGY
from fleet.domain.measuring import Evaluator
from fleet.domain.scope import RecordScope


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """Common columns of a job's records."""

    job_name: str
    scope: RecordScope
    since: datetime | None = None
    """Older records do not count. Aware."""

    device_fingerprint: str
    seed: int
    batch_size: int
    search_threads: int
    """Cores that one search may use."""

    shares_cores: bool = False
    """The device searches and builds, too, so a second of either is one of the device."""

    enough: int
    """Number of trials, over all jobs, after which a workload is finished."""

    strategy: str = DEFAULT_STRATEGY
    uses_model: bool = True
    """True if the cost model chooses among found candidates."""

    has_prior: bool = False
    """There is a model of such targets, so that the job needs no trees of its own."""

    target_sec: float | None = None
    """The job ends once its workloads together take this, weighted [s]; None: it has no target."""

    deadline_sec: float = math.inf
    """Deadline of its search, on the clock of `started_at` [s]."""

    priority: float = 1.0
    """Factor on its gains among the jobs of its account, > 0."""

    until_gain: float = 0.0
    """The job ends once a tenth of its budget should gain less than this share of its latency; 0: never."""

    is_bound_by_time: bool = False
    """It makes as many trials as fit into its time: nobody asked for a number of them."""

    evaluator: Evaluator
    trial_timeout_sec: float
    artifact_dir: Path
    started_at: float
    """time.monotonic() at the start of the process [s]."""

    def like_trials(self, evaluator: Evaluator) -> Evaluator:
        """Return an evaluator that pauses and flushes like the candidates' own, so that times compare."""
        asked = self.evaluator
        return replace(
            evaluator,
            cooldown_interval_ms=asked.cooldown_interval_ms,
            repeats_to_cooldown=asked.repeats_to_cooldown,
            cool_below_c=asked.cool_below_c,
            cool_timeout_ms=asked.cool_timeout_ms,
            flush_bytes=asked.flush_bytes,
            flush_cache=asked.flush_cache,
            f_preproc=asked.f_preproc,
        )
