"""Share of a leased remote device's time that is measuring, and number of builder cores that keep it busy.

A simulated board with sleeping kernels is tuned over a link with 20 ms round trip: the fastest candidate of a matrix
product takes 5 ms, the slowest nine times as long. Search and builds are real, on this machine's cores. From the second
batch to the last trial, each record has the device's time for it; the rest of that time it waited.

The model: a device needs so many candidates per second as it measures, and each takes a builder so many seconds of
processor time. It predicts the cores needed for faster kernels.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import random
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cross.targets.target import Target, parse_target

if not __package__:  # run as a file: python benchmarks/device_share.py
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import common
from benchmarks.adaptive_rules import LOOKS, OURS, REPEATS, RULES, Recorded, replay
from benchmarks.delay_link import DelayLink, LinkUnavailable
from benchmarks.processes import Process, python
from benchmarks.tune_matmul import write_model
from cross.targets.boards import find_board
from fleet.building.build_candidate import BuildTask, build_candidate
from fleet.library import Library, RecordKind
from fleet.optimizer.tasks.propose import ProposeTask, propose
from fleet.reports.plot import Panel, svg_plots
from fleet.workloads.programs import matmul

_SIZE = 256
_TRIALS, _QUICK_TRIALS = 64, 16
_BATCH = 8
_KERNEL_MS = 5.0
_MODELLED_MS = (0.2, 1.0, 5.0, 20.0)
_ROUND_TRIP_MS = 20.0
_BUDGET = 0.9
_BOARD = "x86-64-v3"
_TIMEOUT_SEC = 1200.0
_SLOWEST, _FASTEST = 4.5, 0.5
"""Range of candidates of a simulated device, as factors of its typical latency."""

Around = Callable[[Sequence[str]], list[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """One job on the device."""

    share: float
    device_ms: float
    """Per trial, mean."""

    wall_ms: float
    """Per trial, mean."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark."""
    parser = common.make_parser("device_share", __doc__ or "", rounds=3)
    parser.add_argument("--plot", type=Path, help="write how many builder cores kernels of a length need here, as SVG")
    options = parser.parse_args(argv)
    machine = common.machine()
    trials = _QUICK_TRIALS if options.quick else _TRIALS
    rounds = options.rounds or (1 if options.quick else 3)
    with tempfile.TemporaryDirectory(prefix="fleet-bench-") as directory:
        scratch = Path(directory)
        builder_sec = _builder_sec(scratch, 2 * _BATCH if options.quick else 4 * _BATCH)
        with _board(scratch) as (address, around, reason):
            shares = [_tune(scratch, address, around, trials, seed) for seed in range(rounds)]
    share = common.median_of(shares, lambda one: one.share)
    device_ms = common.median_of(shares, lambda one: one.device_ms)
    cores = {f"{ms:g}": round(_BUDGET * builder_sec * 1e3 / modelled_ms(ms), 2) for ms in _MODELLED_MS}
    figures = {
        "name": "device_share",
        "unit": f"share of a device's time at kernels of {_KERNEL_MS:g} ms",
        "budget": _BUDGET,
        "peer": None,
        "ours": round(share, 3),
        "ratio": None,
        "interval": [round(min(one.share for one in shares), 3), round(max(one.share for one in shares), 3)],
        "device_ms_per_trial": round(device_ms, 2),
        "wall_ms_per_trial": round(common.median_of(shares, lambda one: one.wall_ms), 2),
        "builder_ms_per_candidate": round(builder_sec * 1e3, 1),
        "modelled_device_ms_per_trial": {f"{ms:g}": round(modelled_ms(ms), 2) for ms in _MODELLED_MS},
        "builder_cores_for_budget": cores,
        "builder_cores_here": os.cpu_count() or 1,
        "round_trip_ms": 0.0 if reason else _ROUND_TRIP_MS,
        "trials": trials,
        "rounds": rounds,
        "quick": options.quick,
        "machine": machine,
    }
    _print(figures, cores, reason, quick=options.quick, machine=machine)
    if options.plot:
        options.plot.write_text(svg_plots([_panel(cores)], title=f"Builder cores for {_BUDGET:.0%} of a device's time"))
    common.print_json(figures, wanted=options.json)
    return 0


def _panel(cores: Mapping[str, float]) -> Panel:
    first, *_, last = cores
    return Panel(
        title="over the fastest kernel's time",
        curves={"modelled": list(cores.values())},
        lines={"here": os.cpu_count() or 1},
        first=f"{first} ms",
        last=f"{last} ms",
        has_steps=False,
    )


def modelled_ms(kernel_ms: float) -> float:
    """Return a device's time per trial [ms] if the fastest of 64 candidates takes `kernel_ms`."""
    chance = random.Random(0)

    def candidate() -> Recorded:
        sec = kernel_ms / 1e3 * chance.uniform(1.0, _SLOWEST / _FASTEST)
        times = [[sec * chance.gauss(1, 0.01) for _ in range(count)] for count in (LOOKS, REPEATS, REPEATS)]
        return Recorded(*times)

    return replay([candidate() for _ in range(_TRIALS)], RULES[OURS]).device_sec * 1e3


