"""The client's calls to the tracker, with domain values. The lease stream is a separate module."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable
from typing import TypeVar

import grpc
import grpc.aio

from fleet.client.connection import TrackerConnection
from fleet.domain.bookings import Booking
from fleet.domain.devices import Telemetry
from fleet.domain.explanation import Explanation
from fleet.domain.health import HealthState
from fleet.domain.leases import Lease, PendingRequest
from fleet.domain.poison import Poison
from fleet.domain.shares import Reload
from fleet.domain.snapshot import Snapshot
from fleet.domain.usage import Usage, UsageKey
from fleet.errors import FleetError, TrackerUnavailable
from fleet.v1 import booking_service_pb2, fleet_service_pb2, lease_service_pb2, poison_service_pb2
from fleet.wire.bookings import booking_from_proto
from fleet.wire.devices import telemetry_from_proto
from fleet.wire.explanations import explanation_from_proto
from fleet.wire.health import HEALTH_STATES
from fleet.wire.leases import lease_from_proto, reload_from_proto, request_from_proto
from fleet.wire.poison import poison_from_proto
from fleet.wire.rpc import from_rpc_error
from fleet.wire.snapshots import snapshot_from_proto
from fleet.wire.stubs import (
    BookingServiceStub,
    FleetServiceStub,
    LeaseServiceStub,
    PoisonServiceStub,
    booking_service_stub,
    fleet_service_stub,
    lease_service_stub,
    poison_service_stub,
)
from fleet.wire.times import duration, optional_timestamp, timestamp
from fleet.wire.usage import USAGE_KEYS, usage_from_proto

T = TypeVar("T")

_TIMEOUT_SEC = 10.0
_MARKING_TIMEOUT_SEC = 60.0
"""For 10,000 devices, which the tracker marks a few at a time."""
_PAUSE_SEC = 0.5
"""Pause between two tries to watch a tracker that is away."""


class TrackerCalls:
    """A connection to a fleet's tracker. gRPC opens it with the first call, and again after each failure."""

    def __init__(self, address: str) -> None:
        self.connection = TrackerConnection(address)

    async def leases(self) -> LeaseServiceStub:
        """Return the stub of the lease service.

        Raises:
            NotJoined: this account has no credentials for the tracker.
        """
        return lease_service_stub(await self.connection.channel())

    async def close(self) -> None:
        await self.connection.close()

    async def snapshot(self) -> Snapshot:
        request = fleet_service_pb2.GetFleetRequest()
        answer = await self._answer((await self._fleet()).get_fleet(request, timeout=_TIMEOUT_SEC))
        return snapshot_from_proto(answer.snapshot)

    async def history(self, device_name: str) -> list[Telemetry]:
        request = fleet_service_pb2.GetHistoryRequest(device_name=device_name)
        answer = await self._answer((await self._fleet()).get_history(request, timeout=_TIMEOUT_SEC))
        return list(map(telemetry_from_proto, answer.samples))

    async def usage(self, by: UsageKey, since_sec: float) -> Usage:
        request = fleet_service_pb2.GetUsageRequest(by=USAGE_KEYS[by], since=duration(since_sec))
        return usage_from_proto(await self._answer((await self._fleet()).get_usage(request, timeout=_TIMEOUT_SEC)))

    async def check_selector(self, selector: str) -> int:
        request = fleet_service_pb2.CheckSelectorRequest(selector=selector)
        try:
            call = (await self._fleet()).check_selector(request, timeout=_TIMEOUT_SEC)
            return (await self._answer(call)).device_count
        except FleetError as error:
            cause = error.__cause__
            if isinstance(cause, grpc.aio.AioRpcError) and cause.code() is grpc.StatusCode.UNIMPLEMENTED:
                return 0
            raise

    async def revoke(self, lease_name: str, reason: str) -> Lease:
        request = lease_service_pb2.RevokeLeaseRequest(lease_name=lease_name, reason=reason)
        answer = await self._answer((await self.leases()).revoke_lease(request, timeout=_TIMEOUT_SEC))
        return lease_from_proto(answer.lease)

    async def cancel_request(self, request_id: str, reason: str) -> PendingRequest:
        request = lease_service_pb2.CancelRequestRequest(request_id=request_id, reason=reason)
        answer = await self._answer((await self.leases()).cancel_request(request, timeout=_TIMEOUT_SEC))
        return request_from_proto(answer.request)

    async def explain_request(self, request_id: str) -> Explanation:
        request = lease_service_pb2.ExplainRequestRequest(request_id=request_id)
        answer = await self._answer((await self.leases()).explain_request(request, timeout=_TIMEOUT_SEC))
        return explanation_from_proto(answer)

    async def reset_epochs(self, device_name: str) -> int:
        request = lease_service_pb2.ResetEpochsRequest(device_name=device_name)
        return (await self._answer((await self.leases()).reset_epochs(request, timeout=_TIMEOUT_SEC))).epoch

    async def reload_tracker(self) -> Reload:
        request = lease_service_pb2.ReloadTrackerRequest()
        answer = await self._answer((await self.leases()).reload_tracker(request, timeout=_TIMEOUT_SEC))
        return reload_from_proto(answer)

    async def set_health(self, selector: str, state: HealthState, reason: str, until_sec: float | None) -> list[str]:
        request = lease_service_pb2.SetHealthRequest(
            selector=selector,
            state=HEALTH_STATES[state],
            reason=reason,
            until=optional_timestamp(until_sec),
        )
        call = (await self.leases()).set_health(request, timeout=_MARKING_TIMEOUT_SEC)
        return list((await self._answer(call)).device_names)

    async def book(
        self, selector: str, starts_at_sec: float, ends_at_sec: float, *, count: int, request_id: str, holder: str
    ) -> Booking:
        request = booking_service_pb2.BookRequest(
            request_id=request_id,
            selector=selector,
            device_count=count,
            starts_at=timestamp(starts_at_sec),
            ends_at=timestamp(ends_at_sec),
            holder=holder,
        )
        answer = await self._answer((await self._bookings()).book(request, timeout=_TIMEOUT_SEC))
        return booking_from_proto(answer.booking)

    async def bookings(self) -> list[Booking]:
        request = booking_service_pb2.ListBookingsRequest()
        answer = await self._answer((await self._bookings()).list_bookings(request, timeout=_TIMEOUT_SEC))
        return list(map(booking_from_proto, answer.bookings))

    async def cancel_booking(self, name: str) -> Booking:
        request = booking_service_pb2.CancelBookingRequest(name=name)
        answer = await self._answer((await self._bookings()).cancel_booking(request, timeout=_TIMEOUT_SEC))
        return booking_from_proto(answer.booking)

    async def poison(self) -> list[Poison]:
        request = poison_service_pb2.ListPoisonRequest()
        answer = await self._answer((await self._poison()).list_poison(request, timeout=_TIMEOUT_SEC))
        return list(map(poison_from_proto, answer.programs))

    async def forget_poison(self, digest: str) -> Poison:
        request = poison_service_pb2.ForgetPoisonRequest(digest=digest)
        answer = await self._answer((await self._poison()).forget_poison(request, timeout=_TIMEOUT_SEC))
        return poison_from_proto(answer.program)

    async def watch(self, min_interval_sec: float) -> AsyncGenerator[Snapshot, None]:
        request = fleet_service_pb2.WatchFleetRequest(min_interval=duration(min_interval_sec))
        while True:
            try:
                call = (await self._fleet()).watch_fleet(request)
            except TrackerUnavailable:  # of several trackers, none grants yet
                await asyncio.sleep(_PAUSE_SEC)
                continue
            try:
                async for response in call:
                    yield snapshot_from_proto(response.snapshot)
            except grpc.aio.AioRpcError as error:
                found = from_rpc_error(error, TrackerUnavailable)
                if not found.is_retryable and error.code() is not grpc.StatusCode.CANCELLED:
                    raise found from error
                self.connection.choose_again()
            finally:
                call.cancel()
            await asyncio.sleep(_PAUSE_SEC)

    async def _bookings(self) -> BookingServiceStub:
        return booking_service_stub(await self.connection.channel())

    async def _poison(self) -> PoisonServiceStub:
        return poison_service_stub(await self.connection.channel())

    async def _fleet(self) -> FleetServiceStub:
        return fleet_service_stub(await self.connection.channel())

    async def _answer(self, call: Awaitable[T]) -> T:
        try:
            return await call
        except grpc.aio.AioRpcError as error:
            found = from_rpc_error(error, TrackerUnavailable)
            if isinstance(found, TrackerUnavailable) or error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                address = self.connection.address
                self.connection.choose_again()
                raise TrackerUnavailable(f"the tracker at {address} does not answer: {found}") from error
            raise found from error
