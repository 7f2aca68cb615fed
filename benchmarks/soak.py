"""A tracker under load for a long time: do its memory and its latencies stay the same?

    python -m benchmarks soak --minutes 60 --svg soak.svg

The tracker is a process, over TLS, with a journal on this disk. In this process: 10,000 simulated devices of ten agents
that report all of them every five seconds, and 200 clients with a connection each. A client asks for a device two and a
half times a second, holds most for a moment and some for a minute, which it renews; a part of its requests is for one
certain device, waits, and gives up. After two minutes on average it disconnects, half of the time without a release,
and returns under another name. One more client reads the whole fleet every ten seconds.

Every five seconds the tracker's memory, threads, files and processor time are read, and the latencies of the grants in
between. After ten minutes, or two fifths of a shorter run, when caches are full and the allocator has its share, a line
is fitted through each; its slope is the rise in an hour.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

if not __package__:  # run as a file: python benchmarks/soak.py
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import common
from benchmarks.processes import Process, python
from benchmarks.soak_client import Client
from fleet.reports.plot import Panel, svg_plots
from fleet.testing import SimulatedAgent
from fleet.testing.identity import account_channel
from fleet.v1 import fleet_service_pb2
from fleet.wire.stubs import fleet_service_stub

_MINUTES, _QUICK_MINUTES = 60.0, 0.2
_DEVICES, _QUICK_DEVICES = 10_000, 200
_CLIENTS, _QUICK_CLIENTS = 200, 10
_AGENTS = 10
_SAMPLE_SEC, _QUICK_SAMPLE_SEC = 5.0, 0.5
_REPORT_SEC = 5.0
_LOOK_SEC = 10.0
_WARM_UP_SEC, _WARM_UP_SHARE = 600.0, 0.4
_FLAT_SHARE = 0.05
"""A line that rises by less than this share of its mean during the run does not rise."""
_STANDARD_ERRORS = 3.0
"""Nor does one with a slope below so many of its errors."""
_MB = 1e6
_SHOWN = {
    "memory_mb": "memory [MB]",
    "cpu_ms_per_grant": "processor time for a grant [ms]",
    "p50_ms": "grant, median [ms]",
    "p99_ms": "grant, 99th percentile [ms]",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """The tracker over some seconds."""

    at_sec: float
    """Since the load began."""
    memory_mb: float
    """Resident."""
    cpu_ms_per_grant: float
    """Processor time of the whole process per grant, which includes reports, renewals and reads of the fleet."""
    threads: int
    files: int
    grants_per_sec: float
    p50_ms: float
    p99_ms: float
    """From request to grant, as clients see it, if a device was free."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trend:
    """A line fitted through the samples of one figure."""

    mean: float
    per_hour: float
    """Rise per hour."""
    error_per_hour: float
    """Standard error of that."""
    is_rising: bool


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; the exit code does not depend on the figures."""
    parser = common.make_parser("soak", __doc__ or "", rounds=1)
    parser.add_argument("--minutes", type=float, default=None, help=f"how long (default: {_MINUTES:g})")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="write the plot here")
    options = parser.parse_args(argv)
    minutes = options.minutes or (_QUICK_MINUTES if options.quick else _MINUTES)
    devices, clients = (_QUICK_DEVICES, _QUICK_CLIENTS) if options.quick else (_DEVICES, _CLIENTS)
    machine = common.machine()
    with tempfile.TemporaryDirectory(prefix="fleet-bench-") as directory:
        sample_sec = _QUICK_SAMPLE_SEC if options.quick else _SAMPLE_SEC
        samples, broken = asyncio.run(_soak(Path(directory), minutes * 60.0, devices, clients, sample_sec))
    trends = {name: trend_of(samples, name) for name in _SHOWN}
    _print(samples, trends, minutes, devices, clients, broken, quick=options.quick, machine=machine)
    if options.svg is not None:
        options.svg.write_text(picture(samples, title=f"{minutes:g} minutes, {devices:,} devices, {clients} clients"))
    memory = trends["memory_mb"]
    figures = {
        "name": "soak",
        "unit": "% that memory grows by in an hour",
        "peer": None,
        "ours": round(100.0 * memory.per_hour / memory.mean, 2),
        "ratio": None,
        "budget": 100.0 * _FLAT_SHARE,
        "trends": {name: asdict(trend) for name, trend in trends.items()},
        "rising": [name for name, trend in trends.items() if trend.is_rising],
        "grants": round(sum(sample.grants_per_sec for sample in samples) * sample_sec),
        "broken_streams": broken,
        "minutes": minutes,
        "devices": devices,
        "clients": clients,
        "samples": [asdict(sample) for sample in samples],
        "quick": options.quick,
        "machine": machine,
    }
    common.print_json(figures, wanted=options.json)
    return 0


async def _soak(
    scratch: Path, length_sec: float, devices: int, clients: int, sample_sec: float
) -> tuple[list[Sample], int]:
    """Return the samples, and the number of broken streams."""
    words = ("--host", "127.0.0.1", "--port", 0, "--no-discovery", "--state-dir", scratch / "tracker")
    async with contextlib.AsyncExitStack() as stack:
        command = python("fleet.tracker", *words, "--devices-per-agent", 20_000, "--log-level", "WARNING")
        tracker = stack.enter_context(Process(command, scratch / "tracker.log"))
        address = tracker.wait_for(r"tracker listening on (\S+)")[1]
        agents = []
        for number in range(_AGENTS):
            names = [f"devices/sim-{index}" for index in range(number, devices, _AGENTS)]
            agents.append(await stack.enter_async_context(SimulatedAgent(address, names, agent_id=f"agent-{number}")))
        latencies: list[float] = []
        crowd = [Client(address, f"client-{n}", random.Random(n), devices, latencies) for n in range(clients)]
        jobs = [*(client.run() for client in crowd), *(_report(agent) for agent in agents), _look(address)]
        tasks = [asyncio.create_task(job, name=f"soak {number}") for number, job in enumerate(jobs)]
        try:
            samples = await _sample(psutil.Process(tracker.pid), latencies, length_sec, sample_sec, tasks)
            return samples, sum(client.broken for client in crowd)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def _sample(
    process: psutil.Process,
    latencies: list[float],
    length_sec: float,
    sample_sec: float,
    tasks: Sequence[asyncio.Task[None]],
) -> list[Sample]:
    samples: list[Sample] = []
    started, before = time.monotonic(), process.cpu_times()
    last = started
    while last - started < length_sec:
        done, _ = await asyncio.wait(tasks, timeout=last + sample_sec - time.monotonic())
        for task in done:
            task.result()  # they go on for ever, so this raises
        now, spent = time.monotonic(), process.cpu_times()
        found = sorted(latencies)
        latencies.clear()
        used_sec = spent.user + spent.system - before.user - before.system
        sample = Sample(
            at_sec=round(now - started, 1),
            memory_mb=process.memory_info().rss / _MB,
            cpu_ms_per_grant=1e3 * used_sec / len(found) if found else math.nan,
            threads=process.num_threads(),
            files=process.num_fds(),
            grants_per_sec=len(found) / (now - last),
            p50_ms=1e3 * found[len(found) // 2] if found else math.nan,
            p99_ms=1e3 * found[len(found) * 99 // 100] if found else math.nan,
        )
        samples.append(sample)
        if len(samples) % 12 == 0:
            memory, latency = f"{sample.memory_mb:.1f} MB", f"p50 {sample.p50_ms:.1f} ms, p99 {sample.p99_ms:.1f} ms"
            common.say(f"{sample.at_sec:.0f} s: {memory}, {sample.grants_per_sec:.0f} grants/s, {latency}")
        last, before = now, spent
    return samples


async def _report(agent: SimulatedAgent) -> None:
    while True:
        agent.report_all(temp_c=random.uniform(30.0, 60.0))
        await asyncio.sleep(_REPORT_SEC)


async def _look(address: str) -> None:
    async with account_channel(address) as channel:
        while True:
            await fleet_service_stub(channel).get_fleet(fleet_service_pb2.GetFleetRequest())
            await asyncio.sleep(_LOOK_SEC)


def trend_of(samples: Sequence[Sample], name: str) -> Trend:
    """Fit a line through one figure of all samples but those of the warm-up."""
    settled = [sample for sample in samples if sample.at_sec > warm_up_sec(samples)]
    points = [(sample.at_sec / 3600.0, float(getattr(sample, name))) for sample in settled]
    points = [(at, value) for at, value in points if not math.isnan(value)]
    if len(points) < 3:
        raise ValueError(f"{len(points)} samples are too few for a line")
    hours, values = zip(*points, strict=True)
    slope, intercept = statistics.linear_regression(hours, values)
    mean_hour, mean = statistics.fmean(hours), statistics.fmean(values)
    left_over = sum((value - intercept - slope * at) ** 2 for at, value in points) / (len(points) - 2)
    error = math.sqrt(left_over / sum((at - mean_hour) ** 2 for at in hours))
    rise = slope * (hours[-1] - hours[0])
    is_rising = rise > _FLAT_SHARE * mean and slope > _STANDARD_ERRORS * error
    return Trend(mean=mean, per_hour=slope, error_per_hour=error, is_rising=is_rising)


def warm_up_sec(samples: Sequence[Sample]) -> float:
    """Return the length of a run's warm-up."""
    return min(_WARM_UP_SEC, _WARM_UP_SHARE * samples[-1].at_sec)


