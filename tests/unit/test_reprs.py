"""Values at the prompt: one readable line for each, also with untrusted text in it."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from fleet.domain.devices import DeviceState, DeviceStatus, Inventory
from fleet.domain.jobs import JobState, JobStatus
from fleet.domain.leases import Lease, LeaseTerms, PendingRequest
from fleet.domain.measuring import Measurement
from fleet.domain.scope import RecordScope
from fleet.domain.snapshot import Snapshot
from fleet.errors import ErrorKind
from fleet.library import Job, JobSummary, Library, Record, StoredWorkload

PI = Inventory(kind="cpu", device_model="Cortex-A72 x4", labels={"arch": "aarch64"})
LEASED = DeviceStatus(name="devices/pi4", inventory=PI, state=DeviceState.LEASED, holder="ann@desk")
LEASE = Lease(name="leases/7", device_name="devices/pi4", epoch=12, holder="ann@desk")
NOON = datetime(2026, 11, 22, 12, tzinfo=UTC)
JOB = Job(name="jobs/1", title="a\nb.onnx", state=JobState.RUNNING, trials_total=8, started_at=NOON, touched_at=NOON)
DRIFT = {"disturbances": [{"kind": "REFERENCE_DRIFT", "text": "slower"}]}


@pytest.mark.parametrize(
    ("value", "line"),
    [
        (PI, "<Inventory Cortex-A72 x4, kind=cpu, arch=aarch64>"),
        (LEASED, "<DeviceStatus devices/pi4 LEASED, Cortex-A72 x4, held by ann@desk>"),
        (
            DeviceStatus(name="devices/gpu", state=DeviceState.FAULTED, reason="no\x1b[31m driver"),
            "<DeviceStatus devices/gpu FAULTED: no[31m driver>",
        ),
        (LEASE, "<Lease leases/7 on devices/pi4, epoch 12, held by ann@desk>"),
        (
            PendingRequest(
                request_id="1",
                terms=LeaseTerms(selector="kind=cpu"),
                holder="bob",
                position=2,
                reason="devices/pi4 is held",
            ),
            "<PendingRequest for kind=cpu by bob, 2 before it: devices/pi4 is held>",
        ),
        (
            Snapshot(version=3, devices=(LEASED,), leases=(LEASE,), request_count=4),
            "<Snapshot 3: 1 devices, 1 leases, 4 waiting, 0 jobs>",
        ),
        (
            JobStatus(name="jobs/1", title="a.onnx", trials_done=3, trials_total=8),
            "<JobStatus jobs/1 RUNNING: a.onnx, 3/8 trials>",
        ),
        (
            Measurement(candidate_id="1", run_secs=(1.5e-5, 1.6e-5, 1.7e-5), provenance=DRIFT),
            "<Measurement 16 us, median of 3, disturbed by REFERENCE_DRIFT>",
        ),
        (
            Measurement(candidate_id="1", error=ErrorKind.CRASHED, error_message="signal 11\nat 0x0" + 300 * "."),
            "<Measurement CRASHED: signal 11 at 0x0" + 184 * "." + ">",
        ),
        (JOB, "<Job jobs/1 RUNNING: a b.onnx, 0 of 8 trials>"),
        (replace(JOB, conditions={"minutes": 3.0, "trials": None}), "<Job jobs/1 RUNNING: a b.onnx, 0 trials>"),
        (JobSummary(job=JOB, workloads=(), model_runs=()), "<JobSummary jobs/1 RUNNING: a b.onnx, 0 workloads>"),
        (StoredWorkload(shash="12", name="conv", mod_json="{}" * 9000), "<StoredWorkload 12: conv>"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_value_is_one_line(value: object, line: str) -> None:
    """The line has the kind, state and holder, but neither the hundred other fields nor control characters."""
    assert repr(value) == line


def test_a_library_and_its_records_are_one_line_each(tmp_path: Path) -> None:
    """A library shows its file; a record shows its time, kind and device model."""
    path = tmp_path / "library.sqlite"
    with Library.open(path) as library:
        library.add_workload(StoredWorkload(shash="12", name="conv", mod_json="{}"))
        scope = RecordScope(target_json="llvm", device_model="pi4", tvm_version="0.27")
        record = library.add_record(Record(workload="12", scope=scope, trace_json="[[1],[]]", run_secs=(2e-3,)))

        assert repr(library) == f"<Library {path}>"
        assert repr(record) == f"<Record {record.id}: 2 ms, candidate of 12 on pi4>"
