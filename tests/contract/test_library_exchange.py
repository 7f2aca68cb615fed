"""The exchange files, held against MetaSchedule's own JSONDatabase."""

from __future__ import annotations

import hashlib
import json
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fleet.domain.measuring import ErrorKind, TensorSpec
from fleet.domain.scope import RecordScope, ScopeFilter
from fleet.errors import InvalidRequest, LibraryError
from fleet.library import Library, Record, StoredWorkload, trace_digest
from fleet.library.exchange import RECORD_FILE, WORKLOAD_FILE, export_json, import_json
from fleet.workloads import programs
from fleet.workloads.workload import module_of

X86 = {"kind": "llvm", "mcpu": "x86-64-v3", "num-cores": 2}
PI4 = RecordScope(target_json="", device_model="pi4", tvm_version="0.27.0")
ARM = {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mattr": ["+neon"], "num-cores": 4}


def matmul(size: int) -> Any:
    return module_of(programs.matmul(size).mod_json)


def tiled(mod: Any, factor: int, note: float) -> Any:
    """A schedule with one tile size and an annotated number."""
    from tvm.s_tir import Schedule

    schedule = Schedule(mod)
    block = schedule.get_sblock("C")
    loops = schedule.get_loops(block)
    schedule.split(loops[0], [None, factor])
    schedule.annotate(block, "meta_schedule.unroll_explicit", note)
    return schedule


def trace_json(ms: Any, schedule: Any, mod: Any) -> str:
    """A trace as code hands it to the library."""
    record = ms.database.TuningRecord(schedule.trace, ms.database.Workload(mod), [1.0], None, None)
    return json.dumps(record.as_json()[0])


def write_stock(ms: Any, directory: Path) -> Any:
    """A directory as a stock tuning run leaves it."""
    from tvm.target import Target

    directory.mkdir()
    database = ms.database.JSONDatabase(work_dir=str(directory))
    for size in (16, 32):
        mod = matmul(size)
        workload = database.commit_workload(mod)
        args = ms.arg_info.ArgInfo.from_prim_func(mod["main"])
        for number, run_secs in enumerate(([1e-3, 1 / 3], [2e-3], [1e10], None)):
            target = Target(ARM if number == 1 else X86)
            trace = tiled(mod, 4 + number, 0.1 * number).trace
            database.commit_tuning_record(ms.database.TuningRecord(trace, workload, run_secs, target, args))
    return database


@pytest.mark.slow
def test_import_reads_a_database_of_stock_metaschedule(ms: Any, library: Library, tmp_path: Path) -> None:
    """Import keeps workloads, traces, times, targets and arguments, names failures, and records their origin."""
    from tvm.target import Target

    write_stock(ms, tmp_path / "stock")

    exchanged = import_json(library, tmp_path / "stock", PI4)

    assert (exchanged.workloads, exchanged.records, exchanged.known_records) == (2, 8, 0)
    shash = str(ms.database.Workload(matmul(16)).as_json()[0])
    assert library.workload(shash).args == (TensorSpec((16, 16), "float32"),) * 3
    assert library.workload(shash).name == "imported_C_16x16"
    first, second, third, fourth = library.records(shash)
    assert (first.run_secs, first.scope.device_model, first.scope.tvm_version) == ((1e-3, 1 / 3), "pi4", "0.27.0")
    assert first.provenance == {"imported_from": str(tmp_path / "stock" / RECORD_FILE)}
    assert second.run_secs == (2e-3,)
    assert (third.error, fourth.error) == (ErrorKind.RUN_FAILED, ErrorKind.RUN_FAILED)
    assert [r.id for r in library.best(shash, ScopeFilter(target_json=str(Target(X86))), k=9)] == [first.id]
    assert [r.id for r in library.best(shash, ScopeFilter(target_json=json.dumps(ARM)), k=9)] == [second.id]


@pytest.mark.slow
def test_a_trace_from_a_file_is_the_trace_from_memory(ms: Any, library: Library, tmp_path: Path) -> None:
    """TVM spells numbers differently in files and in Python; both have one digest."""
    write_stock(ms, tmp_path / "stock")
    import_json(library, tmp_path / "stock", PI4)

    shash = str(ms.database.Workload(matmul(16)).as_json()[0])
    in_memory = trace_json(ms, tiled(matmul(16), 4, 0.0), matmul(16))
    assert library.records(shash)[0].trace_digest == trace_digest(in_memory)


@pytest.mark.slow
def test_importing_again_adds_no_records(ms: Any, library: Library, tmp_path: Path) -> None:
    """A second import of the same files adds nothing; for another device they are other records."""
    write_stock(ms, tmp_path / "stock")
    import_json(library, tmp_path / "stock", PI4)

    again = import_json(library, tmp_path / "stock", PI4)

    assert (again.records, again.known_records, len(library.records())) == (8, 8, 8)
    import_json(library, tmp_path / "stock", replace(PI4, device_model="pi5"))
    assert len(library.records()) == 16


def test_an_export_has_one_time_for_each_candidate(library: Library, tmp_path: Path) -> None:
    """MetaSchedule's JSONDatabase takes the fastest line: a time that was disturbed and replaced must not be one."""
    library.add_workload(StoredWorkload(shash="1", name="w", mod_json="{}"))
    given = Record(workload="1", scope=PI4, trace_json="[[1],[]]")
    disturbed = {"disturbances": [{"kind": "OTHER", "text": "throttled"}]}
    library.add_records(
        [
            replace(given, run_secs=(1e-6,), provenance=disturbed),
            replace(given, run_secs=(3e-3,)),
            replace(given, run_secs=(2e-3,)),
            replace(given, run_secs=(9e-3,), provenance=disturbed),
            replace(given, trace_json="[[2],[]]", run_secs=(4e-3,)),
        ]
    )

    exported = export_json(library, tmp_path)

    lines = [json.loads(line) for line in (tmp_path / RECORD_FILE).read_text().splitlines()]
    assert (exported.workloads, exported.records) == (1, 2)
    assert [line[1][1] for line in lines] == [[2e-3], [4e-3]]


def test_an_export_has_the_best_checked_candidates_of_each_scope(library: Library, tmp_path: Path) -> None:
    """Times of two devices do not compare, so each has its best."""
    library.add_workload(StoredWorkload(shash="1", name="w", mod_json="{}"))
    for scope in (PI4, replace(PI4, device_model="pi5")):
        library.add_records(
            Record(
                workload="1",
                scope=scope,
                trace_json=f"[[{number}],[]]",
                run_secs=(number * 1e-3,),
                checked=True if number > 1 else None,
            )
            for number in (4, 3, 2, 1)
        )

    def exported(**options: Any) -> list[Any]:
        export_json(library, tmp_path, overwrite=True, **options)
        return [json.loads(line)[1][0][0][0] for line in (tmp_path / RECORD_FILE).read_text().splitlines()]

    assert exported(best=1) == [1, 1]
    assert exported(best=2, checked_only=True) == [3, 2, 3, 2]
    assert exported(checked_only=True, within=PI4) == [4, 3, 2]


@pytest.mark.slow
def test_export_after_import_gives_identical_bytes(ms: Any, library: Library, tmp_path: Path) -> None:
    """Importing and exporting gives MetaSchedule's own bytes, except for records without times."""
    write_stock(ms, tmp_path / "stock")
    import_json(library, tmp_path / "stock", PI4)

    exchanged = export_json(library, tmp_path / "out")

    assert (exchanged.workloads, exchanged.records) == (2, 4)
    stock_workloads = (tmp_path / "stock" / WORKLOAD_FILE).read_text().strip()
    stock_records = (tmp_path / "stock" / RECORD_FILE).read_text().strip().splitlines()
    with_times = [line for line in stock_records if json.loads(line)[1][1] not in (None, [10000000000])]
    assert (tmp_path / "out" / WORKLOAD_FILE).read_text().strip() == stock_workloads
    assert (tmp_path / "out" / RECORD_FILE).read_text().strip().splitlines() == with_times


@pytest.mark.slow
def test_metaschedule_finds_the_best_exported_record(ms: Any, library: Library, tmp_path: Path) -> None:
    """Stock code finds the library's own best record by module and applies its schedule."""
    import tvm
    from tvm.target import Target

    mod = matmul(16)
    shash = str(ms.database.Workload(mod).as_json()[0])
    args = (TensorSpec((16, 16), "float32"),) * 3
    library.add_workload(StoredWorkload(shash=shash, name="matmul", mod_json=tvm.ir.save_json(mod), args=args))
    for factor, sec in ((2, 2e-3), (4, 1e-3), (8, 3e-3)):
        library.add_record(
            Record(
                workload=shash,
                scope=replace(PI4, target_json=json.dumps(X86)),
                trace_json=trace_json(ms, tiled(mod, factor, 0.5), mod),
                run_secs=(sec, sec),
            )
        )

    export_json(library, tmp_path / "out")

    database = ms.database.JSONDatabase(work_dir=str(tmp_path / "out"), allow_missing=False)
    assert len(database) == 3
    schedule = database.query_schedule(mod, Target(X86), "main")
    tvm.ir.assert_structural_equal(schedule.mod, tiled(mod, 4, 0.5).mod)
    [best] = database.get_top_k(database.commit_workload(mod), 1)
    assert [sec.value for sec in best.run_secs] == [1e-3, 1e-3]


def test_an_export_overwrites_files_only_on_request(library: Library, tmp_path: Path) -> None:
    """A directory that has a database is refused, and overwritten only with permission."""
    export_json(library, tmp_path / "out")

    with pytest.raises(LibraryError, match="already"):
        export_json(library, tmp_path / "out")
    assert export_json(library, tmp_path / "out", overwrite=True).records == 0
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == sorted([WORKLOAD_FILE, RECORD_FILE])


@pytest.mark.parametrize(
    ("workloads", "records", "message"),
    [
        ("", "[0, [[[],[]],[1],null,null]]", "workload 0"),
        ('["1","AAAA"]', "", "workload.json:1"),
        ("nonsense", "", "is not JSON"),
        ('["1","DAAAAAAAAAB7Im5vZGVzIjpbXX0="]', "[0, 7]", "record.json:1"),
        ('["1","DAAAAAAAAAB7Im5vZGVzIjpbXX0="]', None, "cannot read"),
    ],
)
def test_files_that_are_no_database_are_refused(
    library: Library, tmp_path: Path, workloads: str, records: str | None, message: str
) -> None:
    """The message names the file and line, and nothing is stored."""
    (tmp_path / WORKLOAD_FILE).write_text(workloads)
    if records is not None:
        (tmp_path / RECORD_FILE).write_text(records)

    with pytest.raises(LibraryError, match=message):
        import_json(library, tmp_path, PI4)
    assert library.find_workloads() == []


def test_a_device_model_must_be_named(library: Library, tmp_path: Path) -> None:
    """Times of unknown hardware are of no use."""
    with pytest.raises(InvalidRequest, match="device model"):
        import_json(library, tmp_path, replace(PI4, device_model=""))


def write_database(directory: Path, count: int, last: str = "") -> list[str]:
    """Write a database of one workload and some records; return their traces."""
    traces = [
        f'[[["Split",["l1",{number}],[0.25],["b0"]]],[[0,[0.10000000000000000555,1]]]]' for number in range(count)
    ]
    directory.mkdir()
    (directory / WORKLOAD_FILE).write_text('["1","DAAAAAAAAAB7Im5vZGVzIjpbXX0="]\n')
    lines = [f"[0,[{trace},[0.001],null,null]]\n" for trace in traces]
    (directory / RECORD_FILE).write_text("".join([*lines, last]))
    return traces


def test_nothing_is_imported_if_the_last_line_is_refused(library: Library, tmp_path: Path) -> None:
    """All lines are checked before the first is stored."""
    write_database(tmp_path / "in", 600, last='[0,[[[["Evil",[],[],[]]],[]],[1],null,null]]')

    with pytest.raises(InvalidRequest, match=r"record.json:601 is refused.*'Evil'"):
        import_json(library, tmp_path / "in", PI4)
    write_database(tmp_path / "times", 1, last="[0,[[[],[]],[-1],null,null]]")
    with pytest.raises(InvalidRequest, match=r"record.json:2 is refused.*impossible times"):
        import_json(library, tmp_path / "times", PI4)

    assert library.find_workloads() == []


def test_a_file_that_changes_while_it_is_imported_is_refused(url: str, tmp_path: Path) -> None:
    """A batch that changed between its check and its turn is not stored."""
    write_database(tmp_path / "in", 2)

    class Changing(Library):
        def add_workloads(self, workloads: Any) -> None:
            super().add_workloads(workloads)
            write_database(tmp_path / "other", 2, last='[0,[[[["Evil",[],[],[]]],[]],[1],null,null]]')
            (tmp_path / "other" / RECORD_FILE).replace(tmp_path / "in" / RECORD_FILE)

    with Changing.open(url) as library:
        with pytest.raises(LibraryError, match="was changed while it was read"):
            import_json(library, tmp_path / "in", PI4)
        assert library.records() == []


def test_a_uid_is_that_of_earlier_versions(library: Library, tmp_path: Path) -> None:
    """Otherwise another import of the same file would add all its records again."""
    [trace] = write_database(tmp_path / "in", 1)

    import_json(library, tmp_path / "in", PI4)

    [stored] = library.records()
    content = ["1", json.dumps(json.loads(trace), separators=(",", ":")), [0.001], "", "pi4"]
    assert stored.uid == f"import-{hashlib.sha256(json.dumps(content).encode()).hexdigest()}-0"
    assert stored.trace_json == content[1]
    assert stored.trace_digest == trace_digest(trace)


@pytest.mark.slow
def test_an_import_that_was_killed_is_completed_by_the_next(tmp_path: Path) -> None:
    """Each batch is stored whole or not at all."""
    write_database(tmp_path / "in", 1200)
    code = f"""
import os, pathlib, signal
from fleet.library import Library
from fleet.library.exchange import import_json
from tests.contract.test_library_exchange import PI4
class Killed(Library):
    def add_imported(self, new):
        if super().records():
            os.kill(os.getpid(), signal.SIGKILL)
        return super().add_imported(new)
import_json(Killed.open({str(tmp_path / "library.sqlite")!r}), pathlib.Path({str(tmp_path / "in")!r}), PI4)
"""

    killed = subprocess.run([sys.executable, "-c", code], check=False, timeout=100)

    assert killed.returncode == -signal.SIGKILL
    with Library.open(tmp_path / "library.sqlite") as library:
        assert len(library.records()) == 500
        again = import_json(library, tmp_path / "in", PI4)
        assert (again.records, again.known_records, len(library.records())) == (1200, 500, 1200)
