"""Stock `RPCRunner` through our gateway, beside TVM's own tracker and server: the same client, work and run.

A batch of 64 prebuilt artifacts (matmul 64, one run each) is handed to `RPCRunner`; the clock stops at the last result.
The kernels' own time is subtracted. Each round brings new digests. After that, stock `tune_tir` tunes a matmul 256 on
both sides, and the best schedules are timed in turn in one process.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

if not __package__:  # run as a file: python benchmarks/gateway_overhead.py
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import common
from benchmarks.processes import Process, python
from benchmarks.trial_overhead import Work
from benchmarks.tune_matmul import NOISE, Run, remeasure, run_stock
from cross.compile.library import build
from cross.targets.target import host_target
from fleet.workloads.programs import matmul
from fleet.workloads.workload import module_of

_TRIALS, _QUICK_TRIALS = 64, 4
_TUNING_TRIALS, _QUICK_TUNING_TRIALS = 64, 2
_TIMING_ROUNDS, _QUICK_TIMING_ROUNDS = 21, 3
_WARM_UP_TRIALS = 2
_BUDGET = 0.4
_HOST, _KEY = "127.0.0.1", "cpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """A tracker of TVM's protocol, and stock `RPCRunner` as a process."""

    tracker: str
    runner: Process


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark."""
    options = common.make_parser("gateway_overhead", __doc__ or "", rounds=3).parse_args(argv)
    rounds = options.rounds or (1 if options.quick else 3)
    machine = common.machine()
    with tempfile.TemporaryDirectory(prefix="fleet-bench-") as directory:
        scratch = Path(directory)
        with _sides(scratch) as sides:
            overhead = _overhead(sides, scratch, rounds, quick=options.quick)
            tuning = _tuning(sides, scratch, rounds, quick=options.quick)
    _print(overhead, tuning, rounds, quick=options.quick, machine=machine)
    figures = {
        "name": "gateway_overhead",
        "unit": "ms per trial beyond the kernel",
        "budget": _BUDGET,
        **overhead,
        "tune_tir": tuning,
        "rounds": rounds,
        "quick": options.quick,
        "machine": machine,
    }
    common.print_json(figures, wanted=options.json)
    return 0


@contextlib.contextmanager
def _sides(scratch: Path) -> Iterator[dict[str, Side]]:
    """Start TVM's tracker and server, our tracker, agent and gateway, and a client of each."""
    with contextlib.ExitStack() as stack:

        def start(name: str, module: str, *words: object) -> Process:
            return stack.enter_context(Process(python(module, *words), scratch / f"{name}.log"))

        port = common.free_port()
        start("peer-tracker", "tvm.exec.rpc_tracker", *_stock_listen(port))
        server = _stock_listen(common.free_port())
        start("peer-server", "tvm.exec.rpc_server", *server, "--tracker", f"{_HOST}:{port}", "--key", _KEY)

        listen = ("--port", 0, "--state-dir")
        tracker = start("tracker", "fleet.tracker", *listen, scratch / "tracker", "--no-discovery")
        address = tracker.wait_for(r"tracker listening on (\S+)")[1]
        agent = start("agent", "device_agents", *listen, scratch / "agent", "--tracker", address)
        agent.wait_for(r"agent listening on \S+, serving")
        gateway = start("gateway", "fleet", "gateway", "serve", "--tracker", address, "--port", 0)
        trackers = {"peer": f"{_HOST}:{port}", "ours": gateway.wait_for(r"clients listening on (\S+)")[1]}

        clients = {
            side: start(side, "benchmarks.peers.stock_rpc_runner", *found.split(":"), _KEY, "cpu")
            for side, found in trackers.items()
        }
        for client in clients.values():
            client.wait_for("^ready$", 120.0)
        yield {side: Side(tracker=trackers[side], runner=client) for side, client in clients.items()}


def _stock_listen(port: int) -> tuple[object, ...]:
    return ("--host", _HOST, "--port", port, "--port-end", port + 1)


