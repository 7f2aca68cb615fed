"""Cost of a trial beyond its kernel: stock `RPCRunner`, tracker and server beside our client, tracker and agent.

A batch of 64 prebuilt artifacts (matmul 64, one run each) is handed over; the clock stops at the last result. On both
sides everything in between counts: device or lease, sessions, uploads, loading, the warm-up run. Each round brings new
artifacts, the same program under new digests, so that none is cached. Measured on loopback, on loopback with one
artifact 64 times, and over a link with 20 ms round trip. Beside it, the same with an agent that runs its workers
without a jail, and the start-up time of a session with and without.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import statistics
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

if not __package__:  # run as a file: python benchmarks/trial_overhead.py
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import common
from benchmarks.delay_link import DelayLink, LinkUnavailable
from benchmarks.processes import Process, python
from cross.compile.library import build
from cross.targets.target import Target, host_target, parse_target
from fleet.artifacts.artifact import Artifact
from fleet.base.digests import digest_of
from fleet.workloads.default_schedule import default_schedule
from fleet.workloads.programs import matmul
from fleet.workloads.workload import module_of

_TRIALS, _QUICK_TRIALS = 64, 4
_WARM_UP_TRIALS = 2
_ROUND_TRIP_MS = 20.0
_BUDGET_MS, _LINK_BUDGET_MS = 2.0, 4.0
_JAIL_BUDGET_MS, _JAIL_START_BUDGET_MS = 0.2, 20.0
_STARTS = 20
_KEY = "trial-overhead"
_DIFFERENCE_BYTES = 1_500
"""Two real schedules of one matmul differ by 2-4 kB, compressed against each other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """Network site of servers and clients: the address that the servers listen on, and prefixes of commands."""

    name: str
    host: str = "127.0.0.1"
    server: Callable[[Sequence[str]], list[str]] = list
    client: Callable[[Sequence[str]], list[str]] = list


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Costs of one batch, per trial [ms]."""

    beyond_ms: float
    """Everything but the kernel."""

    kernel_ms: float
    parts_ms: Mapping[str, float]
    """Parts of our side's time: waiting for the lease, uploading, measuring. Together they are the whole batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Medians over the rounds, of one trial [ms]."""

    peer: Costs
    ours: Costs
    bare: Costs
    """Ours without a jail."""

    @property
    def jail_ms(self) -> float:
        """Cost of the jail."""
        return self.ours.beyond_ms - self.bare.beyond_ms

    @property
    def ratio(self) -> float:
        """Peer's cost over ours."""
        return self.peer.beyond_ms / self.ours.beyond_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """The artifact to measure, and the amount of work."""

    artifact: Artifact
    scratch: Path
    trials: int
    rounds: int

    def batch(self, count: int, *, is_same: bool = False) -> list[Artifact]:
        """Return artifacts that were never on a device before: `count` different ones, or one `count` times."""
        copies = [self._copy() for _ in range(1 if is_same else count)]
        return copies * count if is_same else copies

    def _copy(self) -> Artifact:
        """Return the artifact under a new digest: loaders ignore bytes after the sections of an ELF file.

        The added bytes do not compress, and are as long as the difference between two schedules of one program, so that
        copies do not flatter uploads that skip content known to the agent.
        """
        path = self.scratch / f"{uuid.uuid4().hex}.so"
        shutil.copyfile(self.artifact.path, path)
        with path.open("ab") as file:
            file.write(os.urandom(_DIFFERENCE_BYTES))
        return Artifact(path=path, digest=digest_of(path), args=self.artifact.args)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark."""
    parser = common.make_parser("trial_overhead", __doc__ or "", rounds=3)
    parser.add_argument(
        "--target", type=parse_target, default=host_target(), help="of a GPU of this machine, as JSON (default: CPU)"
    )
    options = parser.parse_args(argv)
    kind = options.target.kind
    device = "cpu" if kind == "llvm" else kind
    machine = common.machine()
    with tempfile.TemporaryDirectory(prefix="fleet-bench-") as directory:
        scratch = Path(directory)
        work = Work(
            artifact=_build(scratch, options.target),
            scratch=scratch,
            trials=_QUICK_TRIALS if options.quick else _TRIALS,
            rounds=options.rounds or (1 if options.quick else 3),
        )
        with _clients(Site(name="loopback"), scratch, device) as sides:
            loopback = _measure(sides, work, "loopback")
            same = _measure(sides, work, "loopback, one artifact", is_same=True)
            starts = _measure_starts(sides, 2 if options.quick else _STARTS)
        link, reason = _measure_link(work) if device == "cpu" else (None, "measured on the CPU only")
    _print(loopback, same, link, reason, work, starts, quick=options.quick, machine=machine)
    figures = {
        "name": "trial_overhead",
        "unit": "ms per trial beyond the kernel",
        "budget": _BUDGET_MS,
        **_figures_json(loopback),
        "one_artifact": _figures_json(same),
        "link": {
            "round_trip_ms": _ROUND_TRIP_MS,
            "budget": _LINK_BUDGET_MS,
            **(_figures_json(link) if link else {"left_out": reason}),
        },
        "session_start_ms": starts,
        "trials": work.trials,
        "rounds": work.rounds,
        "quick": options.quick,
        "machine": machine,
    }
    common.print_json(figures, wanted=options.json)
    return 0


def _build(scratch: Path, target: Target) -> Artifact:
    workload = matmul(64)
    mod = module_of(workload.mod_json)
    if not target.is_processor:
        mod = default_schedule(mod, target)
    return build(mod, target, scratch, args=workload.args)


def _measure_link(work: Work) -> tuple[Figures | None, str]:
    """Return the figures over the link, or the reason why there are none."""
    try:
        with DelayLink(round_trip_ms=_ROUND_TRIP_MS) as link:
            site = Site(name="link", host=link.far.address, server=link.far.command, client=link.near.command)
            with _clients(site, work.scratch, "cpu") as sides:
                return _measure(sides, work, f"{_ROUND_TRIP_MS:g} ms round trip"), ""
    except LinkUnavailable as error:
        return None, str(error)


@contextlib.contextmanager
def _clients(site: Site, scratch: Path, device: str) -> Iterator[dict[str, Process]]:
    """Start both sides' servers and clients; yield the clients."""
    with contextlib.ExitStack() as stack:

        def start(name: str, around: Callable[[Sequence[str]], list[str]], *command: object) -> Process:
            words = python(str(command[0]), *command[1:])
            return stack.enter_context(Process(around(words), scratch / f"{site.name}-{name}.log"))

        port = common.free_port()
        start("peer-tracker", site.server, "tvm.exec.rpc_tracker", *_listen(site.host, port))
        tracker = f"{site.host}:{port}"
        server = _listen(site.host, common.free_port())
        start("peer-server", site.server, "tvm.exec.rpc_server", *server, "--tracker", tracker, "--key", _KEY)
        peer = start("peer", site.client, "benchmarks.peers.stock_rpc_runner", site.host, port, _KEY, device)

        open_to = () if site.host.startswith("127.") else ("--allow-network",)
        ours_listen = ("--host", site.host, "--port", 0, *open_to, "--state-dir")
        state_dir = scratch / f"{site.name}-state"
        clients = {"peer": peer}
        for side, jail in (("ours", "auto"), ("bare", "none")):
            folder = state_dir / side
            folder.mkdir(parents=True)
            (folder / "agent.yaml").write_text(f"jail: {jail}\n")
            tracker_words = (*ours_listen, folder / "tracker", "--no-discovery")
            our_tracker = start(f"{side}-tracker", site.server, "fleet.tracker", *tracker_words)
            address = our_tracker.wait_for(r"tracker listening on (\S+)")[1]
            agent_words = (*ours_listen, folder / "agent", "--tracker", address, "--config", folder / "agent.yaml")
            start(f"{side}-agent", site.server, "device_agents", *agent_words).wait_for(
                r"agent listening on \S+, serving"
            )
            clients[side] = start(side, site.client, "benchmarks.trial_client", address, device)
        for client in clients.values():
            client.wait_for("^ready$", 120.0)
        yield clients


