"""Common parts of the benchmarks: options, alternating rounds, the table and the one JSON line at the end."""

from __future__ import annotations

import argparse
import json
import os
import platform
import socket
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import numpy as np
import psutil
from rich.console import Console
from rich.table import Table
from rich.text import Text

T = TypeVar("T")
JsonObject: TypeAlias = dict[str, Any]
"""The JSON output of a benchmark or one of its processes."""

REPOSITORY = Path(__file__).resolve().parent.parent

_BUSY_LOAD = 0.25
"""Load average per core above which other work was running."""

_WIDTH = 110
"""Width of tables that go into a file or a pipe."""

_RETRY_SEC = 0.01
_RESAMPLES = 1_000


def make_parser(name: str, description: str, *, rounds: int) -> argparse.ArgumentParser:
    """Return a parser with the options that every benchmark has."""
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}", description=description)
    parser.add_argument("--rounds", type=int, default=None, help=f"alternating rounds (default: {rounds}, quick: 1)")
    parser.add_argument("--quick", action="store_true", help="less work, one round: shows that it runs, not how fast")
    parser.add_argument("--json", action="store_true", help="end with one JSON object on one line")
    return parser


def alternate(sides: Mapping[str, Callable[[int], T]], rounds: int) -> dict[str, list[T]]:
    """Run every side once per round and return the results of each side.

    The order turns around in every other round, so that drift (clocks, other load) does not favour one side.
    """
    results: dict[str, list[T]] = {side: [] for side in sides}
    for number in range(rounds):
        names = list(sides) if number % 2 == 0 else list(sides)[::-1]
        for side in names:
            results[side].append(sides[side](number))
    return results


def median_of(rounds: Sequence[T], key: Callable[[T], float]) -> float:
    """Return the median of one figure over the rounds."""
    return statistics.median(key(item) for item in rounds)


def interval_of_mean(values: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % interval of the mean, by resampling the values."""
    drawn = np.random.default_rng(0).choice(np.asarray(values), (_RESAMPLES, len(values))).mean(axis=1)
    low, high = np.quantile(drawn, [0.025, 0.975])
    return round(float(low), 4), round(float(high), 4)


Machine = dict[str, object]
"""Time and machine of a measurement, as returned by `machine`."""


def machine() -> Machine:
    """Return the time, the machine and the load before the measurement."""
    return {
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "cpu": _cpu_model(),
        "cores": os.cpu_count() or 1,
        "load_before": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
    }


def doubts(machine: Machine, *, quick: bool = False) -> list[str]:
    """Return notes for a table whose figures are not to be quoted: the machine was busy, or the run was short."""
    load, cores = machine["load_before"], machine["cores"]
    found = ["quick: too little work for figures to quote"] if quick else []
    if isinstance(load, float) and isinstance(cores, int) and load > _BUSY_LOAD * cores:
        found.append(
            f"the machine was busy before (load {load} on {cores} cores): trust no figure, and the ratios only a little"
        )
    return found


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], notes: Sequence[str] = ()) -> None:
    """Print a table: the first column names, the others hold figures."""
    table = Table(title=Text(title), title_justify="left", header_style="bold")
    for index, column in enumerate(columns):
        table.add_column(Text(column), justify="right" if index else "left")
    for row in rows:
        table.add_row(*map(Text, row))
    console = _console()
    console.print(table)
    for note in notes:
        console.print(note, style="dim", highlight=False, markup=False)


def say(text: str) -> None:
    """Print progress on stderr."""
    print(text, file=sys.stderr, flush=True)


def print_json(figures: Mapping[str, object], *, wanted: bool) -> None:
    """Print the figures as one line if they are wanted."""
    if wanted:
        print(json.dumps(figures), flush=True)


def physical_cores() -> int:
    """Return the number of threads that can compute at once without sharing a core."""
    return min(psutil.cpu_count(logical=False) or 1, len(psutil.Process().cpu_affinity() or [0]))


def free_port() -> int:
    """Return a port that is free now, for programs that cannot report the one they took."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def retry(attempt: Callable[[], T], refusals: type[Exception] | tuple[type[Exception], ...], timeout_sec: float) -> T:
    """Try until it is not refused any more; raise the last refusal after `timeout_sec`."""
    deadline = time.monotonic() + timeout_sec
    while True:
        try:
            return attempt()
        except refusals:
            if time.monotonic() > deadline:
                raise
            time.sleep(_RETRY_SEC)


def _console() -> Console:
    console = Console()
    return console if console.is_terminal else Console(width=_WIDTH)


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
