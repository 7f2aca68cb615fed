"""Real agents, callers and members, shared by the tests of identity."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc.aio

from device_agents.agent import Agent, Home
from device_agents.config import make_drivers, parse_config
from fleet.errors import (
    TrackerUnavailable,
)
from fleet.identity import stranger
from fleet.identity.certificates import (
    make_key,
)
from fleet.identity.credentials import Credentials
from fleet.identity.roles import Role
from fleet.testing.identity import authority, credentials
from fleet.v1 import fleet_service_pb2
from fleet.wire.rpc import Channel, from_rpc_error
from fleet.wire.stubs import fleet_service_stub

CONFIG = {"devices": [{"driver": "simulated", "name": "sim", "time_scale": 0.0}]}


@asynccontextmanager
async def serve_agent(tracker: str, state_dir: Path) -> AsyncIterator[Agent]:
    config = parse_config(CONFIG)
    async with Agent(config, make_drivers(config), Home(tracker=tracker, state_dir=state_dir)) as agent:
        yield agent


async def get_fleet(channel: Channel) -> int:
    """A user with a new key."""
    try:
        answer = await fleet_service_stub(channel).get_fleet(fleet_service_pb2.GetFleetRequest(), timeout=60.0)
    except grpc.aio.AioRpcError as error:
        raise from_rpc_error(error, TrackerUnavailable) from None
    return len(answer.snapshot.devices)


class Answering:
    """A fleet service that answers with an empty fleet."""

    async def get_fleet(self, request: object, context: object) -> fleet_service_pb2.GetFleetResponse:
        return fleet_service_pb2.GetFleetResponse()

    async def check_selector(self, request: object, context: object) -> fleet_service_pb2.CheckSelectorResponse:
        return fleet_service_pb2.CheckSelectorResponse(device_count=1)

    async def get_history(self, request: object, context: object) -> fleet_service_pb2.GetHistoryResponse:
        return fleet_service_pb2.GetHistoryResponse()

    async def get_usage(self, request: object, context: object) -> fleet_service_pb2.GetUsageResponse:
        return fleet_service_pb2.GetUsageResponse()

    async def watch_fleet(
        self, request: object, context: object
    ) -> AsyncIterator[fleet_service_pb2.WatchFleetResponse]:
        yield fleet_service_pb2.WatchFleetResponse()


def user() -> Credentials:
    """A member that no other is."""
    return credentials(Role.USER, make_key())


def nobody() -> Credentials:
    """Return the credentials of a peer that has not joined, with the authority of the test's servers."""
    return Credentials(
        key_pem=stranger.KEY_PEM,
        certificate_pem=stranger.CERTIFICATE_PEM,
        authority_pem=authority().authority_pem,
    )
