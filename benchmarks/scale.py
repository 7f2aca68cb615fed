"""Needs of a thousand boards: processor time per candidate is measured here, the fleet around it is simulated.

Measured: a core's time to search and build one candidate, a Dask scheduler's time for one task, the optimizer process's
time for one trial, and the sizes of messages. `benchmarks/scale_model.py` then computes the number of builders that
keep the boards busy, and the rates of calls to tracker, scheduler and library. There is no peer.
"""

from __future__ import annotations

import contextlib
import json
import pickle
import sys
import tempfile
import time
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import psutil

from cross.targets.target import parse_target

if not __package__:  # run as a file: python benchmarks/scale.py
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import common
from benchmarks.device_share import modelled_ms
from benchmarks.processes import Process, python
from benchmarks.scale_model import Site, simulate
from benchmarks.tune_matmul import write_model
from cross.targets.boards import find_board
from fleet.building.build_candidate import BuildTask, build_candidate
from fleet.building.cluster.address import ClusterAddress
from fleet.building.cluster.certs import make_certs
from fleet.building.cluster.pool import DaskPool
from fleet.optimizer.tasks.propose import ProposeTask, propose
from fleet.workloads.programs import matmul

_CORES = 16
_KERNELS_MS = (0.2, 1.0, 5.0, 20.0)
_ROUND_TRIP_SEC = 0.02
_TURN_SEC = 3 * _ROUND_TRIP_SEC
"""The lease, the upload and the first answer take a round trip each."""

_ENOUGH = 0.9
"""Of the pace that boards have with all builders that they could use."""

_SIZE = 256
_BOARD = "x86-64-v3"
_TASKS = 600
_TRIALS = (16, 96)
_TIMEOUT_SEC = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Costs of one candidate. Times are of one core."""

    search_ms: float
    build_ms: float
    artifact_bytes: int
    """As it is uploaded, compressed."""

    task_bytes: int
    """A build's task and its result, between optimizer and builder."""

    scheduler_ms: float | None = None
    """Per task of the Dask scheduler; None: not measured."""

    optimizer_ms: float | None = None
    """Per trial, in the optimizer's process, its part of Dask included."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark."""
    options = common.make_parser("scale", __doc__ or "", rounds=1).parse_args(argv)
    machine = common.machine()
    with tempfile.TemporaryDirectory(prefix="fleet-bench-") as directory:
        scratch = Path(directory)
        costs = measure_candidates(scratch, 8 if options.quick else 32)
        if not options.quick:
            costs = _with_processes(costs, scratch)
    scale = Scale(boards=50, builders=5, batches=4) if options.quick else Scale(boards=1000, builders=100, batches=12)
    rows = {f"{ms:g}": _row(costs, ms, scale) for ms in _KERNELS_MS}
    figures = {
        "name": "scale",
        "unit": f"builders of {_CORES} cores for {scale.boards} boards whose fastest kernels take 5 ms",
        "peer": None,
        "ours": rows["5"]["builders_needed"],
        "ratio": None,
        "boards": scale.boards,
        "builders": scale.builders,
        "cores": _CORES,
        "costs": asdict(costs),
        "by_kernel_ms": rows,
        "killed": _killed(costs, scale),
        "quick": options.quick,
        "machine": machine,
    }
    _print(costs, rows, scale, quick=options.quick, machine=machine)
    common.print_json(figures, wanted=options.json)
    return 0