def _overhead(sides: Mapping[str, Side], scratch: Path, rounds: int, *, quick: bool) -> dict[str, object]:
    """Measure batches of both sides in turn; return their time per trial beyond the kernel [ms]."""
    workload = matmul(64)
    artifact = build(module_of(workload.mod_json), host_target(), scratch, args=workload.args)
    work = Work(artifact=artifact, scratch=scratch, trials=_QUICK_TRIALS if quick else _TRIALS, rounds=rounds)

    def run(side: str, count: int) -> float:
        batch = work.batch(count)
        args = [[list(spec.shape), spec.dtype, spec.is_output] for spec in work.artifact.args]
        answer = sides[side].runner.ask({"artifacts": [{"path": str(one.path)} for one in batch], "args": args})
        for one in batch:
            one.path.unlink()
        beyond_sec: float = answer["wall_sec"] - sum(answer["run_secs"])
        return beyond_sec / count * 1e3

    def round_of(side: str, number: int) -> float:
        beyond_ms = run(side, work.trials)
        common.say(f"round {number + 1}: {side} {beyond_ms:.1f} ms per trial")
        return beyond_ms

    for side in sides:
        run(side, _WARM_UP_TRIALS)
    found = common.alternate({side: partial(round_of, side) for side in sides}, rounds)
    peer, ours = (common.median_of(found[side], float) for side in ("peer", "ours"))
    return {
        "peer": round(peer, 2),
        "ours": round(ours, 2),
        "ratio": round(peer / ours, 2),
        "time_ratio": round(ours / peer, 3),
        "trials": work.trials,
    }


def _tuning(sides: Mapping[str, Side], scratch: Path, rounds: int, *, quick: bool) -> dict[str, object]:
    """Tune a matmul on both sides in turn; return the times [s] and the best latencies [us]. Quick: on ours alone."""
    target = json.dumps({"kind": "llvm", "mcpu": "x86-64-v3", "num-cores": os.cpu_count() or 1})
    trials = _QUICK_TUNING_TRIALS if quick else _TUNING_TRIALS

    def tune(side: str, number: int) -> Run:
        folder = scratch / f"tune-{side}-{number}"
        return run_stock(folder, target, trials, quick=quick, tracker=sides[side].tracker)

    runs = common.alternate({side: partial(tune, side) for side in sides if side == "ours" or not quick}, rounds)
    best = remeasure(runs, target, scratch, _QUICK_TIMING_ROUNDS if quick else _TIMING_ROUNDS)
    wall = {side: common.median_of(found, lambda run: run.wall_sec) for side, found in runs.items()}
    latency = {side: common.median_of(found, lambda one: one.latency_us) for side, found in best.items()}
    return {
        **{f"{side}_sec": round(wall[side], 2) for side in runs},
        **{f"{side}_best_us": round(latency[side], 2) for side in runs},
        "time_ratio": round(wall["ours"] / wall.get("peer", wall["ours"]), 3),
        "is_best_not_worse": latency["ours"] <= latency.get("peer", latency["ours"]) * (1 + NOISE),
        "trials": {side: [one.trials for one in found] for side, found in best.items()},
    }


def _print(
    overhead: Mapping[str, object], tuning: Mapping[str, object], rounds: int, *, quick: bool, machine: common.Machine
) -> None:
    rows = [
        ("RPCRunner, beyond the kernel [ms]", *(f"{overhead[key]}" for key in ("peer", "ours", "time_ratio"))),
        ("tune_tir [s]", *(f"{tuning.get(key, '')}" for key in ("peer_sec", "ours_sec", "time_ratio"))),
        ("best latency [us]", *(f"{tuning.get(key, '')}" for key in ("peer_best_us", "ours_best_us")), ""),
    ]
    notes = [
        f"median of {rounds} alternating rounds; budget {_BUDGET:g} of the peer's",
        *common.doubts(machine, quick=quick),
    ]
    columns = ("", "TVM's tracker and server", "gateway", "time ratio")
    common.print_table("stock clients through the gateway", columns, rows, notes)


if __name__ == "__main__":
    sys.exit(main())
