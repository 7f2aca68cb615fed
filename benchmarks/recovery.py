"""Seconds from kill -9 until the fleet serves again, beside TVM's tracker and server in the same run.

- A tracker with 1,000 devices is killed and started again at once, as systemd does. The clock stops when a connected
  client is granted a device that it requested after the kill. The devices are simulated, their agents are real.
- An agent is killed and started again. The clock stops when the holder of its device, still under the same lease, has
  a time.

The peer is `tvm.exec.rpc_tracker` and `tvm.exec.rpc_server`, killed and started again the same way. It has one server
in both cases: a thousand of them fit no machine. Its clients lose their session with either process, so theirs
reconnects as soon as the port answers.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import fleet

if not __package__:  # run as a file: python benchmarks/recovery.py
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import common
from benchmarks.processes import Process, python
from cross.compile.library import build
from cross.targets.target import host_target
from fleet.artifacts.artifact import Artifact
from fleet.base.network import is_answered
from fleet.domain.devices import DeviceState
from fleet.errors import DeviceUnreachable, NoMatchingDevice, TrackerUnavailable
from fleet.testing import eventually_sync
from fleet.workloads.programs import matmul
from fleet.workloads.workload import module_of

_BUDGET_SEC = 2.0
_DEVICES, _QUICK_DEVICES = 1_000, 20
_AGENTS, _QUICK_AGENTS = 4, 2
_KEY = "recovery"
_HOST = "127.0.0.1"
_TIMEOUT_SEC = 60.0
_STOCK_REFUSALS = (OSError, RuntimeError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """Times from a kill until recovery [s]."""

    served_sec: float
    """Until the first grant, or the first measured time."""
    listening_sec: float = 0.0
    """Until the killed process listens again."""
    all_back_sec: float = 0.0
    """Until every device is available again."""


class Server:
    """A process that is killed, and started again by the same command."""

    def __init__(self, stack: contextlib.ExitStack, command: Sequence[str], log_path: Path) -> None:
        self._stack = stack
        self._command = list(command)
        self._log_path = log_path
        self._process = self._started()

    def wait_for(self, pattern: str) -> str:
        """Return the first group in the line of its stdout that matches."""
        return self._process.wait_for(pattern, _TIMEOUT_SEC)[1]

    def kill(self, *, with_children: bool) -> float:
        """kill -9, and start it again; return the time of the kill [time.monotonic()]."""
        killed_at = time.monotonic()
        self._process.kill(with_children=with_children)
        self._process = self._started()
        return killed_at

    def _started(self) -> Process:
        return self._stack.enter_context(Process(self._command, self._log_path))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark."""
    options = common.make_parser("recovery", __doc__ or "", rounds=5).parse_args(argv)
    rounds = options.rounds or (1 if options.quick else 5)
    devices, agents = (_QUICK_DEVICES, _QUICK_AGENTS) if options.quick else (_DEVICES, _AGENTS)
    machine = common.machine()
    with tempfile.TemporaryDirectory(prefix="fleet-bench-") as directory, contextlib.ExitStack() as stack:
        scratch = Path(directory)
        workload = matmul(64)
        artifact = build(module_of(workload.mod_json), host_target(), scratch, args=workload.args)
        tracker = common.alternate(
            {
                "peer": _told(
                    "tracker, peer", _stock_fleet(stack, scratch / "tracker-peer", artifact, kills="tracker")
                ),
                "ours": _told("tracker, ours", _our_tracker(stack, scratch / "tracker-ours", devices, agents)),
            },
            rounds,
        )
        stack.close()
        agent = common.alternate(
            {
                "peer": _told("agent, peer", _stock_fleet(stack, scratch / "agent-peer", artifact, kills="server")),
                "ours": _told("agent, ours", _our_agent(stack, scratch / "agent-ours", artifact)),
            },
            rounds,
        )
    found = {"tracker": _figures(tracker), "agent": _figures(agent)}
    worst = {"tracker": _worst(tracker), "agent": _worst(agent)}
    _print(found, worst, devices, rounds, quick=options.quick, machine=machine)
    figures = {
        "name": "recovery",
        "unit": "s from kill -9 of the tracker to a new grant",
        "budget": _BUDGET_SEC,
        **found["tracker"],
        "agent": {
            "unit": "s from kill -9 of an agent to a time from its device",
            "budget": _BUDGET_SEC,
            **{name: found["agent"][name] for name in ("peer", "ours", "ratio")},
        },
        "worst": worst,
        "devices": devices,
        "agents": agents,
        "rounds": rounds,
        "quick": options.quick,
        "machine": machine,
    }
    common.print_json(figures, wanted=options.json)
    return 0


