"""Time saved by a warm search until it finds the result of a cold one.

Six workloads that are not in the data set are tuned live, by the tasks that `fleet tune` runs: proposed, built and
timed in batches of eight, on one thread, after the static schedule, which a job times first. Cold, a search learns from
its own records alone; warm, it begins with the snapshot shipped with the package, and with the best schedules of its
neighbours in the data set, as a library that holds the data would give them. Each has workers of its own, which are
started for it. Three workloads are other shapes of operators that the data set has, three are of operators that it does
not have.

Each search is scored by its first candidate within 2 % of the one that the cold search holds after its last trial. The
least of hundreds of times is luck as much as speed, so a search's candidates are timed again beside that one, in turns:
these times decide, and count for neither side. A warm search ends when it gets there, or has had as many trials.

If the static schedule, the first trial of both sides, is good enough, no time can be saved: such searches are listed,
and counted apart. The figures are geometric means over the other searches.

An hour can be had in parts: with --results each comparison is appended to a file as a line, and comparisons in the file
are not run again; --minutes begins no comparison after that time.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

if not __package__:  # run as a file: python benchmarks/warm_start.py
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import common
from benchmarks.cost_data import workloads
from benchmarks.cost_data.dataset import Program
from benchmarks.cost_data.neighbours import neighbours_seeds
from benchmarks.cost_data.timer import Timer
from benchmarks.cost_data.warmth import Row, read_rows, summary
from benchmarks.cost_model import DATA
from cross.pool.build_pool import BuildPool
from cross.targets.target import host_target, parse_target
from fleet.artifacts.artifact import Artifact
from fleet.building.build_candidate import BuildTask, build_candidate
from fleet.building.built_candidate import BuiltCandidate
from fleet.cost_model.job_trees import learn
from fleet.domain.observation import Observation, no_features
from fleet.errors import BuildError, InvalidRequest
from fleet.optimizer.tasks.propose import ProposeTask, propose

_SEEN = (
    ("segformer", "matmul 1024x32x128"),
    ("detector", "conv2d 3x3 s2 16->32 80x80"),
    ("efficientnet", "dwconv2d 3x3 s2 240 24x24"),
)
_NEW = (
    ("inception_v1", "avg_pool3d 1 55x55x64->55x55x64"),
    ("segformer", "conv2d 7x7 s4 3->32 128x128"),
    ("keyword_spotting", "conv2d 10x4 s2 1->64 49x10"),
)
"""Workloads with room for tuning: when their models were tuned, each had a schedule at least 12 % faster than the
static one, after ten trials or more. Of most workloads the static schedule is within 2 % of the best.
"""

_TRIALS, _QUICK_TRIALS = 256, 16
_BATCH = 8
_REACHED = 1.02
_TURNS = 5
_SEARCH_TIMEOUT_SEC = 180.0
_PREPARE_TIMEOUT_SEC = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Lab:
    """Parts that a search of one workload uses."""

    program: Program
    seeds: tuple[Observation, ...]
    pool: BuildPool
    timer: Timer
    folder: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A candidate that was the best of a search for a while."""

    trials: int
    """Number of trials until it was found."""

    wall_sec: float
    """Seconds that it took, from the start."""

    artifact: Artifact
    is_static: bool
    """The static schedule, before any search."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark."""
    parser = common.make_parser("warm_start", __doc__ or "", rounds=3)
    parser.add_argument("--trials", type=int, help=f"of a cold search (default: {_TRIALS})")
    parser.add_argument("--workloads", type=int, default=len(_SEEN) + len(_NEW), help="only the first so many")
    parser.add_argument("--only", default="", metavar="TEXT", help="workloads whose operator has this in its name")
    parser.add_argument("--first-seed", type=int, default=0, help="rounds count from it (default: 0)")
    parser.add_argument("--results", type=Path, metavar="FILE", help="append to it; what it has is not run again")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin no comparison after that")
    parser.add_argument("--prefix", default="", help="put before the measuring process, as in benchmarks.collect")
    options = parser.parse_args(argv)
    machine = common.machine()
    trials = options.trials or (_QUICK_TRIALS if options.quick else _TRIALS)
    rounds = options.rounds or (1 if options.quick else 3)
    wanted = [pair for both in zip(_SEEN, _NEW, strict=True) for pair in both][
        : 1 if options.quick else options.workloads
    ]
    wanted = [(model, operator) for model, operator in wanted if options.only in operator]
    rows = read_rows(options.results, trials) if options.results else []
    there = {(row.operator, row.seed) for row in rows}
    asked = [
        (model, operator, seed)
        for model, operator in wanted
        for seed in range(options.first_seed, options.first_seed + rounds)
        if (operator, seed) not in there
    ]
    for row in _compared(asked, trials, options.prefix.split(), 60 * options.minutes):
        rows.append(row)
        common.say(f"{row}")
        if options.results:
            with options.results.open("a") as file:
                print(json.dumps({**asdict(row), "machine": machine}), file=file)
    figures = {
        "name": "warm_start",
        "unit": "trials until within 2 % of the best of a cold search, where its static schedule is not",
        "trials": trials,
        **summary(rows),
    }
    _print(figures, rows, machine, quick=options.quick)
    every = [asdict(row) for row in rows]
    common.print_json({**figures, "quick": options.quick, "machine": machine, "all": every}, wanted=options.json)
    return 0