def _listen(host: str, port: int) -> tuple[object, ...]:
    return ("--host", host, "--port", port, "--port-end", port + 1)


def _measure(sides: Mapping[str, Process], work: Work, title: str, *, is_same: bool = False) -> Figures:
    """Measure batches of both sides in turn."""

    def run(side: str, count: int) -> Costs:
        batch = work.batch(count, is_same=is_same)
        request = {
            "artifacts": [{"path": str(artifact.path), "digest": artifact.digest} for artifact in batch],
            "args": [[list(spec.shape), spec.dtype, spec.is_output] for spec in work.artifact.args],
        }
        answer = sides[side].ask(request)
        for artifact in batch:
            artifact.path.unlink(missing_ok=True)
        kernel_sec = sum(answer["run_secs"])
        return Costs(
            beyond_ms=(answer["wall_sec"] - kernel_sec) / count * 1e3,
            kernel_ms=kernel_sec / count * 1e3,
            parts_ms={name: sec / count * 1e3 for name, sec in answer.get("parts_sec", {}).items()},
        )

    def round_of(side: str, number: int) -> Costs:
        costs = run(side, work.trials)
        common.say(f"{title}, round {number + 1}: {side} {costs.beyond_ms:.2f} ms per trial")
        return costs

    for side in sides:
        run(side, _WARM_UP_TRIALS)
    rounds = common.alternate({side: partial(round_of, side) for side in ("peer", "ours", "bare")}, work.rounds)
    return Figures(**{side: _median(costs) for side, costs in rounds.items()})


