"""Measures candidates of some fifty workloads of real models on this machine: the training data of the cost model.

    python -m benchmarks.collect --work-dir build/collect --out benchmarks/data/x86_64_v4.npz
    python -m benchmarks.collect --work-dir build/again --refresh benchmarks/data/x86_64_v4.npz --only dwconv2d

Workloads are those that `fleet tune` would tune for this machine; candidates come from their own spaces and from
MetaSchedule's rules, at random and evolved, so that good and bad ones are among them. One thread measures, one
candidate at a time, twice in another order, and keeps the least time; disturbed times are measured again. Each workload
is a file of its own in the work folder, so an interrupted run resumes; the end, or --merge, makes one file of them.

With --refresh, some workloads of a data set are collected anew, and all others stay: those with --only in their name,
or else those with other schedules in their own space now. A workload with mostly disturbed times stays, too.
"""

from __future__ import annotations

import argparse
import hashlib
import math
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks import common
from benchmarks.cost_data import candidates, workloads
from benchmarks.cost_data.candidates import Candidate, CandidateTask
from benchmarks.cost_data.dataset import Dataset, Group, Program, load, merge, refreshed, save
from benchmarks.cost_data.own_spaces import has_other_space
from benchmarks.cost_data.timer import Timer, Times
from cross.pool.build_pool import BuildPool
from cross.targets.target import host_target, parse_target
from fleet.building.build_candidate import BuildTask, build_candidate
from fleet.cost_model.job_trees import learn
from fleet.domain.observation import Observation
from fleet.errors import BuildError, InvalidRequest

_ROUNDS = (0.7, 0.3)
"""Shares of a workload's candidates: first without knowing any time, then evolved from the best of these."""

_SEARCH_TIMEOUT_SEC = 80.0
_BUILD_TIMEOUT_SEC = 12.0
_AGAIN = 4.0
"""A candidate within so many times the best is timed a second time, later."""

_MOST_DISTURBED = 0.5
"""Share of a workload's candidates; above it, the data set keeps its former times."""


@dataclass(frozen=True, slots=True)
class Measured:
    """A candidate with its times."""

    candidate: Candidate
    features: NDArray[np.float32]
    times: Times


