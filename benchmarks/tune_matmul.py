"""From nothing to a tuned matmul 256: stock `tune_tir` beside `fleet tune`, each as its user starts it, as one process.

The clock starts with the process and stops at the last record of 64 trials. The stock side is `tune_tir` with
`LocalBuilder`, `RPCRunner`, tracker and server, everything else by default; ours is the command line on an ONNX file
with one MatMul, starting its own tracker and agent. Both tune for x86-64-v3 with this machine's number of cores. The
best schedules are then built alike and timed in turn in one process: on all cores, as in the target, and on the number
that stock TVM takes by itself, which on x86 is half of them, as in its own measurements.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

if not __package__:  # run as a file: python benchmarks/tune_matmul.py
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import common
from benchmarks.common import JsonObject
from benchmarks.processes import Process, ProcessFailed, python

_SIZE = 256
_TRIALS, _QUICK_TRIALS = 64, 4

_BUDGET_SEC = 18.0
_RUN_TIMEOUT_SEC = 1200.0
_TIMING_ROUNDS, _QUICK_TIMING_ROUNDS = 21, 5
NOISE = 0.03
"""Best latencies closer than this count as equal: repeated timings of one artifact differ by as much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One tuning run."""

    wall_sec: float
    """From the start of the process to the last record."""

    first_trial_sec: float
    records: str
    """Location of the records, as `benchmarks.remeasure` reads it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Best:
    """Results of a run, by the common timer."""

    trials: int
    failed: int
    latency_us: float
    """Latency on all cores."""

    stock_threads_us: float
    """Latency on the number of cores that stock TVM takes by itself."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark."""
    options = common.make_parser("tune_matmul", __doc__ or "", rounds=3).parse_args(argv)
    trials = _QUICK_TRIALS if options.quick else _TRIALS
    rounds = options.rounds or (1 if options.quick else 3)
    target = json.dumps({"kind": "llvm", "mcpu": "x86-64-v3", "num-cores": os.cpu_count() or 1})
    machine = common.machine()
    with tempfile.TemporaryDirectory(prefix="fleet-bench-") as directory:
        scratch = Path(directory)
        model = write_model(scratch / "matmul.onnx", _SIZE)
        runs = common.alternate(
            {
                "peer": lambda number: run_stock(scratch / f"peer-{number}", target, trials, quick=options.quick),
                "ours": lambda number: _run_ours(scratch / f"ours-{number}", model, target, trials, seed=number),
            },
            rounds,
        )
        timing_rounds = _QUICK_TIMING_ROUNDS if options.quick else _TIMING_ROUNDS
        best = remeasure(runs, target, scratch, timing_rounds)
    figures = _figures(runs, best)
    _print(figures, runs, best, trials=trials, quick=options.quick, machine=machine)
    common.print_json(
        {**figures, "trials": trials, "rounds": rounds, "quick": options.quick, "machine": machine}, wanted=options.json
    )
    return 0


def write_model(path: Path, size: int) -> Path:
    """Write an ONNX file that multiplies two square matrices."""
    from onnx import TensorProto, checker, helper, save_model

    matrices = {name: helper.make_tensor_value_info(name, TensorProto.FLOAT, [size, size]) for name in "ABC"}
    node = helper.make_node("MatMul", ["A", "B"], ["C"], name="matmul")
    graph = helper.make_graph([node], "matmul", [matrices["A"], matrices["B"]], [matrices["C"]])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    checker.check_model(model)
    save_model(model, str(path))
    return path


def run_stock(work_dir: Path, target: str, trials: int, *, quick: bool, tracker: str = "") -> Run:
    """Run stock `tune_tir`.

    Args:
        tracker: address of a running tracker of TVM's protocol; empty: it starts its own, with a server.

    Raises:
        ProcessFailed: it measured nothing.
    """
    work_dir.mkdir()
    command = python(
        *("benchmarks.peers.stock_tune_tir", "--size", _SIZE, "--trials", trials),
        *("--target", target, "--work-dir", work_dir),
        *(("--light",) if quick else ()),
        *(("--tracker", tracker) if tracker else ()),
    )
    started_at = time.time()
    with Process(command, work_dir / "stderr.log") as process:
        last_line = process.finish(_RUN_TIMEOUT_SEC)[-1]
    first_trial_at = json.loads(last_line)["first_trial_at"]
    if first_trial_at is None:
        raise ProcessFailed(f"stock tune_tir measured nothing; see its log:\n{(work_dir / 'stderr.log').read_text()}")
    # Its database appends a line per record, so the file changed last with the last record.
    last_record_at = (work_dir / "database_tuning_record.json").stat().st_mtime
    run = Run(
        wall_sec=last_record_at - started_at, first_trial_sec=first_trial_at - started_at, records=f"stock:{work_dir}"
    )
    common.say(f"peer: {run.wall_sec:.1f} s, first trial after {run.first_trial_sec:.1f} s")
    return run


def _run_ours(work_dir: Path, model: Path, target: str, trials: int, *, seed: int) -> Run:
    work_dir.mkdir()
    library = work_dir / "library.sqlite"
    command = python(
        *("fleet", "tune", model, "--trials", trials, "--exhaust", "--target", target, "--seed", seed),
        *("--library", library, "--json"),
    )
    with Process(command, work_dir / "stderr.log") as process:
        report = json.loads(process.finish(_RUN_TIMEOUT_SEC)[-1])
    if report["first_trial_sec"] is None:
        raise ProcessFailed(f"fleet tune measured nothing; see its log:\n{(work_dir / 'stderr.log').read_text()}")
    run = Run(wall_sec=report["last_record_sec"], first_trial_sec=report["first_trial_sec"], records=f"fleet:{library}")
    common.say(f"ours: {run.wall_sec:.1f} s, first trial after {run.first_trial_sec:.1f} s")
    return run


