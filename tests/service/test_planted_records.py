"""Records that carry code are refused on import, and before replay if they are already in a library."""

from __future__ import annotations

import base64
import importlib.metadata
import json
import struct
import subprocess
import sys
from pathlib import Path

import pytest
import tvm

from cross.targets.target import host_target
from fleet.domain.scope import RecordScope
from fleet.errors import InvalidRequest
from fleet.library import Library, Record, StoredWorkload
from fleet.library.exchange import RECORD_FILE, WORKLOAD_FILE, import_json
from fleet.workloads import programs

pytestmark = pytest.mark.slow

PLANTED = "PLANTED_BY_A_RECORD"
LLVM_IR = f'@text = constant [{len(PLANTED)} x i8] c"{PLANTED}"'
TRACE = [
    [
        ["GetSBlock", [], ["C", "main"], ["b0"]],
        ["GetLoops", ["b0"], [], ["l1", "l2", "l3"]],
        ["Annotate", ["l1", json.dumps(LLVM_IR)], ["pragma_import_llvm"], []],
    ],
    [],
]
VERSION = importlib.metadata.version("apache-tvm")


def write_files(folder: Path, mod_json: str, trace: object) -> None:
    """Write the two files of a MetaSchedule database with one record."""
    folder.mkdir()
    text = mod_json.encode()
    encoded = base64.b64encode(struct.pack("<Q", len(text)) + text).decode()
    workload = programs.matmul(16)
    (folder / WORKLOAD_FILE).write_text(json.dumps([workload.shash, encoded]) + "\n")
    record = [0, [trace, [1e-9], dict(host_target().options), None]]
    (folder / RECORD_FILE).write_text(json.dumps(record) + "\n")


def test_an_imported_trace_with_llvm_code_is_refused_with_its_place(tmp_path: Path) -> None:
    """The import stores nothing, so no build can use it."""
    write_files(tmp_path / "theirs", programs.matmul(16).mod_json, TRACE)
    scope = RecordScope(target_json="", device_model="mine", tvm_version=VERSION)

    with (
        Library.open(tmp_path / "library.sqlite") as library,
        pytest.raises(InvalidRequest, match=rf"{RECORD_FILE}:1 is refused: instruction 2 .*pragma_import_llvm"),
    ):
        import_json(library, tmp_path / "theirs", scope)
    with Library.open(tmp_path / "library.sqlite") as library:
        assert (library.find_workloads(), library.records()) == ([], [])


def test_an_imported_program_that_calls_a_packed_function_is_refused(tmp_path: Path) -> None:
    """A workload is code as well: this one would load a library of its author's choice."""
    from tvm import te, tirx

    given = te.placeholder((16,), name="a")
    call = te.compute((16,), lambda i: tirx.call_packed("runtime.ModuleLoadFromFile", given[i]).astype("float32"))
    mod = tvm.IRModule({"main": te.create_prim_func([given, call])})
    write_files(tmp_path / "theirs", tvm.ir.save_json(mod), [[], []])
    scope = RecordScope(target_json="", device_model="mine", tvm_version=VERSION)

    with (
        Library.open(tmp_path / "library.sqlite") as library,
        pytest.raises(InvalidRequest, match=rf"{WORKLOAD_FILE}:1 is refused: node \d+ of its program"),
    ):
        import_json(library, tmp_path / "theirs", scope)


def test_a_build_refuses_a_planted_record_of_a_shared_library(tmp_path: Path) -> None:
    """A shared library has other writers, so the trace is checked again before it is replayed."""
    workload, path = programs.matmul(16), tmp_path / "library.sqlite"
    scope = RecordScope(target_json=host_target().json, device_model="mine", tvm_version=VERSION)
    with Library.open(path) as library:
        library.add_workload(StoredWorkload(shash=workload.shash, name="matmul", mod_json=workload.mod_json))
        planted = Record(workload=workload.shash, scope=scope, trace_json=json.dumps(TRACE), run_secs=(1e-9,))
        library.add_record(planted)

    command = [
        sys.executable,
        "-m",
        "fleet",
        "build",
        "matmul-16",
        "--library",
        str(path),
        "-o",
        str(tmp_path / "out.so"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert done.returncode != 0, done.stderr
    assert "pragma_import_llvm" in done.stderr
    assert not any(PLANTED.encode() in file.read_bytes() for file in tmp_path.glob("*.so"))


def test_a_database_leaves_a_planted_record_out(tmp_path: Path) -> None:
    from fleet.metaschedule import FleetDatabase

    workload, path = programs.matmul(16), tmp_path / "library.sqlite"
    scope = RecordScope(target_json=host_target().json, device_model="mine", tvm_version=VERSION)
    with Library.open(path) as library:
        library.add_workload(StoredWorkload(shash=workload.shash, name="matmul", mod_json=workload.mod_json))
        planted = Record(workload=workload.shash, scope=scope, trace_json=json.dumps(TRACE), run_secs=(1e-9,))
        library.add_record(planted)
    database = FleetDatabase(path)

    target = tvm.target.Target(dict(host_target().options))
    assert database.query_tuning_record(tvm.ir.load_json(workload.mod_json), target, "main") is None
    database.close()
