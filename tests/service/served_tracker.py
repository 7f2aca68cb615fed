"""A tracker behind real gRPC for tests of its services, and its snapshot."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from fleet.testing import FakeClock, ServedTracker, serve_tracker
from fleet.testing.identity import account_channel
from fleet.tracker.core.records import TrackerLimits
from fleet.v1 import agent_service_pb2, fleet_service_pb2, lease_service_pb2
from fleet.wire import rpc

LEASES = lease_service_pb2.DESCRIPTOR.services_by_name["LeaseService"]
FLEET = fleet_service_pb2.DESCRIPTOR.services_by_name["FleetService"]
AGENTS = agent_service_pb2.DESCRIPTOR.services_by_name["AgentService"]
LIMITS = TrackerLimits(grace_sec=0.3, min_ttl_sec=0.05)


@pytest.fixture
async def served() -> AsyncIterator[ServedTracker]:
    async with serve_tracker(limits=LIMITS) as served:
        yield served


@pytest.fixture
async def timeless() -> AsyncIterator[ServedTracker]:
    """A tracker without passing time, so that no lease expires while a busy machine stalls."""
    async with serve_tracker(clock=FakeClock()) as served:
        yield served


async def snapshot(address: str) -> fleet_service_pb2.Snapshot:
    async with account_channel(address) as channel:
        response = await rpc.Stub(channel, FLEET).get_fleet(fleet_service_pb2.GetFleetRequest())
        return response.snapshot