def _compared(
    asked: Sequence[tuple[str, str, int]], trials: int, prefix: Sequence[str], most_sec: float
) -> Iterator[Row]:
    """Yield each comparison once it is complete, until the time is over."""
    if not asked:
        return
    deadline, target, labs = time.monotonic() + most_sec, host_target(), dict[str, Lab]()
    with (
        tempfile.TemporaryDirectory(prefix="fleet-warm-") as folder,
        contextlib.closing(Timer(prefix, Path(folder) / "timing.log")) as timer,
        BuildPool(2, target=target) as pool,
    ):
        for model, operator, seed in asked:
            if time.monotonic() > deadline:
                return
            if operator not in labs:
                found = pool.submit_within(
                    _PREPARE_TIMEOUT_SEC, workloads.find_program, model, operator, target, folder
                )
                program = found.result()
                seeds = pool.submit_within(_PREPARE_TIMEOUT_SEC, neighbours_seeds, program, DATA).result()
                labs[operator] = Lab(program=program, seeds=seeds, pool=pool, timer=timer, folder=Path(folder))
            row = _compare(labs[operator], trials, seed)
            if row is not None:
                yield row


def _compare(lab: Lab, trials: int, seed: int) -> Row | None:
    cold = [held for batch in _afresh(lab, trials, seed, is_warm=False) for held in batch]
    if not cold:
        return None
    secs = in_turns(lab.timer, [held.artifact for held in cold])
    cold_there = next(held for held, sec in zip(cold, secs, strict=True) if sec <= _REACHED * secs[-1])
    started = time.monotonic()
    warm_there = next(
        (
            held
            for batch in _afresh(lab, trials, seed, is_warm=True)
            for held in batch
            if _is_there(lab.timer, held.artifact, cold[-1].artifact)
        ),
        None,
    )
    return Row(
        operator=lab.program.operator,
        is_new=(lab.program.model, lab.program.operator) in _NEW,
        seed=seed,
        trials=trials,
        cold_trials=cold_there.trials,
        warm_trials=warm_there.trials if warm_there else trials + 1,
        cold_sec=round(cold_there.wall_sec, 2),
        warm_sec=round(warm_there.wall_sec if warm_there else time.monotonic() - started, 2),
        is_reached=warm_there is not None,
        is_static_enough=cold_there.is_static,
        best_us=round(secs[-1] * 1e6, 2),
        to_gain=round(secs[0] / secs[-1] - 1, 3),
    )


def in_turns(timer: Timer, artifacts: Sequence[Artifact]) -> list[float]:
    """Return the least time of each [s]."""
    rounds = [[min(timer(one, math.inf), default=math.inf) for one in artifacts] for _ in range(_TURNS)]
    return [min(secs) for secs in zip(*rounds, strict=True)]


def _is_there(timer: Timer, artifact: Artifact, goal: Artifact) -> bool:
    if artifact.digest == goal.digest:
        return True
    sec, goal_sec = in_turns(timer, [artifact, goal])
    return sec <= _REACHED * goal_sec


def _afresh(lab: Lab, trials: int, seed: int, *, is_warm: bool) -> Iterator[list[Held]]:
    """Search with fresh workers: caches of the first search would otherwise shorten the second."""
    with BuildPool(2, target=parse_target(lab.program.target_json)) as pool:
        yield from _search(replace(lab, pool=pool), trials, seed, is_warm=is_warm)


