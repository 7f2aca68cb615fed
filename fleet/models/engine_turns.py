"""Serves a model's engine in a separate process that times it on request.

Requests and answers are JSON lines in two named pipes, because a confined process has no sockets.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fleet.models.importing.value import Model
from fleet.models.reference import engine_ready

REQUESTS, ANSWERS = "requests", "answers"
"""Names of the pipes."""


def serve_turns(
    models: Sequence[Model], inputs: Sequence[Sequence[NDArray[np.generic]]], folder: Path, *, threads: int
) -> None:
    """Prepare the engine, then time it once per request until the request pipe ends.

    Args:
        models: one model for each set of shapes.
        inputs: input arrays for each model.
        folder: folder of the two pipes.
        threads: number of threads for the engine.
    """
    before = os.sched_getaffinity(0)
    try:
        found = [engine_ready(model, arrays, threads=threads) for model, arrays in zip(models, inputs, strict=True)]
        runs = [one[0] for one in found if one is not None]
        with (folder / REQUESTS).open() as requests, (folder / ANSWERS).open("w", buffering=1) as answers:
            print(json.dumps({"is_ready": len(runs) == len(found)}), file=answers)
            for line in requests:
                request = json.loads(line)
                if not request:
                    return
                _keep_to(request["cpus"] or before)
                secs = [_time(run, request["repeat"], request["min_repeat_sec"]) for run in runs]
                print(json.dumps({"secs": secs}), file=answers)
    finally:
        _keep_to(before)


def _keep_to(cpus: Collection[int]) -> None:
    """Pin all threads of this process to the cores of the device under comparison."""
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # the thread has ended, or cannot be moved
            os.sched_setaffinity(int(task.name), cpus)


def _time(run: Callable[[], object], repeat: int, min_repeat_sec: float) -> float:
    """Return the time per run of the fastest repeat [s], after one warm-up run as in TVM's evaluator."""
    run()
    return min(_repeat(run, min_repeat_sec) for _ in range(repeat))


def _repeat(run: Callable[[], object], min_repeat_sec: float) -> float:
    secs: list[float] = []
    while not secs or sum(secs) < min_repeat_sec:
        started = time.perf_counter()
        run()
        secs.append(time.perf_counter() - started)
    return statistics.fmean(secs)
