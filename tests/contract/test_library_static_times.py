"""Quality of static schedules by kind of operator, from a library's records, on SQLite and on PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from fleet.cli.explain_view import quality_line
from fleet.domain.measuring import ErrorKind, TensorSpec
from fleet.domain.scope import RecordScope
from fleet.domain.workload import Workload
from fleet.library import Library, Record, RecordKind, StoredWorkload
from fleet.optimizer.prioritizer.values import UNKNOWN_GAIN, StaticQuality
from fleet.optimizer.recall import recall
from fleet.optimizer.static_quality import static_qualities

SCOPE = RecordScope(target_json='{"kind":"llvm","mcpu":"x86-64-v4","num-cores":2}', device_model="m", tvm_version="1")
MORE_CORES = replace(SCOPE, target_json='{"kind":"llvm","mcpu":"x86-64-v4","num-cores":64}')
OTHER = replace(SCOPE, target_json='{"kind":"llvm","mcpu":"x86-64-v3","num-cores":2}')


@pytest.fixture
def library(url: str) -> Iterator[Library]:
    with Library.open(url) as library:
        yield library


def matmul(rows: int) -> StoredWorkload:
    args = (
        TensorSpec((rows, 64), "float32"),
        TensorSpec((64, 64), "float32"),
        TensorSpec((rows, 64), "float32", is_output=True),
    )
    return StoredWorkload(shash=str(rows), name="matmul", mod_json="{}", args=args)


def search(library: Library, rows: int, best_sec: float, scope: RecordScope = SCOPE, trials: int = 8) -> None:
    """Store a static schedule of 1 s and a search whose best candidate, the only checked one, takes `best_sec`."""
    library.add_workload(matmul(rows))
    library.add_record(record(rows, 1.0, scope, kind=RecordKind.STATIC, checked=True))
    for number in range(trials):
        library.add_record(record(rows, best_sec + number, scope, number=number, checked=True if number == 0 else None))


def record(rows: int, sec: float, scope: RecordScope = SCOPE, *, number: int = -1, **facts: object) -> Record:
    given: dict[str, object] = {"run_secs": (sec,), "trace_json": f"[[{number}],[]]"}
    return Record(workload=str(rows), scope=scope, **(given | facts))  # type: ignore[arg-type]


def test_gains_over_static_schedules_are_summarized_by_kind(library: Library) -> None:
    """Other numbers of cores count, other instruction sets do not; a gain below 2 % is noise."""
    search(library, 1, best_sec=0.5)
    search(library, 2, best_sec=0.99)
    search(library, 3, best_sec=2.0, scope=MORE_CORES)
    search(library, 4, best_sec=0.1, scope=OTHER)

    found = static_qualities(library, SCOPE.target_json)

    assert found == {"matmul": StaticQuality(kind="matmul", searched=3, improved=1, mean_gain=0.5 / 3)}
    assert found["matmul"].expected_gain == pytest.approx((0.5 + UNKNOWN_GAIN) / 4)


def test_only_right_times_of_searched_workloads_count(library: Library) -> None:
    """Unchecked, wrong and failed candidates prove no gain, and a few trials are no search."""
    search(library, 1, best_sec=0.5, trials=7)
    search(library, 2, best_sec=1.0)
    library.add_record(record(2, 0.1, number=20))
    library.add_record(record(2, 0.1, number=21, checked=False))
    library.add_record(record(2, 0.0, number=22, run_secs=(), error=ErrorKind.CRASHED))

    assert static_qualities(library, SCOPE.target_json)["matmul"] == StaticQuality(
        kind="matmul", searched=1, improved=0, mean_gain=0.0
    )


def test_a_job_expects_little_of_a_kind_that_gained_nothing(library: Library) -> None:
    """A new workload of that kind has its expected gain; one of an unknown kind has the usual one."""
    for rows in range(1, 7):
        search(library, rows, best_sec=1.0)
    new, unknown = matmul(100), StoredWorkload(shash="200", name="my_kernel", mod_json="{}", args=matmul(200).args)

    workloads = [
        Workload(name=one.name, weight=1, mod_json="{}", shash=one.shash, flop=1.0, args=one.args)
        for one in (new, unknown)
    ]
    found, other = (item.quality for item in recall(library, workloads, SCOPE))

    assert found
    assert found.expected_gain == pytest.approx(UNKNOWN_GAIN / 7)
    assert other is None
    assert quality_line(static_qualities(library, SCOPE.target_json)["matmul"]) == (
        "static is enough: 6 of 6 matmul; trials gained 0.0% on average"
    )
