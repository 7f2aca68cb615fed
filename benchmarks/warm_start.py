"""How much sooner a search that knows something finds what a blind one finds.

Six workloads that are not in the data set are tuned live, by the tasks that `fleet tune` runs: proposed, built and
timed in batches of eight, on one thread, after the static schedule, which a job times first. Cold, a search learns from
its own records alone; warm, it begins with the snapshot that comes with the package, and with the best schedules of its
neighbours in the data set, as a library that holds the data would give them. Three workloads are other shapes of
operators that the data set has, three are of operators that it does not have.

What counts is when each first held a candidate within 2 % of the one that the cold search holds after its last trial.
The least of hundreds of times is luck as much as speed, so what a search held is timed again beside that one, in turns:
these times decide, and count for neither side. A warm search ends when it is there, or has had as many trials.
"""

from __future__ import annotations

import hashlib
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

if not __package__:  # run as a file: python benchmarks/warm_start.py
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import common
from benchmarks.collect import Timer
from benchmarks.cost_data import workloads
from benchmarks.cost_data.dataset import Program
from benchmarks.cost_data.neighbours import neighbours_seeds
from benchmarks.cost_model import DATA
from cross.pool.build_pool import BuildPool
from cross.targets.target import host_target_json
from fleet.artifacts.artifact import Artifact
from fleet.cost_model.learn import LearnRecord, learn
from fleet.errors import BuildError, InvalidRequest
from fleet.optimizer.tasks.adapting import Seed
from fleet.optimizer.tasks.build import BuildTask, BuiltCandidate, build_candidate
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
_TURNS = 5
_SEARCH_TIMEOUT_SEC = 180.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Lab:
    """What a search of one workload works with."""

    program: Program
    seeds: tuple[Seed, ...]
    pool: BuildPool
    timer: Timer
    folder: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A candidate that was the best of a search for a while."""

    trials: float
    """How many it took to find it; infinite for one that was never found."""

    wall_sec: float
    """Seconds that it took, from the start."""

    artifact: Artifact


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
                    seeds = pool.submit_within(300.0, neighbours_seeds, program, DATA).result()
                    lab = Lab(program=program, seeds=seeds, pool=pool, timer=timer, folder=Path(folder))
                    for seed in range(options.first_seed, options.first_seed + rounds):
                        row = _compare(lab, trials, seed)
                        rows += [row] if row is not None else []
                        common.say(f"{row}")
            finally:
                timer.close()
    figures = _figures(rows, trials)
    _print(figures, rows, machine, quick=options.quick)
    common.print_json({**figures, "quick": options.quick, "machine": machine, "all": rows}, wanted=options.json)
    return 0


def _compare(lab: Lab, trials: int, seed: int) -> dict[str, object] | None:
    cold = [held for batch in _search(lab, trials, seed, is_warm=False) for held in batch]
    if not cold:
        return None
    secs = in_turns(lab.timer, [held.artifact for held in cold])
    cold_there = next(held for held, sec in zip(cold, secs, strict=True) if sec <= _REACHED * secs[-1])
    started = time.monotonic()
    warm_there = next(
        (
            held
            for batch in _search(lab, trials, seed, is_warm=True)
            for held in batch
            if _is_there(lab.timer, held.artifact, cold[-1].artifact)
        ),
        None,
    )
    return {
        "operator": lab.program.operator,
        "is_new": (lab.program.model, lab.program.operator) in _NEW,
        "seed": seed,
        "cold_trials": cold_there.trials,
        "warm_trials": warm_there.trials if warm_there else trials + 1.0,
        "cold_sec": round(cold_there.wall_sec, 2),
        "warm_sec": round(warm_there.wall_sec if warm_there else time.monotonic() - started, 2),
        "is_reached": warm_there is not None,
        "best_us": round(secs[-1] * 1e6, 2),
        "to_gain": round(secs[0] / secs[-1] - 1, 3),
    }


def in_turns(timer: Timer, artifacts: Sequence[Artifact]) -> list[float]:
    """Return the least time of each [s]."""
    rounds = [[min(timer(one, math.inf), default=math.inf) for one in artifacts] for _ in range(_TURNS)]
    return [min(secs) for secs in zip(*rounds, strict=True)]


def _is_there(timer: Timer, artifact: Artifact, goal: Artifact) -> bool:
    if artifact.digest == goal.digest:
        return True
    sec, goal_sec = in_turns(timer, [artifact, goal])
    return sec <= _REACHED * goal_sec


def _search(lab: Lab, trials: int, seed: int, *, is_warm: bool) -> Iterator[list[Held]]:
    """Yield after each batch what it found better than everything before, the best last."""
    program = lab.program
    records: list[SearchRecord] = []
    lessons: list[LearnRecord] = []
    best_sec, spent_sec, has_static = math.inf, 0.0, True
    while len(records) < trials:
        started = time.monotonic()
        task = ProposeTask(
            mod_json=program.mod_json,
            target_json=program.target_json,
            records=tuple(records),
            model=learn(lessons),
            lessons=tuple(lessons),
            seeds=lab.seeds if is_warm else (),
            count=min(_BATCH, trials - len(records)),
            is_static=not records and has_static,
            seed=int(hashlib.sha256(f"{program.shash} {seed}".encode()).hexdigest()[:6], 16) + len(records),
            is_warm=is_warm,
        )
        try:
            traces = [one.trace_json for one in lab.pool.submit_within(_SEARCH_TIMEOUT_SEC, propose, task).result()]
        except BuildError as error:
            common.say(f"{program.operator}: a search failed: {str(error)[:100]}")
            return
        if not traces and has_static:
            has_static = False  # it has none: the search has to begin blind
            continue
        if not traces:
            return
        found: list[Held] = []
        for trace, built in zip(traces, built_candidates(lab, traces), strict=True):
            run_sec = min(lab.timer(built.artifact, best_sec), default=math.inf) if built else math.inf
            records.append(SearchRecord(trace_json=trace, run_sec=run_sec))
            if built is None:
                continue
            if built.features is not None:
                lessons.append(LearnRecord(workload=program.shash, run_sec=run_sec, features=built.features))
            if run_sec < best_sec:
                best_sec, now_sec = run_sec, spent_sec + time.monotonic() - started
                found.append(Held(trials=len(records), wall_sec=now_sec, artifact=built.artifact))
        spent_sec += time.monotonic() - started
        yield found


def built_candidates(lab: Lab, traces: Sequence[str]) -> Iterator[BuiltCandidate | None]:
    """Yield each candidate in its turn, None for one that cannot be built; the others are built meanwhile."""
    program = lab.program
    building = [
        lab.pool.submit(
            build_candidate,
            BuildTask(
                mod_json=program.mod_json, target_json=program.target_json, trace_json=trace, out_dir=str(lab.folder)
            ),
        )
        for trace in traces
    ]
    for future in building:
        try:
            yield future.result()
        except (BuildError, InvalidRequest):
            yield None


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
        "reached": sum(bool(row["is_reached"]) for row in rows),
        "new_operators": {"peer": mean("cold_trials", is_new=True), "ours": mean("warm_trials", is_new=True)},
    }


def _print(
    figures: dict[str, object], rows: Sequence[dict[str, object]], machine: common.Machine, *, quick: bool
) -> None:
    columns = ("", "seed", "cold [trials]", "warm [trials]", "cold [s]", "warm [s]", "best [us]", "to gain")
    keys = ("operator", "seed", "cold_trials", "warm_trials", "cold_sec", "warm_sec", "best_us", "to_gain")
    notes = [
        f"geometric means: {figures['peer']} trials cold, {figures['ours']} warm; a search has {figures['trials']}",
        f"warm searches that came there: {figures['reached']} of {len(rows)}",
        "to gain: by which share the first trial is slower than the cold search's last best",
        *common.doubts(machine),
    ]
    if quick:
        notes.append("quick: too few trials for figures to quote")
    common.print_table("cold and warm searches", columns, [[str(row[key]) for key in keys] for row in rows], notes)


if __name__ == "__main__":
    sys.exit(main())
