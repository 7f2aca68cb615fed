"""Snapshots of the cost model: domain to messages and back, and the service that sends them."""

from __future__ import annotations

import grpc.aio

from fleet.domain.model_snapshots import ModelSnapshot
from fleet.v1 import cost_model_service_pb2
from fleet.wire import stubs
from fleet.wire.peers import Guard
from fleet.wire.times import timestamp, timestamp_sec


def model_snapshot_to_proto(snapshot: ModelSnapshot) -> cost_model_service_pb2.ModelSnapshot:
    """Convert a snapshot."""
    return cost_model_service_pb2.ModelSnapshot(
        digest=snapshot.digest,
        content=snapshot.content,
        feature_version=snapshot.feature_version,
        target_kinds=snapshot.target_kinds,
        record_count=snapshot.record_count,
        made_at=timestamp(snapshot.made_at_sec),
    )


def model_snapshot_from_proto(message: cost_model_service_pb2.ModelSnapshot) -> ModelSnapshot:
    """Convert a snapshot, and check its content against its digest.

    Raises:
        InvalidRequest: the content does not match the digest.
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


def serve_cost_model(
    server: grpc.aio.Server, servicer: stubs.CostModelServiceServicer, guard: Guard | None = None
) -> None:
    """Have a server answer the calls of CostModelService, also under its former name, which older clients call."""
    stubs.add_cost_model_service(server, servicer, guard)
    stubs.add_snapshot_service(server, servicer, guard)
