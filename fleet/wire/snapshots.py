"""The whole fleet, and the jobs in it, on the wire."""

from __future__ import annotations

import math
from collections.abc import Mapping

from fleet.base.text import sendable
from fleet.domain.jobs import JobState, JobStatus, OptimizerStatus, Remaining
from fleet.domain.snapshot import Snapshot
from fleet.v1 import fleet_service_pb2, job_pb2
from fleet.wire.bookings import booking_from_proto, booking_to_proto
from fleet.wire.devices import device_from_proto, device_to_proto
from fleet.wire.leases import lease_from_proto, lease_to_proto, request_from_proto, request_to_proto
from fleet.wire.times import duration_sec, optional_duration, optional_timestamp, timestamp, timestamp_sec

_STATES: Mapping[JobState, job_pb2.JobState] = {
    JobState.QUEUED: job_pb2.JOB_STATE_QUEUED,
    JobState.RUNNING: job_pb2.JOB_STATE_RUNNING,
    JobState.FINISHED: job_pb2.JOB_STATE_FINISHED,
    JobState.INTERRUPTED: job_pb2.JOB_STATE_INTERRUPTED,
    JobState.FAILED: job_pb2.JOB_STATE_FAILED,
    JobState.CANCELLED: job_pb2.JOB_STATE_CANCELLED,
}
_STATES_BY_NUMBER = {number: state for state, number in _STATES.items()}


def job_to_proto(job: JobStatus) -> job_pb2.Job:
    return job_pb2.Job(
        name=job.name,
        title=sendable(job.title),
        holder=sendable(job.holder),
        holder_note=sendable(job.holder_note),
        state=_STATES[job.state],
        started_at=optional_timestamp(job.started_at_sec),
        trials_done=job.trials_done,
        trials_total=job.trials_total,
        trials_failed=job.trials_failed,
        best_us=job.best_us,
        untuned_us=job.untuned_us,
        workload_count=job.workload_count,
        activity=sendable(job.activity),
        trials_repeated=job.trials_repeated,
        decision=sendable(job.decision),
        share_done=job.share_done,
        left=optional_duration(job.left.expected_sec if job.left else None),
        left_from=optional_duration(job.left.from_sec if job.left else None),
        left_by=optional_duration(job.left.by_sec if job.left else None),
        rest_share=job.rest_share,
        optimizer=sendable(job.optimizer),
        builder_count=job.builder_count,
    )


def job_from_proto(message: job_pb2.Job) -> JobStatus:
    """Read a job. A state known only to newer peers becomes RUNNING."""
    has_rest = message.HasField("rest_share")
    return JobStatus(
        name=message.name,
        title=message.title,
        holder=message.holder,
        holder_note=message.holder_note,
        state=_STATES_BY_NUMBER.get(message.state, JobState.RUNNING),
        started_at_sec=timestamp_sec(message.started_at),
        trials_done=message.trials_done,
        trials_total=message.trials_total,
        trials_failed=message.trials_failed,
        best_us=message.best_us,
        untuned_us=message.untuned_us,
        workload_count=message.workload_count,
        activity=message.activity,
        trials_repeated=message.trials_repeated,
        decision=message.decision,
        share_done=min(1.0, max(0.0, message.share_done)),  # in this order, so that no NaN passes
        optimizer=message.optimizer,
        builder_count=message.builder_count,
        left=_left_of(message) if message.HasField("left") else None,
        rest_share=max(0.0, message.rest_share) if math.isfinite(message.rest_share) and has_rest else None,
    )


def _left_of(message: job_pb2.Job) -> Remaining:
    expected_sec = max(0.0, duration_sec(message.left))
    return Remaining(
        from_sec=min(expected_sec, max(0.0, duration_sec(message.left_from))),
        expected_sec=expected_sec,
        by_sec=max(expected_sec, duration_sec(message.left_by)),
    )


def optimizer_to_proto(optimizer: OptimizerStatus) -> job_pb2.Optimizer:
    return job_pb2.Optimizer(
        name=sendable(optimizer.name), holder=sendable(optimizer.holder), builder_count=optimizer.builder_count
    )


def optimizer_from_proto(message: job_pb2.Optimizer) -> OptimizerStatus:
    return OptimizerStatus(name=message.name, holder=message.holder, builder_count=message.builder_count)


def snapshot_to_proto(snapshot: Snapshot) -> fleet_service_pb2.Snapshot:
    return fleet_service_pb2.Snapshot(
        version=snapshot.version,
        taken_at=timestamp(snapshot.taken_at_sec),
        devices=map(device_to_proto, snapshot.devices),
        leases=map(lease_to_proto, snapshot.leases),
        requests=map(request_to_proto, snapshot.requests),
        request_count=snapshot.request_count,
        jobs=map(job_to_proto, snapshot.jobs),
        tracker_version=snapshot.tracker_version,
        started_at=timestamp(snapshot.started_at_sec),
        grant_count=snapshot.grant_count,
        bookings=map(booking_to_proto, snapshot.bookings),
        optimizers=map(optimizer_to_proto, snapshot.optimizers),
    )


def snapshot_from_proto(message: fleet_service_pb2.Snapshot) -> Snapshot:
    return Snapshot(
        version=message.version,
        taken_at_sec=timestamp_sec(message.taken_at),
        devices=tuple(map(device_from_proto, message.devices)),
        leases=tuple(map(lease_from_proto, message.leases)),
        requests=tuple(map(request_from_proto, message.requests)),
        request_count=message.request_count,
        jobs=tuple(map(job_from_proto, message.jobs)),
        tracker_version=message.tracker_version,
        started_at_sec=timestamp_sec(message.started_at),
        grant_count=message.grant_count,
        bookings=tuple(map(booking_from_proto, message.bookings)),
        optimizers=tuple(map(optimizer_from_proto, message.optimizers)),
    )
