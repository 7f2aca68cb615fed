"""Measures candidates of some fifty workloads of real models on this machine: the data that the cost model learns from.

    python -m benchmarks.collect --work-dir build/collect --out benchmarks/data/x86_64_v4.npz

Workloads are what `fleet tune` would tune for this machine; candidates come from their own spaces and from
MetaSchedule's rules, at random and evolved, so that good and bad ones are among them. One thread measures, one
candidate at a time, twice in another order, and keeps the least time. Each workload is a file of its own in the work
folder, so it goes on where it was stopped; the end, or --merge, makes one file of them.
"""

from __future__ import annotations

import argparse
import hashlib
import math
import random
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks import common
from benchmarks.cost_data import candidates, workloads
from benchmarks.cost_data.candidates import Candidate, CandidateTask
from benchmarks.cost_data.dataset import Dataset, Group, Program, load, merge, save
from benchmarks.processes import Process, ProcessFailed, python
from cross.pool.build_pool import BuildPool
from cross.targets.target import host_target_json
from fleet.artifacts.artifact import Artifact
from fleet.cost_model.learn import LearnRecord, learn
from fleet.errors import BuildError, InvalidRequest
from fleet.optimizer.tasks.build import BuildTask, build_candidate

_ROUNDS = (0.7, 0.3)
"""Shares of a workload's candidates: first without knowing any time, then evolved from the best of these."""

_SEARCH_TIMEOUT_SEC = 80.0
_BUILD_TIMEOUT_SEC = 12.0
_RUN_TIMEOUT_SEC = 30.0
_AGAIN = 4.0
"""A candidate within so many times the best is timed a second time, later."""


class Timer:
    """The process that times candidates; a new one after a crash. One caller at a time."""

    def __init__(self, prefix: Sequence[str], log_path: Path) -> None:
        self._command = [*prefix, *python("benchmarks.cost_data.timing")]
        self._log_path = log_path
        self._process: Process | None = None
        self.lock = threading.Lock()

    def __call__(self, artifact: Artifact, best_sec: float) -> list[float]:
        """Return seconds per run by repeat; none if it failed."""
        if self._process is None:
            self._process = Process(self._command, self._log_path, environment={"TVM_NUM_THREADS": "1"}).__enter__()
        args = [[list(spec.shape), spec.dtype, spec.is_output] for spec in artifact.args]
        request = {"path": str(artifact.path), "digest": artifact.digest, "args": args}
        try:
            best = best_sec if math.isfinite(best_sec) else None
            answer = self._process.ask({**request, "best_sec": best}, _RUN_TIMEOUT_SEC)
        except ProcessFailed:
            self.close()
            return []
        return list(answer.get("run_secs", []))

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.__exit__(None, None, None)
            self._process = None


@dataclass(frozen=True, slots=True)
class Measured:
    """A candidate with its times."""

    candidate: Candidate
    features: NDArray[np.float32]
    run_secs: list[float]

    @property
    def best_sec(self) -> float:
        """Least time; infinite if it failed."""
        return min(self.run_secs, default=math.inf)


