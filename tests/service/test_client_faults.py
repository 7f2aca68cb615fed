"""The client with misbehaving callers and trackers."""

from __future__ import annotations

import asyncio

import pytest

from fleet import aio
from fleet.base.tasks import stopped
from fleet.client.stream import TrackerStream
from fleet.errors import LeaseExpired, NotJoined
from fleet.testing import FakeClock, eventually
from fleet.v1 import lease_service_pb2
from fleet.wire.stubs import LeaseServiceStub
from tests.service.client_fakes import small_fleet


async def test_a_callback_that_fails_costs_no_device() -> None:
    """The client lives on when the caller's on_queued raises: the grant that follows arrives."""

    def on_queued(_: object) -> None:
        raise RuntimeError("the caller's own")

    async with small_fleet() as (address, tracker, _), aio.connect(address) as client:
        tracker.grants = False
        waiting = asyncio.create_task(client.acquire_device("simulated", on_queued=on_queued))
        await eventually(lambda: "acquire" in tracker.kinds())
        acquire = next(event.acquire for event in tracker.seen if event.WhichOneof("kind") == "acquire")
        tracker.streams[0].put_nowait(lease_service_pb2.TrackerEvent(granted=tracker.grant(acquire)))
        async with asyncio.timeout(30):
            device = await waiting
        await device.release()


async def test_an_answer_of_a_newer_tracker_ends_no_stream() -> None:
    """A way for leases to end that this client has no word for ends the lease, and the next one is granted."""
    async with small_fleet() as (address, tracker, _), aio.connect(address) as client:
        device = await client.acquire_device("simulated")
        tracker.end(device.lease.name, 99)
        await eventually(lambda: device.ended)
        await device.release()
        async with asyncio.timeout(30), client.acquire("simulated") as other:
            assert other.ended is None


async def test_a_client_that_stood_still_asks_before_it_gives_a_lease_up() -> None:
    """Its token ran out with a renewal unsent, but its tracker has listened for that: the lease lives."""
    clock = FakeClock()
    renewals: list[bool] = []
    async with small_fleet() as (address, tracker, _), aio.connect(address, clock=clock) as client:
        device = await client.acquire_device("simulated")
        device.watch(on_end=lambda: None, on_renew=lambda: renewals.append(True))

        clock.advance(2 * tracker.ttl_sec)

        await eventually(lambda: renewals or device.ended)
        assert device.ended is None
        await device.release()


@pytest.mark.slow
async def test_a_client_that_stood_still_does_not_ask_for_ever() -> None:
    """After a stall, a tracker that does not answer the renewal has one second left."""
    clock = FakeClock()
    async with small_fleet() as (address, tracker, _), aio.connect(address, clock=clock) as client:
        tracker.renews = False
        device = await client.acquire_device("simulated")

        clock.advance(2 * tracker.ttl_sec)

        await eventually(lambda: device.ended)
        assert isinstance(device.ended, LeaseExpired)
        assert tracker.kinds().count("renew") == 1
        await device.release()


async def test_missing_credentials_are_reported_during_a_retry() -> None:
    """A caller that gave up during the second look once got "no tracker runs" instead."""
    looks: list[bool] = []

    async def look() -> LeaseServiceStub:
        looks.append(True)
        if len(looks) > 1:
            await asyncio.Event().wait()
        raise NotJoined("log in first")

    stream = TrackerStream(look, "me", FakeClock())
    running = asyncio.create_task(stream.run())
    await eventually(lambda: len(looks) > 1)

    assert stream.not_joined is not None
    await stopped(running)