def _told(name: str, run: Callable[[], Recovery]) -> Callable[[int], Recovery]:
    def one_round(number: int) -> Recovery:
        found = run()
        common.say(f"round {number + 1}: {name} {found.served_sec:.2f} s")
        return found

    return one_round


def _our_tracker(stack: contextlib.ExitStack, scratch: Path, devices: int, agents: int) -> Callable[[], Recovery]:
    """Start a fleet of simulated devices; return a function that kills its tracker once."""
    tracker, client = _our_fleet(stack, scratch)
    for number in range(agents):
        config = scratch / f"agent-{number}.yaml"
        count = devices // agents
        config.write_text(f"devices:\n- {{driver: simulated, name: sim{number}, count: {count}, time_scale: 0}}\n")
        _start_agent(stack, scratch, client.address, f"agent-{number}", "--config", config)
    eventually_sync(lambda: _available(client) == devices, _TIMEOUT_SEC)

    def run() -> Recovery:
        with ThreadPoolExecutor(1) as thread:
            killed_at = tracker.kill(with_children=False)
            granted = thread.submit(_grant, client)
            tracker.wait_for(r"tracker listening on (\S+)")
            listening_at = time.monotonic()
            served_at = granted.result()
        eventually_sync(lambda: _available(client) == devices, _TIMEOUT_SEC)
        return Recovery(
            served_sec=served_at - killed_at,
            listening_sec=listening_at - killed_at,
            all_back_sec=time.monotonic() - killed_at,
        )

    return run


def _our_agent(stack: contextlib.ExitStack, scratch: Path, artifact: Artifact) -> Callable[[], Recovery]:
    """Start a fleet with this machine's processor as its device; return a function that kills its agent once."""
    _, client = _our_fleet(stack, scratch)
    agent = _start_agent(stack, scratch, client.address, "agent", "--port", common.free_port())
    device = common.retry(lambda: stack.enter_context(client.acquire("cpu")), NoMatchingDevice, _TIMEOUT_SEC)
    module = device.load(artifact)

    def measure() -> None:
        module.time(args=artifact.args, number=1, repeat=1, min_repeat_ms=0, timeout_sec=_TIMEOUT_SEC)

    measure()

    def run() -> Recovery:
        killed_at = agent.kill(with_children=False)
        common.retry(measure, DeviceUnreachable, _TIMEOUT_SEC)
        served_at = time.monotonic()
        agent.wait_for(r"agent listening on (\S+), serving")
        return Recovery(served_sec=served_at - killed_at)

    return run


def _our_fleet(stack: contextlib.ExitStack, scratch: Path) -> tuple[Server, fleet.Fleet]:
    """Start a tracker, and connect to it."""
    scratch.mkdir()
    words = ("--host", _HOST, "--port", common.free_port(), "--no-discovery", "--state-dir", scratch / "tracker")
    tracker = Server(stack, python("fleet.tracker", *words, "--devices-per-agent", 1_000), scratch / "tracker.log")
    return tracker, stack.enter_context(fleet.connect(tracker.wait_for(r"tracker listening on (\S+)")))


def _start_agent(stack: contextlib.ExitStack, scratch: Path, tracker: str, name: str, *more: object) -> Server:
    words = ("--host", _HOST, "--tracker", tracker, "--state-dir", scratch / name, *more)
    agent = Server(stack, python("device_agents", *words), scratch / f"{name}.log")
    agent.wait_for(r"agent listening on (\S+), serving")
    return agent


def _grant(client: fleet.Fleet) -> float:
    """Acquire a device and release it; return the time of the grant."""
    with client.acquire("simulated"):
        return time.monotonic()


def _available(client: fleet.Fleet) -> int:
    try:
        return sum(device.state is DeviceState.AVAILABLE for device in client.snapshot().devices)
    except TrackerUnavailable:
        return 0


