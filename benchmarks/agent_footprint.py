"""An agent's cost for its machine: resident memory idle and during a measurement, and time until it can be used.

Ours is `python -m device_agents` with its cpu device: agent, warm process, worker. The peer is `python -m
tvm.exec.rpc_server` with its children. Memory is the proportional set size (PSS) of all processes of a side, so that
pages they share count once; clients and trackers are not counted. Start-up is the time from starting the process until
a client holds a session on it.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import fleet

if not __package__:  # run as a file: python benchmarks/agent_footprint.py
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import common
from benchmarks.processes import Process, python
from cross.compile.library import build
from cross.targets.target import host_target
from device_agents.machine import linux
from fleet.artifacts.artifact import Artifact
from fleet.errors import NoMatchingDevice
from fleet.workloads.programs import matmul
from fleet.workloads.workload import module_of

_BUDGET_MB = 70.0
_MEASURE_MS, _QUICK_MEASURE_MS = 1000, 200
_SAMPLE_SEC = 0.02
_SETTLE_SEC = 1.0
"""Time after which start-up work is done and the agent counts as idle."""

_KEY = "agent-footprint"
_TIMEOUT_SEC = 60.0
_MB = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """Figures of one round."""

    start_sec: float
    idle_pss_mb: float
    idle_rss_mb: float
    busy_pss_mb: float
    """The largest sample during a measurement."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark."""
    options = common.make_parser("agent_footprint", __doc__ or "", rounds=3).parse_args(argv)
    rounds = options.rounds or (1 if options.quick else 3)
    measure_ms = _QUICK_MEASURE_MS if options.quick else _MEASURE_MS
    machine = common.machine()
    with tempfile.TemporaryDirectory(prefix="fleet-bench-") as directory:
        scratch = Path(directory)
        workload = matmul(64)
        artifact = build(module_of(workload.mod_json), host_target(), scratch, args=workload.args)

        def told(side: str, run: Callable[[Artifact, Path, int], Footprint]) -> Callable[[int], Footprint]:
            def one_round(number: int) -> Footprint:
                found = run(artifact, scratch / f"{side}-{number}", measure_ms)
                memory, start = f"{found.idle_pss_mb:.0f} MB idle", f"{found.start_sec:.2f} s to start"
                common.say(f"round {number + 1}: {side} {memory}, {start}")
                return found

            return one_round

        results = common.alternate({"peer": told("peer", _run_peer), "ours": told("ours", _run_ours)}, rounds)
    peer, ours = (_median(results[side]) for side in ("peer", "ours"))
    _print(peer, ours, rounds, quick=options.quick, machine=machine)
    figures = {
        "name": "agent_footprint",
        "unit": "MB resident when idle",
        "budget": _BUDGET_MB,
        "peer": round(peer.idle_pss_mb, 1),
        "ours": round(ours.idle_pss_mb, 1),
        "ratio": round(peer.idle_pss_mb / ours.idle_pss_mb, 2),
        "idle_rss_mb": _pair(peer.idle_rss_mb, ours.idle_rss_mb),
        "busy_mb": _pair(peer.busy_pss_mb, ours.busy_pss_mb),
        "start_sec": _pair(peer.start_sec, ours.start_sec),
        "rounds": rounds,
        "quick": options.quick,
        "machine": machine,
    }
    common.print_json(figures, wanted=options.json)
    return 0


def _run_ours(artifact: Artifact, scratch: Path, measure_ms: int) -> Footprint:
    scratch.mkdir()
    with contextlib.ExitStack() as stack:

        def start(name: str, module: str, *arguments: object) -> Process:
            command = python(module, "--host", "127.0.0.1", "--port", 0, "--state-dir", scratch / name, *arguments)
            return stack.enter_context(Process(command, scratch / f"{name}.log"))

        tracker = start("tracker", "fleet.tracker", "--no-discovery")
        address = tracker.wait_for(r"tracker listening on (\S+)")[1]
        client = stack.enter_context(fleet.connect(address))
        started = time.monotonic()
        agent = start("agent", "device_agents", "--tracker", address)
        with _first_lease(client) as device:
            start_sec = time.monotonic() - started
            # Putting an artifact is accepted only from a lease that the agent has checked.
            module = device.load(artifact)
            with _sampling(agent.pid) as busy:
                module.time(args=artifact.args, min_repeat_ms=measure_ms, timeout_sec=_TIMEOUT_SEC)
        time.sleep(_SETTLE_SEC)
        return _footprint(start_sec, agent.pid, busy)