def remeasure(runs: Mapping[str, list[Run]], target: str, scratch: Path, timing_rounds: int) -> dict[str, list[Best]]:
    """Time the best schedule of every run by one timer."""
    everything = [(side, run) for side, of_side in runs.items() for run in of_side]
    records = [run.records for _, run in everything]
    command = python("benchmarks.remeasure", "--target", target, "--rounds", timing_rounds, *records)
    cores = str(os.cpu_count() or 1)
    on_all = _timed(command, scratch, {"TVM_NUM_THREADS": cores, "OMP_NUM_THREADS": cores})
    on_stock_threads = _timed(command, scratch, {})
    best: dict[str, list[Best]] = {side: [] for side in runs}
    for (side, _), answer, stock_answer in zip(everything, on_all, on_stock_threads, strict=True):
        best[side].append(
            Best(
                trials=answer["trials"],
                failed=answer["failed"],
                latency_us=statistics.median(answer["run_secs"]) * 1e6,
                stock_threads_us=statistics.median(stock_answer["run_secs"]) * 1e6,
            )
        )
    return best


def _timed(command: Sequence[str], scratch: Path, environment: Mapping[str, str]) -> list[JsonObject]:
    with Process(command, scratch / "remeasure.log", environment=environment) as process:
        answers: list[JsonObject] = json.loads(process.finish(_RUN_TIMEOUT_SEC)[-1])
    return answers


def _figures(runs: Mapping[str, list[Run]], best: Mapping[str, list[Best]]) -> dict[str, object]:
    wall = {side: common.median_of(runs[side], lambda run: run.wall_sec) for side in runs}
    first = {side: common.median_of(runs[side], lambda run: run.first_trial_sec) for side in runs}
    latency = {side: common.median_of(best[side], lambda found: found.latency_us) for side in runs}
    stock_threads = {side: common.median_of(best[side], lambda found: found.stock_threads_us) for side in runs}
    return {
        "name": "tune_matmul",
        "unit": "s from process start to last record",
        "budget": _BUDGET_SEC,
        "peer": round(wall["peer"], 2),
        "ours": round(wall["ours"], 2),
        "ratio": round(wall["peer"] / wall["ours"], 2),
        "peer_first_trial_sec": round(first["peer"], 2),
        "ours_first_trial_sec": round(first["ours"], 2),
        "peer_best_us": round(latency["peer"], 2),
        "ours_best_us": round(latency["ours"], 2),
        "best_ratio": round(latency["peer"] / latency["ours"], 3),
        "peer_best_stock_threads_us": round(stock_threads["peer"], 2),
        "ours_best_stock_threads_us": round(stock_threads["ours"], 2),
        "best_stock_threads_ratio": round(stock_threads["peer"] / stock_threads["ours"], 3),
        "is_best_not_worse": latency["ours"] <= latency["peer"] * (1 + NOISE),
        "all_rounds": {
            side: [
                {
                    "wall_sec": round(run.wall_sec, 2),
                    "first_trial_sec": round(run.first_trial_sec, 2),
                    "best_us": round(found.latency_us, 2),
                    "best_stock_threads_us": round(found.stock_threads_us, 2),
                    "trials": found.trials,
                    "failed": found.failed,
                }
                for run, found in zip(runs[side], best[side], strict=True)
            ]
            for side in runs
        },
    }


def _print(
    figures: Mapping[str, object],
    runs: Mapping[str, list[Run]],
    best: Mapping[str, list[Best]],
    *,
    trials: int,
    quick: bool,
    machine: common.Machine,
) -> None:
    def spread(values: Sequence[float], pattern: str) -> str:
        middle, low, high = (format(value, pattern) for value in (statistics.median(values), min(values), max(values)))
        return f"{middle} ({low}-{high})" if len(values) > 1 else middle

    rows = [
        (
            name,
            spread([run.wall_sec for run in runs[side]], ".1f"),
            spread([run.first_trial_sec for run in runs[side]], ".1f"),
            spread([found.latency_us for found in best[side]], ".0f"),
            spread([found.stock_threads_us for found in best[side]], ".0f"),
            f"{sum(found.trials for found in best[side])} ({sum(found.failed for found in best[side])})",
        )
        for side, name in (("peer", "tune_tir"), ("ours", "fleet tune"))
    ]
    notes = [
        f"from process start to last record {figures['ratio']}x faster, budget {_BUDGET_SEC:g} s",
        f"our best schedule is {figures['best_ratio']}x as fast as the peer's on all cores, "
        f"{figures['best_stock_threads_ratio']}x on as many as stock TVM takes by itself",
        f"median (least to most) of {len(runs['ours'])} alternating rounds",
        *common.doubts(machine, quick=quick),
    ]
    if quick:
        notes.append("quick: the peer is spared the search and GPUs' intrinsics")
    columns = ("", "last record [s]", "first [s]", "best [us]", "stock threads [us]", "trials (failed)")
    common.print_table(f"matmul {_SIZE}, {trials} trials, from process start", columns, rows, notes)


if __name__ == "__main__":
    sys.exit(main())