def measure_candidates(out_dir: Path, count: int) -> Costs:
    """Return the costs of searching and building, in this process."""
    workload, target = matmul(_SIZE), parse_target(find_board(_BOARD).target_json)
    began = _spent_sec()
    found = propose(ProposeTask(mod_json=workload.mod_json, target=target, count=count + 1))
    search_sec = (_spent_sec() - began) / len(found)
    tasks = [
        BuildTask(mod_json=workload.mod_json, target=target, trace_json=each.trace_json, out_dir=str(out_dir))
        for each in found
    ]
    build_candidate(tasks[0])  # warm
    began = _spent_sec()
    built = [build_candidate(task) for task in tasks[1:]]
    build_sec = (_spent_sec() - began) / len(built)
    sizes = [len(zlib.compress(each.artifact.path.read_bytes())) for each in built]
    travels = len(pickle.dumps(tasks[1])) + len(pickle.dumps(built[0]))
    return Costs(
        search_ms=round(search_sec * 1e3, 1),
        build_ms=round(build_sec * 1e3, 1),
        artifact_bytes=sum(sizes) // len(sizes),
        task_bytes=travels,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """Size of a simulated fleet, and length of the simulation."""

    boards: int
    builders: int
    batches: int
    """That a board could measure without waiting."""


def site(costs: Costs, kernel_ms: float, scale: Scale, *, deaths: int = 0) -> Site:
    """Return the fleet that is simulated."""
    return Site(
        boards=scale.boards,
        builders=scale.builders,
        cores=_CORES,
        search_sec=costs.search_ms / 1e3,
        build_sec=costs.build_ms / 1e3,
        device_sec=modelled_ms(kernel_ms) / 1e3,
        turn_sec=_TURN_SEC,
        deaths=deaths,
    )


def builders_needed(costs: Costs, kernel_ms: float, scale: Scale) -> int:
    """Return the fewest builders with which the boards keep nearly the pace that they have with any number."""

    def pace(builders: int) -> float:
        return simulate(site(costs, kernel_ms, replace(scale, builders=builders)), batches=scale.batches).trials_per_sec

    low, high = 1, scale.boards
    best = pace(high)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if pace(middle) >= _ENOUGH * best else (middle + 1, high)
    return low


def _row(costs: Costs, kernel_ms: float, scale: Scale) -> common.JsonObject:
    found = simulate(site(costs, kernel_ms, scale), batches=scale.batches)
    return {
        "device_ms_per_trial": round(modelled_ms(kernel_ms), 1),
        "builders_needed": builders_needed(costs, kernel_ms, scale),
        **{name: round(value, 3) for name, value in asdict(found).items()},
        "scheduler_cores": _of(costs.scheduler_ms, found.tasks_per_sec),
        "optimizer_cores": _of(costs.optimizer_ms, found.trials_per_sec),
        "upload_mbit_per_sec": round(found.trials_per_sec * costs.artifact_bytes * 8 / 1e6, 1),
        "task_mbit_per_sec": round(found.trials_per_sec * costs.task_bytes * 8 / 1e6, 1),
    }


def _killed(costs: Costs, scale: Scale) -> common.JsonObject:
    """Return the effect of losing a tenth of the builders half-way, when they are short."""
    dead = scale.builders // 10
    paces = [
        simulate(site(costs, 1.0, scale, deaths=deaths), batches=4 * scale.batches).trials_per_sec
        for deaths in (0, dead)
    ]
    return {"builders": dead, "trials_per_sec": list(map(round, paces))}


def _of(cost_ms: float | None, per_sec: float) -> float | None:
    return None if cost_ms is None else round(cost_ms / 1e3 * per_sec, 1)


def _with_processes(costs: Costs, scratch: Path) -> Costs:
    """Add the costs of a scheduler, two builders, a tracker and an agent."""
    with _cluster(scratch) as (cluster, scheduler):
        pool = DaskPool(cluster)
        pool.open()
        try:
            _run_tasks(pool, 20)  # warm
            before = _cpu_sec(scheduler)
            _run_tasks(pool, _TASKS)
            scheduler_ms = (_cpu_sec(scheduler) - before) / _TASKS * 1e3
        finally:
            pool.shutdown()
        few, many = (_optimizer_sec(cluster, scratch, trials) for trials in _TRIALS)
    optimizer_ms = (many - few) / (_TRIALS[1] - _TRIALS[0]) * 1e3
    return Costs(
        **{**asdict(costs), "scheduler_ms": round(scheduler_ms, 2), "optimizer_ms": round(optimizer_ms, 1)},
    )


@contextlib.contextmanager
def _cluster(scratch: Path) -> Iterator[tuple[ClusterAddress, int]]:
    """Yield a cluster of two builders, and its scheduler's process."""
    certs = scratch / "certs"
    make_certs(certs)
    known = ("--dask-certs", certs)
    with contextlib.ExitStack() as stack:

        def start(name: str, *words: object) -> Process:
            return stack.enter_context(Process(python("fleet", "builder", *words, *known), scratch / f"{name}.log"))

        scheduler = start("scheduler", "scheduler", "--port", 0)
        address = scheduler.wait_for(r"scheduler listening on (\S+)")[1]
        for number in range(2):
            start(f"builder{number}", "serve", "--dask", address, "--workers", 1).wait_for("builder joined")
        yield ClusterAddress(address=address, certs=certs), scheduler.pid


def _run_tasks(pool: DaskPool, count: int) -> None:
    for future in [pool.submit(len, b"x" * 10_000) for _ in range(count)]:
        future.result()


def _optimizer_sec(cluster: ClusterAddress, scratch: Path, trials: int) -> float:
    """Return the processor time of the tuning process, on boards that take no time."""
    config = scratch / "agent.yaml"
    config.write_text(f"devices: [{{driver: simulated, board: {_BOARD}, time_scale: 0.0}}]\n")
    state = scratch / f"fleet{trials}"
    with contextlib.ExitStack() as stack:

        def start(name: str, *words: object) -> Process:
            return stack.enter_context(Process(python(*map(str, words)), scratch / f"{name}{trials}.log"))

        tracker = start("tracker", "fleet.tracker", "--no-discovery", "--port", 0, "--state-dir", state / "tracker")
        address = tracker.wait_for(r"tracker listening on (\S+?)(,|$)")[1]
        agent = ("--tracker", address, "--config", config, "--port", 0, "--state-dir", state / "agent")
        start("agent", "device_agents", *agent).wait_for(r"agent listening on \S+, serving")
        tuning = start(
            *(
                "tune",
                "fleet",
                "tune",
                write_model(scratch / "matmul.onnx", _SIZE),
                "--trials",
                trials,
                "--exhaust",
                "--no-model",
            ),
            *("--on", "simulated", "--tracker", address, "--library", scratch / f"{trials}.sqlite", "--json"),
            *("--dask", cluster.address, "--dask-certs", cluster.certs),
        )
        spent_sec = 0.0
        ends_at = time.monotonic() + _TIMEOUT_SEC
        while tuning.is_running and time.monotonic() < ends_at:
            with contextlib.suppress(psutil.NoSuchProcess):
                spent_sec = max(spent_sec, _cpu_sec(tuning.pid))
            time.sleep(0.05)
        done = json.loads(tuning.finish(_TIMEOUT_SEC)[-1])
    common.say(f"{done['trials']} trials took the optimizer {spent_sec:.1f} s of a core")
    return spent_sec


def _cpu_sec(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def _spent_sec() -> float:
    times = psutil.Process().cpu_times()
    return float(times.user + times.system + times.children_user + times.children_system)


def _print(
    costs: Costs, rows: dict[str, common.JsonObject], scale: Scale, *, quick: bool, machine: common.Machine
) -> None:
    columns = (
        *("kernel", "device", f"builders for {_ENOUGH:.0%}", f"with {scale.builders}: boards measure"),
        *("trials/s", "leases/s", "tasks/s", "sched. cores", "opt. cores", "Mbit/s"),
    )
    table = [
        (
            f"{ms} ms",
            f"{row['device_ms_per_trial']} ms",
            str(row["builders_needed"]),
            f"{row['share']:.0%}",
            *(f"{row[name]:,.0f}" for name in ("trials_per_sec", "turns_per_sec", "tasks_per_sec")),
            *("-" if row[name] is None else f"{row[name]:.0f}" for name in ("scheduler_cores", "optimizer_cores")),
            f"{row['upload_mbit_per_sec']:.0f}",
        )
        for ms, row in rows.items()
    ]
    measured = ", ".join(f"{name} {value}" for name, value in asdict(costs).items() if value is not None)
    notes = [f"per candidate: {measured}", *common.doubts(machine, quick=quick)]
    common.print_table(f"{scale.boards} boards, builders of {_CORES} cores (simulated)", columns, table, notes)


if __name__ == "__main__":
    sys.exit(main())
