"""Times built candidates, one JSON line each: the process that runs them, so that a crash costs one candidate.

    {"path": "...", "digest": "...", "args": [[[64, 64], "float32", false], ...], "best_sec": 0.001}

is answered by {"run_secs": [...], "is_disturbed": false}, or {"error": "..."}. It uses the runtime of device agents,
without an agent, and calls a time disturbed as an agent would: the thread waited for a processor.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from dataclasses import replace
from pathlib import Path

from device_agents.measuring.contention import find_contention, waited_sec_by_thread
from device_agents.runtimes.contract import CandidateFailed
from device_agents.runtimes.tvm import TvmRuntime
from fleet.domain.measuring import Evaluator, TensorSpec, Trial

_GIVE_UP = 6.0
"""Factor over the best time beyond which one repeat is exact enough."""

_EVALUATOR = Evaluator(number=1, repeat=6, min_repeat_ms=2)
_FIRST = Evaluator(number=1, repeat=2, min_repeat_ms=1)


def main() -> None:
    """Answer requests until stdin ends."""
    _rank_session()
    runtime = TvmRuntime()
    for line in sys.stdin:
        request = json.loads(line)
        trial = Trial(
            candidate_id="",
            artifact_digest=request["digest"],
            args=tuple(TensorSpec(tuple(shape), dtype, is_output) for shape, dtype, is_output in request["args"]),
        )
        waited, started = waited_sec_by_thread(os.getpid()), time.perf_counter()
        try:
            run_secs = _time(runtime, trial, request["path"], request["best_sec"])
        except CandidateFailed as error:
            print(json.dumps({"error": str(error)}), flush=True)
            continue
        contention = find_contention(waited, waited_sec_by_thread(os.getpid()), time.perf_counter() - started)
        print(json.dumps({"run_secs": run_secs, "is_disturbed": contention is not None}), flush=True)


def _rank_session() -> None:
    """Give this session the niceness of this process: Linux shares a processor among sessions first."""
    with contextlib.suppress(OSError):  # a kernel without autogroups
        Path("/proc/self/autogroup").write_text(str(os.nice(0)))


def _time(runtime: TvmRuntime, trial: Trial, path: str, best_sec: float | None) -> list[float]:
    first = runtime.measure(replace(trial, evaluator=_FIRST), path).run_secs
    if best_sec is not None and min(first) > _GIVE_UP * best_sec:
        return list(first)
    return [*first, *runtime.measure(replace(trial, evaluator=_EVALUATOR), path).run_secs]


if __name__ == "__main__":
    main()
