"""Time of a library's queries as it grows: all schedules of a model, one workload by its hash, outlines of all, scopes.
Then processor time and memory of exporting all its records, and of importing them twice into a new file of SQLite.

The peer asks for each operator alone, and reads every program to find one workload. The library has as many workloads,
with programs of 20 kB, and records of as many candidates on four device models as asked for; the model has 300 of its
workloads. SQLite is a file in the temporary folder; `--library` names another database, which must be an empty one.

Its short form has 1,000 workloads and 40,000 records; by default there are 5,000 and a million.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

if not __package__:  # run as a file: python benchmarks/library_scale.py
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import common
from fleet.domain.measuring import TensorSpec
from fleet.domain.scope import RecordScope
from fleet.domain.workload import Workload
from fleet.library import Library, Record, RecordKind, StoredWorkload
from fleet.model_schedules import schedules

_WORKLOADS, _RECORDS, _QUICK_WORKLOADS, _QUICK_RECORDS = 5_000, 1_000_000, 1_000, 40_000
_OPERATORS = 300
_SCOPES = [
    RecordScope(target_json='{"kind": "llvm"}', device_model=f"board {number}", tvm_version="0.27")
    for number in range(4)
]
_BATCH = 2_000
_NODES = 500
"""Nodes of a program's JSON: 20 kB."""

_STEPS = 62
"""Steps of a trace: 4 kB."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark."""
    parser = common.make_parser("library_scale", __doc__ or "", rounds=5)
    parser.add_argument("--library", metavar="URL", help="an empty database (default: a new file of SQLite)")
    parser.add_argument("--workloads", type=int, default=None, help=f"workloads (default: {_WORKLOADS:,})")
    parser.add_argument("--records", type=int, default=None, help=f"records (default: {_RECORDS:,})")
    options = parser.parse_args(argv)
    machine = common.machine()
    workloads = options.workloads or (_QUICK_WORKLOADS if options.quick else _WORKLOADS)
    records = options.records or (_QUICK_RECORDS if options.quick else _RECORDS)
    rounds = options.rounds or (1 if options.quick else 5)
    with tempfile.TemporaryDirectory(prefix="fleet-scale-") as folder:
        url = options.library or str(Path(folder) / "library.sqlite")
        with Library.open(url) as library:
            fill(library, workloads, records)
        with Library.open(url) as library:
            questions = _questions(library, workloads)
            found = {name: common.alternate(sides, rounds) for name, sides in questions.items()}
        exchanged = _exchange(url, Path(folder), records)
    ms = {
        name: {side: round(common.median_of(each, lambda sec: sec * 1e3), 2) for side, each in sides.items()}
        for name, sides in found.items()
    }
    rows = [
        (name, f"{sides['peer']:,.1f}" if "peer" in sides else "-", f"{sides['ours']:,.1f}")
        for name, sides in ms.items()
    ]
    notes = [
        f"{workloads:,} workloads, {records:,} records; median of {rounds}",
        *common.doubts(machine, quick=options.quick),
    ]
    common.print_table("queries of a library [ms]", ("", "one by one", "ours"), rows, notes)
    shown = [(one.name, f"{one.per_sec:,.0f}", f"{one.us:,.0f}", f"{one.peak_bytes / 1e6:,.0f}") for one in exchanged]
    columns = ("processor time", "records/s", "us/record", "peak [MB]")
    common.print_table("records to and from MetaSchedule's files", columns, shown, [])
    exchange = {one.name: {"us": one.us, "peak_bytes": one.peak_bytes} for one in exchanged}
    figures = {"name": "library_scale", "unit": "ms", "ms": ms, "workloads": workloads, "records": records}
    figures |= {"exchange": exchange}
    common.print_json({**figures, "quick": options.quick, "machine": machine}, wanted=options.json)
    return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """Cost of a command that reads or writes all records."""

    name: str
    us: float
    """Processor time of each record."""

    peak_bytes: int
    """Most memory that its process had."""

    @property
    def per_sec(self) -> float:
        return 1e6 / self.us