def main(argv: Sequence[str] | None = None) -> int:
    """Collect."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.collect", description=__doc__)
    parser.add_argument("--work-dir", type=Path, required=True, help="keeps what is finished")
    parser.add_argument("--out", type=Path, required=True, help="the data set, one .npz")
    parser.add_argument("--candidates", type=int, default=100, help="by workload (default: %(default)s)")
    parser.add_argument("--workloads", type=int, help="only the first so many")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin no workload after that")
    parser.add_argument(
        "--target", type=parse_target, default=host_target(), help="what to build for (default: this machine)"
    )
    parser.add_argument("--prefix", default="", help="put before the measuring process: 'nice -n -12 taskset -c 1'")
    parser.add_argument("--refresh", type=Path, metavar="DATASET", help="collect workloads of this data set anew")
    parser.add_argument("--only", nargs="+", metavar="TEXT", help="refresh workloads with one of these in their name")
    parser.add_argument("--list", action="store_true", help="only print which workloads would be refreshed")
    parser.add_argument("--merge", action="store_true", help="only make one file of what is there")
    options = parser.parse_args(argv)
    options.work_dir.mkdir(parents=True, exist_ok=True)
    old = load(options.refresh) if options.refresh else None
    if not options.merge:
        _collect(options, old)
    if options.list:
        return 0
    parts = [load(path) for path in sorted(options.work_dir.glob("*.npz"))]
    merged = merge(parts, _provenance(parts)) if old is None else refreshed(old, list(filter(_is_calm, parts)))
    save(options.out, merged)
    common.say(f"{merged.records} records of {len(merged.groups)} workloads, {options.out.stat().st_size} bytes")
    return 0


def _collect(options: argparse.Namespace, old: Dataset | None) -> None:
    deadline = time.monotonic() + 60 * options.minutes
    timer = Timer(options.prefix.split(), options.work_dir / "timing.log")
    collected = {**common.machine(), "code": _code(), "tvm": version("apache-tvm")}
    with (
        BuildPool(2, timeout_sec=_BUILD_TIMEOUT_SEC, target=options.target) as pool,
        ThreadPoolExecutor(2) as threads,
    ):

        def collect_one(program: Program, path: Path) -> str:
            if time.monotonic() > deadline:
                return f"{program.operator}: no time left"
            started = time.monotonic()
            group = measure_workload(program, pool, timer, options.candidates)
            ended_at = common.machine()["measured_at"]
            group = replace(group, collected={**collected, "ended_at": ended_at})
            save(path, Dataset(provenance=dict(group.collected), groups=[group]))
            took_sec = time.monotonic() - started
            return f"{program.model} {program.operator}: {len(group)} candidates, {_summary(group)}, {took_sec:.0f} s"

        try:
            programs = _programs(options, old, pool)[: options.workloads]
            if options.list:
                print("\n".join(f"{program.model} {program.operator}" for program in programs), flush=True)
                return
            paths = [options.work_dir / f"{program.shash}.npz" for program in programs]
            todo = [pair for pair in zip(programs, paths, strict=True) if not pair[1].exists()]
            common.say(f"{len(programs)} workloads, {len(programs) - len(todo)} are there")
            for number, done in enumerate(as_completed([threads.submit(collect_one, *pair) for pair in todo])):
                common.say(f"{time.strftime('%X')} {number + 1}/{len(todo)} {_outcome(done)}")
        finally:
            timer.close()


def _programs(options: argparse.Namespace, old: Dataset | None, pool: BuildPool) -> list[Program]:
    """Return the programs to collect."""
    if old is None:
        return pool.submit_within(600.0, workloads.programs, options.target).result()
    if options.only:
        groups = [group for group in old.groups if any(text in _name(group.program) for text in options.only)]
    else:
        asked = [pool.submit_within(_SEARCH_TIMEOUT_SEC, has_other_space, group) for group in old.groups]
        groups = [group for group, answer in zip(old.groups, asked, strict=True) if answer.result()]
    elsewhere = {group.program.target_json for group in groups} - {options.target.json}
    if elsewhere:
        raise InvalidRequest(f"the data set is of {elsewhere}, this machine is {options.target.json}")
    return [group.program for group in groups]


def _name(program: Program) -> str:
    return f"{program.model} {program.operator}"


def _is_calm(part: Dataset) -> bool:
    """Tell whether the times of a workload are worth keeping; report it if not."""
    (group,) = part.groups
    share = float(group.is_disturbed.mean())
    if share > _MOST_DISTURBED:
        common.say(f"{_name(group.program)}: {share:.0%} were disturbed, the data set keeps what it has")
    return share <= _MOST_DISTURBED


def _code() -> str:
    """Return the commit of this checkout; empty if there is none."""
    command = ["git", "describe", "--always", "--dirty"]
    done = subprocess.run(command, cwd=common.REPOSITORY, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def _outcome(done) -> str:  # type: ignore[no-untyped-def]
    try:
        return str(done.result())
    except BuildError as error:
        return f"failed: {error}"


def measure_workload(program: Program, pool: BuildPool, timer: Timer, count: int) -> Group:
    """Find, build and time candidates of a workload."""
    seed = int(hashlib.sha256(program.shash.encode()).hexdigest()[:6], 16)
    measured: list[Measured] = []
    with tempfile.TemporaryDirectory(prefix="fleet-collect-") as folder:
        for number, share in enumerate(_ROUNDS):
            wanted = round(share * count) if number == 0 else count - len(measured)
            found = _found(program, pool, measured, wanted, seed + number)
            measured += _measured(program, found, pool, timer, Path(folder), seed)
    return Group(
        program=program,
        features=[one.features for one in measured],
        run_sec=np.array([one.times.best_sec for one in measured]),
        spread=np.array([_spread(one.times.run_secs) for one in measured], np.float32),
        is_disturbed=np.array([one.times.is_disturbed for one in measured], bool),
        sources=[one.candidate.source for one in measured],
        traces=[one.candidate.trace_json for one in measured],
        collected={},
    )


def _found(program: Program, pool: BuildPool, measured: Sequence[Measured], count: int, seed: int) -> list[Candidate]:
    """Return new candidates; if one kind of search takes too long, those of the other."""
    task = CandidateTask(
        mod_json=program.mod_json,
        target=parse_target(program.target_json),
        count=count,
        times=tuple((one.candidate.trace_json, one.times.best_sec) for one in measured),
        model=learn([_lesson(program, one) for one in measured]) if measured else None,
        seed=seed,
    )
    if measured:
        return _searched(pool, task)
    own = pool.submit_within(_SEARCH_TIMEOUT_SEC, candidates.own_candidates, task).result()
    found = _searched(pool, replace(task, count=count - min(len(own), count // 2)))
    return own[: count - len(found)] + found


def _searched(pool: BuildPool, task: CandidateTask) -> list[Candidate]:
    try:
        return pool.submit_within(_SEARCH_TIMEOUT_SEC, candidates.searched_candidates, task).result()
    except BuildError as error:
        common.say(f"no candidates of MetaSchedule's rules: {str(error)[:100]}")
        return []


def _measured(
    program: Program, found: Sequence[Candidate], pool: BuildPool, timer: Timer, folder: Path, seed: int
) -> list[Measured]:
    """Build all candidates, then time them, so that no build for this workload runs meanwhile."""
    tasks = [
        BuildTask(
            mod_json=program.mod_json,
            target=parse_target(program.target_json),
            trace_json=candidate.trace_json,
            out_dir=str(folder),
        )
        for candidate in found
    ]
    building = [pool.submit(build_candidate, task) for task in tasks]
    built = []
    for candidate, future in zip(found, building, strict=True):
        try:
            built.append((candidate, future.result()))
        except (BuildError, InvalidRequest):
            continue  # failed builds teach nothing about speed
    times = [Times() for _ in built]
    with timer.lock:
        best = math.inf
        for index in range(len(built)):
            times[index] = timer.time_calmly(built[index][1].artifact, best)
            best = min(best, times[index].best_sec)
        again = [index for index, one in enumerate(times) if one.run_secs and one.best_sec < _AGAIN * best]
        random.Random(seed).shuffle(again)
        for index in again:
            times[index] += timer.time_calmly(built[index][1].artifact, math.inf)
    empty: NDArray[np.float32] = np.empty((0, 0), np.float32)
    return [
        Measured(candidate, one.features if one.features is not None else empty, timed)
        for (candidate, one), timed in zip(built, times, strict=True)
    ]


def _lesson(program: Program, one: Measured) -> Observation:
    return Observation(workload=program.shash, run_sec=one.times.best_sec, features=one.features)


def _spread(run_secs: Sequence[float]) -> float:
    return statistics.median(run_secs) / min(run_secs) - 1 if run_secs else math.inf


def _summary(group: Group) -> str:
    times = group.run_sec[np.isfinite(group.run_sec)]
    if not len(times):
        return "none ran"
    best_ms, middle_ms = times.min() * 1e3, np.median(times) * 1e3
    spread, disturbed = np.median(group.spread), group.is_disturbed.sum()
    return f"best {best_ms:.3f} ms, median {middle_ms:.3f} ms, median spread {spread:.3f}, {disturbed} disturbed"


def _provenance(parts: Sequence[Dataset]) -> dict[str, object]:
    first = parts[0].provenance
    ends = sorted(str(part.provenance["ended_at"]) for part in parts)
    return {
        "command": "python -m benchmarks.collect",
        "cpu": first["cpu"],
        "cores": first["cores"],
        "threads": 1,
        "target": parts[0].groups[0].program.target_json,
        "tvm": version("apache-tvm"),
        "first_ended_at": ends[0],
        "last_ended_at": ends[-1],
    }


if __name__ == "__main__":
    sys.exit(main())