def _stock_fleet(
    stack: contextlib.ExitStack, scratch: Path, artifact: Artifact, *, kills: str
) -> Callable[[], Recovery]:
    """Start TVM's tracker and one server; return a function that kills one of them once."""
    from tvm import rpc

    scratch.mkdir()
    port = common.free_port()
    words = ("--host", _HOST, "--port", port, "--port-end", port + 1)
    tracker = Server(stack, python("tvm.exec.rpc_tracker", *words), scratch / "tracker.log")
    eventually_sync(lambda: is_answered(f"{_HOST}:{port}"), _TIMEOUT_SEC)
    server_port = common.free_port()
    words = ("--host", _HOST, "--port", server_port, "--port-end", server_port + 1)
    known_by = ("--tracker", f"{_HOST}:{port}", "--key", _KEY)
    server = Server(stack, python("tvm.exec.rpc_server", *words, *known_by), scratch / "server.log")
    # Their servers are children of the processes that were started, and outlive them: all go at once.
    kill = partial({"tracker": tracker, "server": server}[kills].kill, with_children=True)

    def request() -> rpc.RPCSession:
        eventually_sync(lambda: is_answered(f"{_HOST}:{port}"), _TIMEOUT_SEC)
        return rpc.connect_tracker(_HOST, port).request(_KEY, session_timeout=_TIMEOUT_SEC)

    def measure() -> None:
        session = common.retry(request, _STOCK_REFUSALS, _TIMEOUT_SEC)
        session.upload(str(artifact.path), "artifact.so")
        _time_once(session, artifact)

    measure()

    def run() -> Recovery:
        killed_at = kill()
        common.retry(request if kills == "tracker" else measure, _STOCK_REFUSALS, _TIMEOUT_SEC)
        return Recovery(served_sec=time.monotonic() - killed_at)

    return run


def _time_once(session: object, artifact: Artifact) -> None:
    import tvm

    device = session.cpu(0)  # type: ignore[attr-defined] # TVM's sessions have no types
    module = session.load_module("artifact.so")  # type: ignore[attr-defined]
    arrays = [tvm.runtime.empty(spec.shape, spec.dtype, device) for spec in artifact.args]
    module.time_evaluator("main", device, number=1, repeat=1)(*arrays)


def _worst(rounds: Mapping[str, list[Recovery]]) -> dict[str, float]:
    return {side: round(max(found.served_sec for found in rounds[side]), 3) for side in rounds}


def _figures(rounds: Mapping[str, list[Recovery]]) -> dict[str, float]:
    peer, ours = (common.median_of(rounds[side], lambda found: found.served_sec) for side in ("peer", "ours"))
    return {
        "peer": round(peer, 3),
        "ours": round(ours, 3),
        "ratio": round(peer / ours, 2),
        "listening": round(common.median_of(rounds["ours"], lambda found: found.listening_sec), 3),
        "all_back": round(common.median_of(rounds["ours"], lambda found: found.all_back_sec), 3),
    }


def _print(
    found: Mapping[str, Mapping[str, float]],
    worst: Mapping[str, Mapping[str, float]],
    devices: int,
    rounds: int,
    *,
    quick: bool,
    machine: common.Machine,
) -> None:
    titles = {
        "tracker": f"tracker, {devices:,} devices, until a new grant [s]",
        "agent": "agent, until its device is measured on [s]",
    }
    rows = [
        (title, f"{figures['peer']:.2f}", f"{figures['ours']:.2f}", f"{figures['ratio']:.1f}x", f"{_BUDGET_SEC:g}")
        for title, figures in ((titles[name], found[name]) for name in titles)
    ]
    tracker = found["tracker"]
    notes = [
        f"median of {rounds} kills each; ours at worst {worst['tracker']['ours']:.2f} s and "
        f"{worst['agent']['ours']:.2f} s",
        f"our tracker listens again after {tracker['listening']:.2f} s, and all devices are back after "
        f"{tracker['all_back']:.2f} s; the peer has one server",
        *common.doubts(machine, quick=quick),
    ]
    common.print_table("after kill -9", ("", "TVM RPC", "fleet", "better by", "budget"), rows, notes)


if __name__ == "__main__":
    sys.exit(main())
