"""Snapshots of the cost model: domain to messages and back."""

from __future__ import annotations

from fleet.domain.model_snapshots import ModelSnapshot
from fleet.v1 import snapshot_service_pb2
from fleet.wire.times import timestamp, timestamp_sec


def model_snapshot_to_proto(snapshot: ModelSnapshot) -> snapshot_service_pb2.ModelSnapshot:
    """Convert a snapshot."""
    return snapshot_service_pb2.ModelSnapshot(
        digest=snapshot.digest,
        content=snapshot.content,
        feature_version=snapshot.feature_version,
        target_kinds=snapshot.target_kinds,
        record_count=snapshot.record_count,
        made_at=timestamp(snapshot.made_at_sec),
    )


def model_snapshot_from_proto(message: snapshot_service_pb2.ModelSnapshot) -> ModelSnapshot:
    """Convert a snapshot, and check its content against its digest.

    Raises:
        InvalidRequest: it is not.
    """
    snapshot = ModelSnapshot(
        digest=message.digest,
        content=message.content,
        feature_version=message.feature_version,
        target_kinds=tuple(message.target_kinds),
        record_count=message.record_count,
        made_at_sec=timestamp_sec(message.made_at),
    )
    snapshot.check()
    return snapshot