def main(argv: Sequence[str] | None = None) -> int:
    """Collect."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.collect", description=__doc__)
    parser.add_argument("--work-dir", type=Path, required=True, help="keeps what is finished")
    parser.add_argument("--out", type=Path, required=True, help="the data set, one .npz")
    parser.add_argument("--candidates", type=int, default=100, help="by workload (default: %(default)s)")
    parser.add_argument("--workloads", type=int, help="only the first so many")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin no workload after that")
    parser.add_argument("--target", default=host_target_json(), help="what to build for (default: this machine)")
    parser.add_argument("--prefix", default="", help="put before the measuring process: 'nice -n -12 taskset -c 1'")
    parser.add_argument("--merge", action="store_true", help="only make one file of what is there")
    options = parser.parse_args(argv)
    options.work_dir.mkdir(parents=True, exist_ok=True)
    if not options.merge:
        _collect(options)
    parts = [load(path) for path in sorted(options.work_dir.glob("*.npz"))]
    merged = merge(parts, _provenance(parts))
    save(options.out, merged)
    common.say(f"{merged.records} records of {len(merged.groups)} workloads, {options.out.stat().st_size} bytes")
    return 0


def _collect(options: argparse.Namespace) -> None:
    deadline = time.monotonic() + 60 * options.minutes
    timer = Timer(options.prefix.split(), options.work_dir / "timing.log")
    machine = common.machine()
    with (
        BuildPool(2, timeout_sec=_BUILD_TIMEOUT_SEC, target_json=options.target) as pool,
        ThreadPoolExecutor(2) as threads,
    ):

        def collect_one(program: Program, path: Path) -> str:
            if time.monotonic() > deadline:
                return f"{program.operator}: no time left"
            started = time.monotonic()
            group = _measure_workload(program, pool, timer, options.candidates)
            save(path, Dataset(provenance={**machine, "ended_at": common.machine()["measured_at"]}, groups=[group]))
            took_sec = time.monotonic() - started
            return f"{program.model} {program.operator}: {len(group)} candidates, {_summary(group)}, {took_sec:.0f} s"

        try:
            programs = pool.submit_within(600.0, workloads.programs, options.target).result()[: options.workloads]
            paths = [options.work_dir / f"{program.shash}.npz" for program in programs]
            todo = [pair for pair in zip(programs, paths, strict=True) if not pair[1].exists()]
            common.say(f"{len(programs)} workloads, {len(programs) - len(todo)} are there")
            for number, done in enumerate(as_completed([threads.submit(collect_one, *pair) for pair in todo])):
                common.say(f"{time.strftime('%X')} {number + 1}/{len(todo)} {_outcome(done)}")
        finally:
            timer.close()


def _outcome(done) -> str:  # type: ignore[no-untyped-def]
    try:
        return str(done.result())
    except BuildError as error:
        return f"failed: {error}"


def _measure_workload(program: Program, pool: BuildPool, timer: Timer, count: int) -> Group:
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
        run_sec=np.array([one.best_sec for one in measured]),
        spread=np.array([_spread(one.run_secs) for one in measured], np.float32),
        sources=[one.candidate.source for one in measured],
        traces=[one.candidate.trace_json for one in measured],
    )


def _found(program: Program, pool: BuildPool, measured: Sequence[Measured], count: int, seed: int) -> list[Candidate]:
    """Return new candidates; where one kind of search takes too long, those of the other."""
    task = CandidateTask(
        mod_json=program.mod_json,
        target_json=program.target_json,
        count=count,
        times=tuple((one.candidate.trace_json, one.best_sec) for one in measured),
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
    """Build all candidates, then time them: nothing of ours builds for this workload meanwhile."""
    tasks = [
        BuildTask(
            mod_json=program.mod_json,
            target_json=program.target_json,
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
            continue  # what does not build is no lesson about speed
    times: list[list[float]] = [[] for _ in built]
    with timer.lock:
        best = math.inf
        for index in range(len(built)):
            times[index] += timer(built[index][1].artifact, best)
            best = min([best, *times[index]])
        again = [index for index, secs in enumerate(times) if secs and min(secs) < _AGAIN * best]
        random.Random(seed).shuffle(again)
        for index in again:
            times[index] += timer(built[index][1].artifact, math.inf)
    empty: NDArray[np.float32] = np.empty((0, 0), np.float32)
    return [
        Measured(candidate, one.features if one.features is not None else empty, secs)
        for (candidate, one), secs in zip(built, times, strict=True)
    ]


def _lesson(program: Program, one: Measured) -> LearnRecord:
    return LearnRecord(workload=program.shash, run_sec=one.best_sec, features=one.features)


def _spread(run_secs: Sequence[float]) -> float:
    return statistics.median(run_secs) / min(run_secs) - 1 if run_secs else math.inf


def _summary(group: Group) -> str:
    times = group.run_sec[np.isfinite(group.run_sec)]
    if not len(times):
        return "none ran"
    best_ms, middle_ms = times.min() * 1e3, np.median(times) * 1e3
    return f"best {best_ms:.3f} ms, median {middle_ms:.3f} ms, median spread {np.median(group.spread):.3f}"


def _provenance(parts: Sequence[Dataset]) -> dict[str, object]:
    from importlib.metadata import version

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