def _run_peer(artifact: Artifact, scratch: Path, measure_ms: int) -> Footprint:
    import tvm
    from tvm import rpc

    scratch.mkdir()
    with contextlib.ExitStack() as stack:

        def start(name: str, *arguments: object) -> Process:
            port = common.free_port()
            listen = ("--host", "127.0.0.1", "--port", port, "--port-end", port + 1)
            return stack.enter_context(
                Process(python(f"tvm.exec.{name}", *listen, *arguments), scratch / f"{name}.log")
            )

        port = common.free_port()
        tracker_words = python("tvm.exec.rpc_tracker", "--host", "127.0.0.1", "--port", port, "--port-end", port + 1)
        stack.enter_context(Process(tracker_words, scratch / "rpc_tracker.log"))
        tracker = common.retry(lambda: rpc.connect_tracker("127.0.0.1", port), RuntimeError, _TIMEOUT_SEC)
        started = time.monotonic()
        server = start("rpc_server", "--tracker", f"127.0.0.1:{port}", "--key", _KEY)
        session = tracker.request(_KEY, session_timeout=_TIMEOUT_SEC)
        start_sec = time.monotonic() - started
        session.upload(str(artifact.path), "artifact.so")
        module = session.load_module("artifact.so")
        device = session.cpu(0)
        arrays = [tvm.runtime.empty(spec.shape, spec.dtype, device) for spec in artifact.args]
        with _sampling(server.pid) as busy:
            module.time_evaluator("main", device, number=1, repeat=1, min_repeat_ms=measure_ms)(*arrays)
        del arrays, module, device, session
        time.sleep(_SETTLE_SEC)
        return _footprint(start_sec, server.pid, busy)


@contextlib.contextmanager
def _first_lease(client: fleet.Fleet) -> Iterator[fleet.Device]:
    """Yield the first device. Until the agent has attached, the tracker refuses because no device can match."""
    with contextlib.ExitStack() as stack:
        yield common.retry(
            lambda: stack.enter_context(client.acquire("cpu", ttl_sec=30.0)), NoMatchingDevice, _TIMEOUT_SEC
        )


@contextlib.contextmanager
def _sampling(pid: int) -> Iterator[list[float]]:
    """Collect the PSS of a process and its descendants [MB] while the body runs."""
    samples: list[float] = []
    is_over = threading.Event()

    def sample() -> None:
        while not is_over.wait(_SAMPLE_SEC):
            samples.append(_family_mb(pid, "Pss"))

    thread = threading.Thread(target=sample, name="sample-memory")
    thread.start()
    try:
        yield samples
    finally:
        is_over.set()
        thread.join()


def _footprint(start_sec: float, pid: int, busy: list[float]) -> Footprint:
    return Footprint(
        start_sec=start_sec,
        idle_pss_mb=_family_mb(pid, "Pss"),
        idle_rss_mb=_family_mb(pid, "Rss"),
        busy_pss_mb=max(busy),
    )


def _family_mb(pid: int, what: str) -> float:
    return sum(_memory_mb(member, what) for member in (pid, *linux.descendants_of(pid)))


def _memory_mb(pid: int, what: str) -> float:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:  # it ended meanwhile
        return 0.0
    found = next((line for line in lines if line.startswith(f"{what}:")), f"{what}: 0")
    return int(found.split()[1]) * 1024 / _MB


def _median(rounds: Sequence[Footprint]) -> Footprint:
    return Footprint(
        start_sec=common.median_of(rounds, lambda item: item.start_sec),
        idle_pss_mb=common.median_of(rounds, lambda item: item.idle_pss_mb),
        idle_rss_mb=common.median_of(rounds, lambda item: item.idle_rss_mb),
        busy_pss_mb=common.median_of(rounds, lambda item: item.busy_pss_mb),
    )


def _pair(peer: float, ours: float) -> dict[str, float]:
    return {"peer": round(peer, 3), "ours": round(ours, 3), "ratio": round(peer / ours, 2)}


def _print(peer: Footprint, ours: Footprint, rounds: int, *, quick: bool, machine: common.Machine) -> None:
    def row(name: str, their: float, our: float, form: str, budget: str = "") -> tuple[str, ...]:
        return (name, format(their, form), format(our, form), f"{their / our:.1f}x", budget)

    rows = [
        row("idle, PSS [MB]", peer.idle_pss_mb, ours.idle_pss_mb, ".1f", f"{_BUDGET_MB:g}"),
        row("idle, sum of RSS [MB]", peer.idle_rss_mb, ours.idle_rss_mb, ".1f"),
        row("measuring, PSS [MB]", peer.busy_pss_mb, ours.busy_pss_mb, ".1f"),
        row("start to first session [s]", peer.start_sec, ours.start_sec, ".2f"),
    ]
    notes = [f"median of {rounds} alternating rounds; {os.cpu_count()} cores", *common.doubts(machine, quick=quick)]
    common.print_table(
        "what an agent costs its machine", ("", "rpc_server", "fleet", "better by", "budget"), rows, notes
    )


if __name__ == "__main__":
    sys.exit(main())
