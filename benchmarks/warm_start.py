"""How much sooner a search that knows something finds what a blind one finds.

Six workloads that are not in the data set are tuned live, by the tasks that `fleet tune` runs: proposed, built and
timed in batches of eight, on one thread. Cold, a search learns from its own records alone; warm, it begins with the
snapshot that comes with the package. Both get as many trials; what counts is when each first came within 2 % of the
best that the cold one found. Three workloads are other shapes of operators that the data set has, three are of
operators that it does not have.
"""

from __future__ import annotations

import hashlib
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

if not __package__:  # run as a file: python benchmarks/warm_start.py
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import common
from benchmarks.collect import Timer
from benchmarks.cost_data import workloads
from benchmarks.cost_data.dataset import Program
from cross.pool.build_pool import BuildPool
from cross.targets.target import host_target_json
from fleet.cost_model.learn import LearnRecord, learn
from fleet.errors import BuildError, InvalidRequest
from fleet.optimizer.tasks.build import BuildTask, build_candidate
from fleet.optimizer.tasks.propose import ProposeTask, SearchRecord, propose

_SEEN = (
    ("efficientnet", "dwconv2d 5x5 240 24x24"),
    ("inception_v1", "max_pool2d 480 27x27->13x13"),
    ("resnet50", "conv2d 1x1 64->64 56x56"),
)
_NEW = (
    ("inception_v1", "avg_pool3d 1 55x55x64->55x55x64"),
    ("inception_v1", "reshape+4 1x55x55x64"),
    ("inception_v1", "conv2d 5x5 24->64 13x13"),
)
_TRIALS, _QUICK_TRIALS = 256, 16
_BATCH = 8
_REACHED = 1.02
_SEARCH_TIMEOUT_SEC = 180.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """What one search found, trial by trial."""

    best_sec: list[float]
    """Best time after each trial [s]."""

    wall_sec: list[float]
    """When that was, from the start [s]."""

    def reached(self, target_sec: float) -> tuple[float, float]:
        """Return trials and seconds until a time was reached; infinite if it never was."""
        for number, best in enumerate(self.best_sec):
            if best <= target_sec:
                return number + 1.0, self.wall_sec[number]
        return math.inf, math.inf


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark."""
    parser = common.make_parser("warm_start", __doc__ or "", rounds=3)
    parser.add_argument("--trials", type=int, help=f"of a cold search (default: {_TRIALS})")
    parser.add_argument("--workloads", type=int, default=len(_SEEN) + len(_NEW), help="only the first so many")
    parser.add_argument("--only", default="", metavar="TEXT", help="workloads whose operator has this in its name")
    parser.add_argument("--first-seed", type=int, default=0, help="rounds count from it (default: 0)")
    parser.add_argument("--prefix", default="", help="put before the measuring process, as in benchmarks.collect")
    options = parser.parse_args(argv)
    machine, target = common.machine(), host_target_json()
    trials = options.trials or (_QUICK_TRIALS if options.quick else _TRIALS)
    rounds = options.rounds or (1 if options.quick else 3)
    wanted = [pair for both in zip(_SEEN, _NEW, strict=True) for pair in both][
        : 1 if options.quick else options.workloads
    ]
    wanted = [(model, operator) for model, operator in wanted if options.only in operator]
    rows: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory(prefix="fleet-warm-") as folder:
        timer = Timer(options.prefix.split(), Path(folder) / "timing.log")
        with BuildPool(2, target_json=target) as pool:
            try:
                for model, operator in wanted:
                    program = pool.submit_within(
                        300.0, workloads.find_program, model, operator, target, folder
                    ).result()
                    for seed in range(options.first_seed, options.first_seed + rounds):
                        row = _compare(program, pool, timer, Path(folder), trials, seed)
                        rows += [row] if row is not None else []
                        common.say(f"{row}")
            finally:
                timer.close()
    figures = _figures(rows, trials)
    _print(figures, rows, machine, quick=options.quick)
    common.print_json({**figures, "quick": options.quick, "machine": machine, "all": rows}, wanted=options.json)
    return 0


def _compare(
    program: Program, pool: BuildPool, timer: Timer, folder: Path, trials: int, seed: int
) -> dict[str, object] | None:
    sides = (False, True) if seed % 2 == 0 else (True, False)
    found = {is_warm: _search(program, pool, timer, folder, trials, seed, is_warm=is_warm) for is_warm in sides}
    cold, warm = found[False], found[True]
    if not (cold.best_sec and warm.best_sec):
        return None
    target_sec = _REACHED * cold.best_sec[-1]
    (cold_trials, cold_sec), (warm_trials, warm_sec) = cold.reached(target_sec), warm.reached(target_sec)
    return {
        "operator": program.operator,
        "is_new": (program.model, program.operator) in _NEW,
        "seed": seed,
        "cold_trials": cold_trials,
        "warm_trials": min(warm_trials, trials + 1.0),
        "cold_sec": round(cold_sec, 2),
        "warm_sec": round(min(warm_sec, warm.wall_sec[-1]), 2),
        "best_us": [round(cold.best_sec[-1] * 1e6, 2), round(warm.best_sec[-1] * 1e6, 2)],
    }


def _search(
    program: Program, pool: BuildPool, timer: Timer, folder: Path, trials: int, seed: int, *, is_warm: bool
) -> Search:
    records: list[SearchRecord] = []
    lessons: list[LearnRecord] = []
    found = Search(best_sec=[], wall_sec=[])
    started = time.monotonic()
    while len(found.best_sec) < trials:
        task = ProposeTask(
            mod_json=program.mod_json,
            target_json=program.target_json,
            records=tuple(records),
            model=learn(lessons),
            count=min(_BATCH, trials - len(found.best_sec)),
            seed=int(hashlib.sha256(f"{program.shash} {seed}".encode()).hexdigest()[:6], 16) + len(records),
            is_warm=is_warm,
        )
        try:
            traces = [one.trace_json for one in pool.submit_within(_SEARCH_TIMEOUT_SEC, propose, task).result()]
        except BuildError as error:
            common.say(f"{program.operator}: a search failed: {str(error)[:100]}")
            break
        if not traces:
            break
        building = [
            pool.submit(
                build_candidate,
                BuildTask(
                    mod_json=program.mod_json,
                    target_json=program.target_json,
                    trace_json=trace,
                    out_dir=str(folder),
                ),
            )
            for trace in traces
        ]
        for trace, future in zip(traces, building, strict=True):
            run_sec = math.inf
            try:
                built = future.result()
            except (BuildError, InvalidRequest):
                built = None
            if built is not None:
                run_sec = min(
                    timer(built.artifact, found.best_sec[-1] if found.best_sec else math.inf), default=math.inf
                )
                if built.features is not None:
                    lessons.append(LearnRecord(workload=program.shash, run_sec=run_sec, features=built.features))
                built.artifact.path.unlink(missing_ok=True)
            records.append(SearchRecord(trace_json=trace, run_sec=run_sec))
            found.best_sec.append(min([*found.best_sec[-1:], run_sec]))
            found.wall_sec.append(time.monotonic() - started)
    return found


def _figures(rows: Sequence[dict[str, object]], trials: int) -> dict[str, object]:
    def mean(key: str, *, is_new: bool | None = None) -> float:
        values = [float(str(row[key])) for row in rows if is_new is None or row["is_new"] is is_new]
        return round(statistics.geometric_mean(values), 2) if values else math.nan

    cold, warm = mean("cold_trials"), mean("warm_trials")
    return {
        "name": "warm_start",
        "unit": "trials until within 2 % of the best of a cold search",
        "trials": trials,
        "peer": cold,
        "ours": warm,
        "ratio": round(cold / warm, 2),
        "seconds": {"peer": mean("cold_sec"), "ours": mean("warm_sec")},
        "other_shapes": {"peer": mean("cold_trials", is_new=False), "ours": mean("warm_trials", is_new=False)},
        "new_operators": {"peer": mean("cold_trials", is_new=True), "ours": mean("warm_trials", is_new=True)},
    }


def _print(
    figures: dict[str, object], rows: Sequence[dict[str, object]], machine: common.Machine, *, quick: bool
) -> None:
    columns = ("", "seed", "cold [trials]", "warm [trials]", "cold [s]", "warm [s]", "best [us]")
    keys = ("operator", "seed", "cold_trials", "warm_trials", "cold_sec", "warm_sec", "best_us")
    notes = [
        f"geometric means: {figures['peer']} trials cold, {figures['ours']} warm; a search has {figures['trials']}",
        *common.load_notes(machine),
    ]
    if quick:
        notes.append("quick: too few trials for figures to quote")
    common.print_table("cold and warm searches", columns, [[str(row[key]) for key in keys] for row in rows], notes)


if __name__ == "__main__":
    sys.exit(main())
