"""Records that a library stores per second, each in a transaction of its own, and several in one.

A job stores a batch's results in few transactions, and before anything else happens to them, so this bounds the trials
per second of all jobs on one library. A record is as in a job: a trace of 24 steps, four times, provenance, features of
four stores. SQLite is a file in the temporary folder; `--library` names another database, which must be an empty one:

    python -m benchmarks.library_rate --library postgresql://fleet@database.example.com/empty
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

if not __package__:  # run as a file: python benchmarks/library_rate.py
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np

from benchmarks import common
from fleet.cost_model.feature_codec import pack_program
from fleet.domain.scope import RecordScope
from fleet.library import Library, Record, StoredWorkload

_WRITERS = 4
_TOGETHER = 16
_RECORDS, _QUICK_RECORDS = 1024, 64
_WORKLOAD = StoredWorkload(shash="1", name="matmul", mod_json="{}", flop=1.0)
_SCOPE = RecordScope(target_json='{"kind": "llvm"}', device_model="a board", tvm_version="0.27")
_STEPS = ", ".join(['["Split", ["l1", 4, 8], [1], ["l2", "l3"]]'] * 24)


@dataclass(frozen=True, slots=True)
class Rate:
    """Figures of one round."""

    per_sec: float
    cpu_ms: float
    """Processor time of this process per record; of SQLite that is all of it."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark."""
    parser = common.make_parser("library_rate", __doc__ or "", rounds=3)
    parser.add_argument("--library", metavar="URL", help="an empty database (default: a new file of SQLite)")
    options = parser.parse_args(argv)
    machine = common.machine()
    count = _QUICK_RECORDS if options.quick else _RECORDS
    rounds = options.rounds or (1 if options.quick else 3)
    with tempfile.TemporaryDirectory(prefix="fleet-rate-") as folder:
        url = options.library or str(Path(folder) / "library.sqlite")
        sides: dict[str, Callable[[int], Rate]] = {
            "one writer, one at a time": lambda _: _rate(url, count, writers=1, together=1),
            f"{_WRITERS} writers, one at a time": lambda _: _rate(url, count, writers=_WRITERS, together=1),
            f"one writer, {_TOGETHER} at a time": lambda _: _rate(url, count, writers=1, together=_TOGETHER),
        }
        found = common.alternate(sides, rounds)
    rates = {side: sorted(round(one.per_sec) for one in each) for side, each in found.items()}
    cpu_ms = {side: round(min(one.cpu_ms for one in each), 2) for side, each in found.items()}
    single, _, together = (round(common.median_of(each, lambda one: one.per_sec)) for each in found.values())
    rows = [
        (side, f"{each[len(each) // 2]:,}", f"{each[0]:,}-{each[-1]:,}", f"{cpu_ms[side]:.2f}")
        for side, each in rates.items()
    ]
    notes = [f"{count} records in each of {rounds} rounds", *common.doubts(machine, quick=options.quick)]
    common.print_table("records per second", ("", "median", "range", "CPU [ms], least"), rows, notes)
    figures = {
        "name": "library_rate",
        "unit": f"records per second; peer: one, ours: {_TOGETHER} in a transaction",
        "peer": single,
        "ours": together,
        "ratio": round(together / single, 2),
        "rates": rates,
        "cpu_ms": cpu_ms,
        "quick": options.quick,
        "machine": machine,
    }
    common.print_json(figures, wanted=options.json)
    return 0


def _rate(url: str, count: int, *, writers: int, together: int) -> Rate:
    """Store records from threads that each have a library of their own, as jobs have."""
    libraries = [Library.open(url) for _ in range(writers)]
    libraries[0].add_workload(_WORKLOAD)
    try:
        with ThreadPoolExecutor(writers) as threads:
            started, cpu_started = time.monotonic(), time.process_time()
            list(threads.map(lambda library: _write(library, count // writers, together), libraries))
            took_sec, cpu_sec = time.monotonic() - started, time.process_time() - cpu_started
            return Rate(count / took_sec, cpu_sec / count * 1e3)
    finally:
        for library in libraries:
            library.close()


def _write(library: Library, count: int, together: int) -> None:
    features = np.linspace(0, 10, 4 * 164, dtype=np.float32).reshape(4, 164)
    record = Record(
        workload=_WORKLOAD.shash,
        scope=_SCOPE,
        trace_json=f"[[{_STEPS}], []]",
        run_secs=(1.0e-3, 1.1e-3, 1.0e-3, 1.2e-3),
        device_name="devices/a-board",
        artifact_digest="sha256:" + 64 * "0",
        provenance={"device_sec": 0.05, "temperature_c": 51.0, "clock_mhz": 1800, "governor": "performance"},
        program=pack_program(1, features),
    )
    for _ in range(count // together):
        library.add_records([record] * together)


if __name__ == "__main__":
    sys.exit(main())