def _builder_sec(out_dir: Path, count: int) -> float:
    """Return the processor time of searching and building one candidate [s]."""
    workload, target = matmul(_SIZE), parse_target(find_board(_BOARD).target_json)

    def spent_sec() -> float:
        linkers = resource.getrusage(resource.RUSAGE_CHILDREN)
        return time.process_time() + linkers.ru_utime + linkers.ru_stime

    def build(trace_json: str) -> None:
        task = BuildTask(mod_json=workload.mod_json, target=target, trace_json=trace_json, out_dir=str(out_dir))
        build_candidate(task)

    proposals = propose(ProposeTask(mod_json=workload.mod_json, target=target, count=count + 1))
    build(proposals[0].trace_json)  # warm
    before = spent_sec()
    for proposal in proposals[1:]:
        build(proposal.trace_json)
    return (spent_sec() - before) / (len(proposals) - 1) + _search_sec(workload.mod_json, target, count)


def _search_sec(mod_json: str, target: Target, count: int) -> float:
    from fleet.optimizer.tasks.search_state import SearchState

    before = time.process_time()
    found = propose(ProposeTask(mod_json=mod_json, target=target, count=count), SearchState(mod_json, target))
    return (time.process_time() - before) / len(found)


@contextlib.contextmanager
def _board(scratch: Path) -> Iterator[tuple[str, Around, str]]:
    """Yield the tracker's address, the prefix of client commands, and the reason if there is no link."""
    with contextlib.ExitStack() as stack:
        host, reason = "127.0.0.1", ""
        server: Around = list
        client: Around = list
        try:
            link = stack.enter_context(DelayLink(round_trip_ms=_ROUND_TRIP_MS))
            host, server, client = link.far.address, link.far.command, link.near.command
        except LinkUnavailable as error:
            reason = str(error)
        config = scratch / "agent.yaml"
        latency_us = _KERNEL_MS * 1e3 / _FASTEST
        config.write_text(f"devices: [{{driver: simulated, board: {_BOARD}, latency_us: {latency_us:g}}}]\n")

        def start(name: str, *command: object) -> Process:
            words = python(str(command[0]), *command[1:])
            return stack.enter_context(Process(server(words), scratch / f"{name}.log"))

        open_to = () if host.startswith("127.") else ("--allow-network",)
        listen = ("--host", host, "--port", 0, *open_to, "--state-dir")
        tracker = start("tracker", "fleet.tracker", *listen, scratch / "tracker", "--no-discovery")
        address = tracker.wait_for(r"tracker listening on (\S+)")[1]
        agent = start("agent", "device_agents", *listen, scratch / "agent", "--tracker", address, "--config", config)
        agent.wait_for(r"agent listening on \S+, serving")
        yield address, client, reason


def _tune(scratch: Path, address: str, around: Around, trials: int, seed: int) -> Share:
    library = scratch / f"library-{seed}.sqlite"
    model = write_model(scratch / "matmul.onnx", _SIZE)
    command = python(
        *("fleet.cli.main", "tune", model, "--trials", trials, "--exhaust", "--on", "simulated", "--tracker", address),
        *("--library", library, "--seed", seed, "--json", "--no-model"),
    )
    with Process(around(command), scratch / f"tune-{seed}.log") as process:
        json.loads(process.finish(_TIMEOUT_SEC)[-1])
    share = _read(library)
    common.say(f"seed {seed}: {share.share:.0%} of {share.wall_ms:.0f} ms per trial")
    return share


def _read(library_file: Path) -> Share:
    """Return the device's work from the end of the first batch to the last trial; the run-off comes after that."""
    with Library.open(str(library_file)) as library:
        (workload,) = library.find_workloads()
        records = library.records(workload.shash, kinds=[RecordKind.CANDIDATE])
    first = {record.trace_digest: record for record in reversed(records)}  # the oldest stays
    ordered = sorted(first.values(), key=lambda record: record.created_at)
    before, counted = ordered[_BATCH - 1], ordered[_BATCH:]
    device_sec = math.fsum(float(str(record.provenance["device_sec"])) for record in counted)
    wall_sec = (counted[-1].created_at - before.created_at).total_seconds()
    return Share(
        share=device_sec / wall_sec, device_ms=device_sec / len(counted) * 1e3, wall_ms=wall_sec / len(counted) * 1e3
    )


def _print(
    figures: common.JsonObject, cores: dict[str, float], reason: str, *, quick: bool, machine: common.Machine
) -> None:
    modelled = figures["modelled_device_ms_per_trial"]
    rows = [
        (f"{ms} ms", f"{modelled[ms]:.1f}", f"{needed:.1f}", "#" * round(min(needed, 40)))
        for ms, needed in cores.items()
    ]
    notes = [
        f"measured at {_KERNEL_MS:g} ms, {figures['builder_cores_here']} cores: {figures['ours']:.0%} of the time; "
        f"{figures['device_ms_per_trial']:.0f} of {figures['wall_ms_per_trial']:.0f} ms per trial",
        f"a candidate takes a builder {figures['builder_ms_per_candidate']:.0f} ms of processor time",
        *([f"without the link ({reason})"] if reason else []),
        *common.doubts(machine, quick=quick),
    ]
    columns = ("fastest kernel", "device per trial [ms]", f"cores for {_BUDGET:.0%}", "")
    common.print_table("builder cores that keep one device busy", columns, rows, notes)


if __name__ == "__main__":
    sys.exit(main())