def picture(samples: Sequence[Sample], *, title: str) -> str:
    """Draw each figure over time."""
    last = f"{samples[-1].at_sec / 60.0:.0f} min"
    panels = [
        Panel(
            title=shown,
            curves={"tracker": [float(getattr(sample, name)) for sample in samples]},
            lines={},
            first="0",
            last=last,
        )
        for name, shown in _SHOWN.items()
    ]
    return svg_plots(panels, title=title)


def _print(
    samples: Sequence[Sample],
    trends: dict[str, Trend],
    minutes: float,
    devices: int,
    clients: int,
    broken: int,
    *,
    quick: bool,
    machine: common.Machine,
) -> None:
    rows = [
        (
            _SHOWN[name],
            f"{getattr(samples[0], name):.2f}",
            f"{trend.mean:.2f}",
            f"{getattr(samples[-1], name):.2f}",
            f"{trend.per_hour:+.2f} ± {trend.error_per_hour:.2f}",
            "rises" if trend.is_rising else "flat",
        )
        for name, trend in trends.items()
    ]
    settled = next(sample for sample in samples if sample.at_sec > warm_up_sec(samples))
    rate = statistics.fmean(sample.grants_per_sec for sample in samples)
    notes = [
        f"{minutes:g} minutes, {devices:,} devices, {clients} clients, {rate:.0f} grants/s; "
        f"{samples[-1].threads} threads and {samples[-1].files} open files at the end, "
        f"{settled.threads} and {settled.files} after {settled.at_sec:.0f} s",
        f"{broken} streams of clients broke",
        f"lines from {settled.at_sec:.0f} s on; what rises does so by more than {100 * _FLAT_SHARE:g} % of its mean "
        f"during the run, and by more than {_STANDARD_ERRORS:g} standard errors",
        *common.doubts(machine, quick=quick),
    ]
    common.print_table("a tracker under load", ("", "first", "mean", "last", "an hour", ""), rows, notes)


if __name__ == "__main__":
    sys.exit(main())