def _measure_starts(sides: Mapping[str, Process], count: int) -> dict[str, float]:
    """Return the start-up time of a session [ms], with a jail and without: medians of sessions in turns."""
    secs: dict[str, list[float]] = {"ours": [], "bare": []}
    for _ in range(count):
        for side, found in secs.items():
            found.extend(sides[side].ask({"opens": 1})["open_secs"])
    return {side: round(statistics.median(found) * 1e3, 2) for side, found in secs.items()}


def _median(rounds: Sequence[Costs]) -> Costs:
    return Costs(
        beyond_ms=common.median_of(rounds, lambda costs: costs.beyond_ms),
        kernel_ms=common.median_of(rounds, lambda costs: costs.kernel_ms),
        parts_ms={
            name: common.median_of(rounds, lambda costs: costs.parts_ms[name])  # noqa: B023 - called at once
            for name in rounds[0].parts_ms
        },
    )


def _figures_json(figures: Figures) -> dict[str, object]:
    return {
        "peer": round(figures.peer.beyond_ms, 3),
        "ours": round(figures.ours.beyond_ms, 3),
        "ratio": round(figures.ratio, 2),
        "without_jail": round(figures.bare.beyond_ms, 3),
        "jail": round(figures.jail_ms, 3),
        "peer_kernel": round(figures.peer.kernel_ms, 4),
        "ours_kernel": round(figures.ours.kernel_ms, 4),
        "ours_parts": {name: round(part_ms, 3) for name, part_ms in figures.ours.parts_ms.items()},
    }


def _print(
    loopback: Figures,
    same: Figures,
    link: Figures | None,
    reason: str,
    work: Work,
    starts: Mapping[str, float],
    *,
    quick: bool,
    machine: common.Machine,
) -> None:
    def row(name: str, figures: Figures, budget_ms: float | None) -> tuple[str, ...]:
        budget = f"{budget_ms:g}" if budget_ms is not None else ""
        ours, bare = f"{figures.ours.beyond_ms:.2f}", f"{figures.bare.beyond_ms:.2f}"
        return (name, f"{figures.peer.beyond_ms:.1f}", ours, bare, f"{figures.ratio:.0f}x", budget)

    rows = [row("loopback", loopback, _BUDGET_MS), row("loopback, one artifact", same, None)]
    if link:
        rows.append(row(f"{_ROUND_TRIP_MS:g} ms round trip", link, _LINK_BUDGET_MS))
    notes = [
        f"median of {work.rounds} alternating rounds of {work.trials} trials; the kernel itself takes "
        f"{loopback.peer.kernel_ms:.2f} ms with the peer, {loopback.ours.kernel_ms:.2f} ms with ours"
    ]
    notes.append(
        f"jail: {loopback.jail_ms:+.2f} ms per trial (budget {_JAIL_BUDGET_MS:g}); a session starts in "
        f"{starts['ours']:.1f} ms, without it in {starts['bare']:.1f} ms (budget {_JAIL_START_BUDGET_MS:g} more)"
    )
    if reason:
        notes.append(f"left out: {_ROUND_TRIP_MS:g} ms round trip ({reason})")
    notes += common.doubts(machine, quick=quick)
    common.print_table(
        "cost of a trial beyond its kernel [ms]",
        ("", "RPCRunner", "fleet", "no jail", "better by", "budget"),
        rows,
        notes,
    )


if __name__ == "__main__":
    sys.exit(main())
