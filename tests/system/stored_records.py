"""A library with one checked record of a model's costliest operator."""

from __future__ import annotations

from pathlib import Path

from fleet.domain.keys import canonical_target
from fleet.domain.scope import RecordScope
from fleet.domain.tvm_versions import tvm_version
from fleet.export.targets import target_of
from fleet.library import Library, Record, StoredWorkload


def store_record(model_file: Path, library_path: Path) -> str:
    """Store a checked record of the model's convolution, and return the name of the operator."""
    from tvm.s_tir import Schedule

    from fleet.models.model import load_model
    from fleet.workloads.extract import extract
    from fleet.workloads.traces import trace_json
    from fleet.workloads.workload import module_of

    workload = max(extract(load_model(model_file), target_of("host")), key=lambda item: item.flop)
    schedule = Schedule(module_of(workload.mod_json))
    block = schedule.get_child_blocks(schedule.get_sblock("root"))[-1]
    schedule.parallel(schedule.get_loops(block)[0])
    scope = RecordScope(
        target_json=canonical_target(target_of("host").json), device_model="it x2", tvm_version=tvm_version() or ""
    )
    stored = StoredWorkload(shash=workload.shash, name=workload.name, mod_json=workload.mod_json, flop=workload.flop)
    facts = {"workload": workload.shash, "scope": scope}
    with Library.open(library_path) as library:
        library.add_workload(stored)
        library.add_record(Record(**facts, trace_json="[[9],[]]", run_secs=(1e-9,), checked=None))  # type: ignore[arg-type]
        library.add_record(Record(**facts, trace_json=trace_json(schedule), run_secs=(1e-6,), checked=True))  # type: ignore[arg-type]
    return workload.name