def _search(lab: Lab, trials: int, seed: int, *, is_warm: bool) -> Iterator[list[Held]]:
    """Yield after each batch its improvements over everything before, the best last."""
    program = lab.program
    records: list[Observation] = []
    best_sec, spent_sec, has_static = math.inf, 0.0, True
    while len(records) < trials:
        started = time.monotonic()
        task = ProposeTask(
            mod_json=program.mod_json,
            target=parse_target(program.target_json),
            records=tuple(records),
            model=learn(records),
            seeds=lab.seeds if is_warm else (),
            count=min(_BATCH, trials - len(records)),
            is_static=not records and has_static,
            seed=int(hashlib.sha256(f"{program.shash} {seed}".encode()).hexdigest()[:6], 16) + len(records),
            is_warm=is_warm,
        )
        try:
            proposals = lab.pool.submit_within(_SEARCH_TIMEOUT_SEC, propose, task).result()
        except BuildError as error:
            common.say(f"{program.operator}: a search failed: {str(error)[:100]}")
            return
        if not proposals and has_static:
            has_static = False  # it has none: the search has to begin blind
            continue
        if not proposals:
            return
        found: list[Held] = []
        building = built_candidates(lab, [proposal.trace_json for proposal in proposals])
        for proposal, built in zip(proposals, building, strict=True):
            run_sec = min(lab.timer(built.artifact, best_sec), default=math.inf) if built else math.inf
            features = no_features() if built is None or built.features is None else built.features
            records.append(
                Observation(
                    workload=program.shash,
                    trace_json=proposal.trace_json,
                    origin=proposal.origin,
                    run_sec=run_sec,
                    features=features,
                )
            )
            if built is None:
                continue
            if run_sec < best_sec:
                best_sec, now_sec = run_sec, spent_sec + time.monotonic() - started
                held = Held(trials=len(records), wall_sec=now_sec, artifact=built.artifact, is_static=task.is_static)
                found.append(held)
        spent_sec += time.monotonic() - started
        yield found


def built_candidates(lab: Lab, traces: Sequence[str]) -> Iterator[BuiltCandidate | None]:
    """Yield each candidate in its turn, None if it cannot be built; later ones are built meanwhile."""
    program = lab.program
    building = [
        lab.pool.submit(
            build_candidate,
            BuildTask(
                mod_json=program.mod_json,
                target=parse_target(program.target_json),
                trace_json=trace,
                out_dir=str(lab.folder),
            ),
        )
        for trace in traces
    ]
    for future in building:
        try:
            yield future.result()
        except (BuildError, InvalidRequest):
            yield None


def _print(figures: common.JsonObject, rows: Sequence[Row], machine: common.Machine, *, quick: bool) -> None:
    columns = ("", "seed", "cold [trials]", "warm", "cold [s]", "warm", "ratio", "best [us]", "to gain", "to save")
    shown = [
        (
            row.operator,
            str(row.seed),
            str(row.cold_trials),
            f"{'' if row.is_reached else 'over '}{min(row.warm_trials, row.trials)}",
            f"{row.cold_sec:.1f}",
            f"{row.warm_sec:.1f}",
            f"{row.ratio:.2f}",
            f"{row.best_us:.1f}",
            f"{row.to_gain:.1%}",
            "nothing: static" if row.is_static_enough else "yes",
        )
        for row in rows
    ]
    notes = [
        f"nothing to save in {figures['static_enough']} of {len(rows)}: the static schedule, the first trial of both "
        "sides, is there already",
        *(_sentence(name, figures[key]) for name, key in _PARTS.items()),
        "ratio: warm trials / cold trials; to gain: by which share the static schedule is slower than the best",
        *common.doubts(machine, quick=quick),
    ]
    common.print_table("cold and warm searches", columns, shown, notes)


_PARTS = {
    "of all where there was something to save": "to_save",
    "operators that the data does not have (goal 0.5)": "new_operators",
    "other shapes of operators that it has (goal 0.33)": "other_shapes",
}


def _sentence(name: str, part: common.JsonObject) -> str:
    if not part["searches"]:
        return f"{name}: none, so nothing can be said"
    trials, seconds = part["trials"], part["seconds"]
    return (
        f"{name}: {trials['cold']} trials cold, {trials['warm']} warm, ratio {trials['ratio']} "
        f"({trials['least']} to {trials['most']}); {seconds['cold']} s cold, {seconds['warm']} s warm, "
        f"ratio {seconds['ratio']}; {part['reached']} of {part['searches']} warm searches came there"
    )


if __name__ == "__main__":
    sys.exit(main())