def _exchange(url: str, folder: Path, records: int) -> list[Exchange]:
    out, copy = str(folder / "out"), str(folder / "copy.sqlite")
    importing = ["import", out, "--library", copy, "--device-model", "board", "--tvm-version", "0.27"]
    commands = {
        "export": ["export", out, "--library", url, "--tvm-version", "all"],
        "import": importing,
        "import again": importing,
    }
    return [_measured(name, arguments, records) for name, arguments in commands.items()]


def _measured(name: str, arguments: Sequence[str], records: int) -> Exchange:
    command = [sys.executable, "-m", "fleet", "library", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"fleet library {name} ended with exit code {process.returncode}")
    sec = used.ru_utime + used.ru_stime
    return Exchange(name=name, us=round(sec / records * 1e6, 1), peak_bytes=used.ru_maxrss * 1024)


def fill(library: Library, workloads: int, records: int) -> None:
    """Add workloads, and records of their candidates in equal numbers, of which half were checked."""
    randomness = random.Random(0)
    library.add_workloads(_workload(number, randomness) for number in range(workloads))
    batch: list[Record] = []
    for number in range(records):
        batch.append(_record(number, workloads, randomness))
        if len(batch) == _BATCH or number == records - 1:
            library.add_records(batch)
            batch = []


def _questions(library: Library, count: int) -> dict[str, dict[str, Callable[[int], float]]]:
    model = [
        Workload(shash=str(number), name=f"fused_dense{number}", mod_json="{}", weight=1)
        for number in range(0, count, max(1, count // _OPERATORS))
    ][:_OPERATORS]
    last = str(count - 1)
    return {
        f"schedules of {len(model)} operators": {
            "peer": lambda _: _timed(lambda: [schedules(library, [one], _SCOPES[0]) for one in model]),
            "ours": lambda _: _timed(lambda: schedules(library, model, _SCOPES[0])),
        },
        "one workload by its hash": {
            "peer": lambda _: _timed(lambda: [one for one in library.find_workloads("*") if one.shash == last]),
            "ours": lambda _: _timed(lambda: library.find_workloads(last)),
        },
        "all workloads, to find neighbours": {
            "peer": lambda _: _timed(lambda: library.find_workloads("*")),
            "ours": lambda _: _timed(library.outlines),
        },
        "scopes of all records": {"ours": lambda _: _timed(library.scopes)},
    }


def _timed(question: Callable[[], object]) -> float:
    started = time.monotonic()
    question()
    return time.monotonic() - started


def _workload(number: int, randomness: random.Random) -> StoredWorkload:
    nodes = ",".join(f'{{"type":"ir.IntImm","data":{randomness.randrange(10**6)}}}' for _ in range(_NODES))
    shape = TensorSpec((randomness.randrange(1, 512), 64), "float32")
    args = (shape, replace(shape, shape=(64, 64)), replace(shape, is_output=True))
    name = f"fused_dense{number}"
    return StoredWorkload(shash=str(number), name=name, mod_json=f'{{"nodes":[{nodes}]}}', flop=1e6, args=args)


def _record(number: int, workloads: int, randomness: random.Random) -> Record:
    steps = _steps(randomness)
    return Record(
        workload=str(number % workloads),
        scope=_SCOPES[number // workloads % len(_SCOPES)],
        trace_json=f"[[{','.join(steps)}],[[0,[{randomness.randrange(64)},2,4,8]]]]",
        run_secs=(1e-3 * randomness.random(),) * 4,
        kind=RecordKind.STATIC if number < workloads * len(_SCOPES) else RecordKind.CANDIDATE,
        checked=True if number % 2 else None,
    )


def _steps(randomness: random.Random) -> Iterator[str]:
    """Yield instructions. Every sixth has fractions, which is a usual share."""
    for number in range(_STEPS):
        if number % 6:
            yield f'["SamplePerfectTile",["l{randomness.randrange(99)}"],[4,64],["v1","v2","v3","v4"]]'
        else:
            yield '["SampleCategorical",[],[[0,16,64,512],[0.1,0.2,0.3,0.4]],["v5"]]'


if __name__ == "__main__":
    sys.exit(main())
