"""Times the best schedules of several tuning runs by one and the same timer: built alike, in one process, in turn.

    python -m benchmarks.remeasure --target JSON --rounds 15 stock:WORK_DIR fleet:LIBRARY_FILE ...

Ends with one JSON line: for each run its trials, failed trials, and all times of its best schedule [s].
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import tvm
from tvm.s_tir import meta_schedule as ms

from cross.targets.target import Target, parse_target
from fleet.artifacts.artifact import Artifact
from fleet.building.build_candidate import BuildTask, build_candidate
from fleet.library import Library, RecordKind
from fleet.workloads.traces import trace_json

_MIN_REPEAT_MS = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Results of a tuning run."""

    trials: int
    failed: int
    mod_json: str
    best_trace: str


def main() -> None:
    """Read the runs, build the best of each, time them in turn."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", type=parse_target, required=True)
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("runs", nargs="+", metavar="stock:DIR|fleet:FILE")
    options = parser.parse_args()
    runs = [_read(run) for run in options.runs]
    with tempfile.TemporaryDirectory(prefix="fleet-remeasure-") as out_dir:
        timers = [_timer(_build(run, options.target, out_dir)) for run in runs]
        times = _time_in_turn(timers, options.rounds)
    answer = [
        {"trials": run.trials, "failed": run.failed, "run_secs": run_secs}
        for run, run_secs in zip(runs, times, strict=True)
    ]
    print(json.dumps(answer), flush=True)


def _read(run: str) -> Run:
    kind, _, place = run.partition(":")
    return _read_stock(place) if kind == "stock" else _read_fleet(place)


def _read_stock(work_dir: str) -> Run:
    records = ms.database.JSONDatabase(work_dir=work_dir).get_all_tuning_records()
    times = [_mean([float(sec) for sec in record.run_secs or ()]) for record in records]
    best = records[times.index(min(times))]
    return Run(
        trials=len(records),
        failed=sum(sec >= _STOCK_FAILED_SEC for sec in times),
        mod_json=tvm.ir.save_json(best.workload.mod),
        best_trace=trace_json(best),
    )


_STOCK_FAILED_SEC = 1e9
"""MetaSchedule writes 1e10 seconds for a candidate without a time."""


def _read_fleet(library_file: str) -> Run:
    with Library.open(library_file) as library:
        (workload,) = library.find_workloads()
        best = library.best(workload.shash, checked_only=True)[0]
        records = library.records(workload.shash, kinds=[RecordKind.CANDIDATE])
    by_trace = {record.trace_digest: record for record in records}
    return Run(
        trials=len(by_trace),
        failed=sum(record.error is not None for record in by_trace.values()),
        mod_json=workload.mod_json,
        best_trace=best.trace_json,
    )


def _build(run: Run, target: Target, out_dir: str) -> Artifact:
    task = BuildTask(mod_json=run.mod_json, target=target, trace_json=run.best_trace, out_dir=out_dir)
    return build_candidate(task).artifact


def _timer(artifact: Artifact) -> Callable[[], float]:
    device = tvm.cpu()
    module = tvm.runtime.load_module(str(artifact.path))
    generator = np.random.default_rng(0)
    arrays = [
        tvm.runtime.tensor(generator.standard_normal(spec.shape).astype(spec.dtype), device) for spec in artifact.args
    ]
    evaluator = module.time_evaluator(artifact.function, device, number=1, repeat=1, min_repeat_ms=_MIN_REPEAT_MS)
    return lambda: float(evaluator(*arrays).results[0])


def _time_in_turn(timers: list[Callable[[], float]], rounds: int) -> list[list[float]]:
    times: list[list[float]] = [[] for _ in timers]
    for number in range(rounds):
        order = range(len(timers)) if number % 2 == 0 else reversed(range(len(timers)))
        for index in order:
            times[index].append(timers[index]())
    return times


def _mean(values: Iterable[float]) -> float:
    numbers = list(values)
    return sum(numbers) / len(numbers) if numbers else float("inf")


if __name__ == "__main__":
    main()
