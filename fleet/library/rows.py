"""Converts values to rows and back, and checks input."""

from __future__ import annotations

import statistics
import uuid
from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa

from fleet.domain.keys import canonical_target, trace_digest
from fleet.domain.measuring import ABSURD_SEC, ErrorKind, TensorSpec
from fleet.domain.scope import RecordScope
from fleet.errors import InvalidRequest
from fleet.library.values import Job, JobState, ModelRun, Record, RecordKind, StoredWorkload

Row = Mapping[str, Any]


def clean(text: str) -> str:
    """Drop characters that no database stores: zero bytes, and lone surrogates from undecodable file names or a
    crash's output.
    """
    return text.replace("\0", "").encode("utf-8", "replace").decode()


def workload_row(workload: StoredWorkload) -> dict[str, object]:
    return {
        "shash": workload.shash,
        "name": clean(workload.name),
        "mod_json": workload.mod_json,
        "flop": workload.flop,
        "args": [[list(spec.shape), spec.dtype, spec.is_output] for spec in workload.args],
    }


def workload_of(row: Row) -> StoredWorkload:
    return StoredWorkload(
        shash=row["shash"],
        name=row["name"],
        mod_json=row["mod_json"],
        flop=row["flop"],
        args=args_of(row["args"]),
    )


def args_of(column: list[tuple[list[int], str, bool]]) -> tuple[TensorSpec, ...]:
    """Return a workload's arguments."""
    return tuple(TensorSpec(tuple(shape), dtype, is_output) for shape, dtype, is_output in column)


def record_row(record: Record, *, workload_id: int, job_id: int | None) -> dict[str, object]:
    """Return the row of a new record.

    Raises:
        InvalidRequest: neither times nor an error, impossible times, or a trace or target that is not JSON.
    """
    check_new(record)
    return {
        "uid": record.uid or uuid.uuid4().hex,
        "workload_id": workload_id,
        "job_id": job_id,
        "kind": record.kind.value,
        "target_json": record.scope.target_json,
        "target_key": canonical_target(record.scope.target_json),
        "device_model": clean(record.scope.device_model),
        "device_name": clean(record.device_name),
        "device_fingerprint": clean(record.device_fingerprint),
        "tvm_version": record.scope.tvm_version,
        "trace_json": record.trace_json,
        "trace_digest": trace_digest(record.trace_json),
        "run_secs": list(record.run_secs),
        "median_sec": None if record.error else statistics.median(record.run_secs),
        "error": record.error.value if record.error else None,
        "error_message": clean(record.error_message),
        "artifact_digest": record.artifact_digest,
        "provenance": dict(record.provenance),
        "checked": record.checked,
        "created_at": record.created_at,
    }


def record_of(row: Row, *, is_proven: bool | None = None) -> Record:
    """Return a record from its row joined with `workload` (shash) and `job_name`."""
    return Record(
        id=row["id"],
        uid=row["uid"],
        workload=row["workload"],
        scope=scope_of(row),
        trace_json=row["trace_json"],
        trace_digest=row["trace_digest"],
        run_secs=tuple(row["run_secs"]),
        error=ErrorKind(row["error"]) if row["error"] else None,
        error_message=row["error_message"],
        job_name=row["job_name"] or "",
        device_name=row["device_name"],
        device_fingerprint=row["device_fingerprint"],
        artifact_digest=row["artifact_digest"],
        kind=RecordKind(row["kind"]),
        provenance=row["provenance"],
        checked=row["checked"],
        created_at=row["created_at"],
        is_proven=is_proven,
    )


def scope_of(row: Row) -> RecordScope:
    return RecordScope(**{name: row[name] for name in ("target_json", "device_model", "tvm_version")})


def job_of(row: Row, order: Row, owner: str = "", tags: tuple[str, ...] = ()) -> Job:
    """Return a job from its row joined with `trials_done` and `trials_failed`, and from the row of its order, if it
    has one.
    """
    plain = ("name", "title", "model_digest", "conditions", "tuner", "message", "holder", "host", "pid")
    ordered = ("spec", "priority", "is_queued", "optimizer", "is_stop_asked", "progress", "report", "reverted_at")
    return Job(
        **{key: row[key] for key in plain},
        **{key: order[key] for key in ordered if key in order},
        owner=owner,
        tags=tags,
        state=JobState(row["state"]),
        trials_total=row["trials_total"],
        trials_done=row["trials_done"] or 0,
        trials_failed=row["trials_failed"] or 0,
        started_at=row["started_at"],
        touched_at=row["touched_at"],
        ended_at=row["ended_at"],
    )


def model_run_of(row: Row, job_name: str) -> ModelRun:
    names = ("untuned_ms", "tuned_ms", "onnxruntime_ms", "max_abs_error", "created_at")
    return ModelRun(job_name=job_name, **{name: row[name] for name in names})


def only(result: sa.CursorResult[tuple[object, ...]]) -> Row | None:
    """Return the only row of a result, or None."""
    row = result.mappings().one_or_none()
    return None if row is None else dict(row)


def check_new(record: Record) -> None:
    """Check the facts of a new record, apart from its trace.

    Raises:
        InvalidRequest: neither times nor an error, impossible times, or a target that is not JSON.
    """
    canonical_target(record.scope.target_json)
    if record.error is None and not record.run_secs:
        raise InvalidRequest(f"a record of workload {record.workload} has neither times nor an error")
    if not all(0 <= sec < ABSURD_SEC for sec in record.run_secs):  # also refuses NaN
        raise InvalidRequest(f"a record of workload {record.workload} has impossible times: {record.run_secs}")
    if record.created_at.tzinfo is None:
        raise InvalidRequest(f"the time {record.created_at} of a record has no time zone")
