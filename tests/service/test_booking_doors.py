"""Strangers at the doors of bookings and of poison: each is refused with its class and a sentence."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

import fleet.aio
from fleet.client.tracker_calls import TrackerCalls
from fleet.errors import (
    DiskFull,
    FleetError,
    InvalidRequest,
    LimitReached,
    NoMatchingDevice,
    NotAllowed,
    NotFound,
    TrackerUnavailable,
)
from fleet.identity.credentials import Credentials
from fleet.identity.roles import Role
from fleet.testing import ServedTracker, SimulatedAgent, eventually, serve_tracker
from fleet.testing.identity import account_proof, credentials, join_user
from fleet.tracker.core import events as ev
from fleet.tracker.core.admission import MAX_SHOWN_CHARS
from fleet.tracker.core.records import TrackerLimits
from fleet.v1 import booking_service_pb2, poison_service_pb2
from fleet.wire.rpc import from_rpc_error, make_channel
from fleet.wire.stubs import booking_service_stub, poison_service_stub
from fleet.wire.times import timestamp
from tests.full_disk import full_disk
from tests.service.identity_parts import nobody, user
from tests.unit.tracker_bench import offer

HOUR_SEC = 3600.0
DIGEST = "sha256:" + 64 * "0"
MEGABYTE = "x" * 900_000
CONTROLS = "a\x1b[2J\x00\r\nb"


@asynccontextmanager
async def doors(served: ServedTracker, proof: Any) -> AsyncIterator[Doors]:
    async with make_channel(served.address, proof) as channel:
        yield Doors(channel, served.tracker.engine.clock.now_sec())


class Doors:
    """The RPCs as a client of its own making calls them."""

    def __init__(self, channel: Any, now_sec: float) -> None:
        self._bookings, self._poison = booking_service_stub(channel), poison_service_stub(channel)
        self._now_sec = now_sec

    async def book(self, **fields: Any) -> Any:
        times = {"starts_at": timestamp(self._now_sec + HOUR_SEC), "ends_at": timestamp(self._now_sec + 2 * HOUR_SEC)}
        request = booking_service_pb2.BookRequest(**{"selector": "simulated", **times, **fields})
        return (await self._answer(self._bookings.book(request))).booking

    async def bookings(self) -> Any:
        return (await self._answer(self._bookings.list_bookings(booking_service_pb2.ListBookingsRequest()))).bookings

    async def cancel(self, name: str) -> Any:
        return await self._answer(self._bookings.cancel_booking(booking_service_pb2.CancelBookingRequest(name=name)))

    async def poison(self) -> Any:
        return (await self._answer(self._poison.list_poison(poison_service_pb2.ListPoisonRequest()))).programs

    async def forget(self, digest: str) -> Any:
        return await self._answer(self._poison.forget_poison(poison_service_pb2.ForgetPoisonRequest(digest=digest)))

    async def _answer(self, call: Any) -> Any:
        try:
            return await call
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error, TrackerUnavailable) from None


@asynccontextmanager
async def two_boards(**limits: int) -> AsyncIterator[ServedTracker]:
    async with (
        serve_tracker(limits=TrackerLimits(max_names_per_agent=20_000, **limits)) as served,  # type: ignore[arg-type]
        SimulatedAgent(served.address, ["devices/a", "devices/b"]),
    ):
        yield served


async def refusal(call: Any) -> FleetError:
    with pytest.raises(FleetError) as caught:
        await call
    text = str(caught.value)
    assert len(text) < 1_000
    assert text.isprintable()
    return caught.value


@pytest.mark.parametrize(
    ("proof", "text"),
    [(nobody, "join it first: fleet login"), (lambda: credentials(Role.AGENT), "takes the role admin")],
    ids=["stranger", "agent"],
)
async def test_only_members_of_the_right_role_pass(proof: Callable[[], Credentials], text: str) -> None:
    """A peer without credentials, and an agent, may not even list."""
    async with two_boards() as served, doors(served, account_proof(served.address)) as owner:
        booking = await owner.book()
        async with doors(served, proof()) as stranger:
            calls = (stranger.book(), stranger.bookings(), stranger.cancel(booking.name), stranger.poison())
            for call in (*calls, stranger.forget(DIGEST)):
                error = await refusal(call)
                assert isinstance(error, NotAllowed)
                assert text in str(error)
        assert [each.name for each in await owner.bookings()] == [booking.name]


async def test_a_booking_is_its_callers_whatever_it_says() -> None:
    """The holder of a request is ignored with TLS, and so is another's request id."""
    async with two_boards() as served, doors(served, account_proof(served.address)) as owner:
        booked = await owner.book(request_id="one", selector="name=a")
        async with doors(served, user()) as other:
            forged = await other.book(request_id="one", selector="name=b", holder=booked.holder)
            assert (forged.name == booked.name, forged.holder == booked.holder) == (False, False)
            assert isinstance(await refusal(other.cancel(booked.name)), NotAllowed)
        assert len(await owner.bookings()) == 2


async def test_members_of_one_account_cancel_each_others_bookings_and_nobody_elses() -> None:
    async with two_boards() as served:
        ann, ben = [await join_user(served.address, name, "team-a") for name in ("ann", "ben")]
        cy = await join_user(served.address, "cy", "team-c")
        async with doors(served, ann) as first, doors(served, ben) as second, doors(served, cy) as third:
            booked = await first.book()
            assert booked.account == "team-a"
            assert isinstance(await refusal(third.cancel(booked.name)), NotAllowed)
            await second.cancel(booked.name)
            assert isinstance(await refusal(second.cancel(booked.name)), NotFound)


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"selector": CONTROLS}, InvalidRequest),
        ({"selector": MEGABYTE}, InvalidRequest),
        ({"selector": f"name={MEGABYTE}"}, InvalidRequest),
        ({"selector": ""}, InvalidRequest),
        ({"selector": "gpu"}, NoMatchingDevice),
        ({"request_id": MEGABYTE}, InvalidRequest),
        ({"device_count": 2**32 - 1}, InvalidRequest),
        ({"starts_at": {"seconds": 2**63 - 1}}, InvalidRequest),
        ({"starts_at": {"seconds": -(2**63)}}, InvalidRequest),
        ({"starts_at": {"nanos": -(2**31)}}, InvalidRequest),
        ({"ends_at": {"seconds": 2**63 - 1, "nanos": 2**31 - 1}}, InvalidRequest),
        ({"ends_at": {"seconds": 0}}, InvalidRequest),
        ({"starts_at": None}, InvalidRequest),
    ],
    ids=str,
)
async def test_a_malformed_booking_is_refused(fields: dict[str, Any], error: type[FleetError]) -> None:
    async with two_boards() as served, doors(served, user()) as stranger:
        assert type(await refusal(stranger.book(**fields))) is error
        assert list(await stranger.bookings()) == []


@pytest.mark.parametrize("text", ["", CONTROLS, MEGABYTE, "bookings/0", "bookings/\u202ex"], ids=len)
async def test_malformed_names_and_digests_are_refused(text: str) -> None:
    async with two_boards() as served, doors(served, account_proof(served.address)) as admin:
        assert isinstance(await refusal(admin.cancel(text)), NotFound)
        assert isinstance(await refusal(admin.forget(text)), InvalidRequest)
        assert isinstance(await refusal(admin.forget(DIGEST)), NotFound)


async def test_without_tls_a_holder_is_shown_in_one_short_line() -> None:
    """There it is the caller's own word."""
    hello = ev.AgentAttached("agent", "host:1", (offer("a", "simulated"),))
    async with serve_tracker(is_plain=True) as served:
        await served.tracker.engine.ask(hello)
        calls = TrackerCalls(served.address)
        try:
            now_sec = served.tracker.engine.clock.now_sec()
            booked = await calls.book(
                "simulated", now_sec, now_sec + 60.0, count=1, request_id="r", holder=CONTROLS + MEGABYTE
            )
        finally:
            await calls.close()
    assert booked.holder.isprintable()
    assert len(booked.holder) == MAX_SHOWN_CHARS


@pytest.mark.slow
async def test_ten_thousand_bookings_stop_at_the_limits_and_leave_others_their_turn() -> None:
    """20 of an account, 500 of everybody. The sentences name the next step."""
    async with two_boards(max_bookings=60) as served, fleet.aio.connect(served.address) as client:
        errors: list[FleetError] = []
        slowest_sec, booked_count = 0.0, 0
        for member in range(5):
            async with doors(served, await join_user(served.address, f"m{member}")) as stranger:
                for number in range(400):
                    hour = member * 40 + number % 40
                    start = served.tracker.engine.clock.now_sec() + (hour + 1) * HOUR_SEC
                    times = {"starts_at": timestamp(start), "ends_at": timestamp(start + HOUR_SEC / 2)}
                    try:
                        await stranger.book(selector="name=a", **times)
                        booked_count += 1
                    except FleetError as error:
                        errors.append(error)
                    if number % 50 == 0:
                        began_sec = time.perf_counter()
                        await client.check_selector("simulated")
                        slowest_sec = max(slowest_sec, time.perf_counter() - began_sec)
        assert booked_count == 60
        assert {type(error) for error in errors} == {LimitReached}
        assert any("cancel one: fleet bookings" in str(error) for error in errors)
        assert any("try again later" in str(error) for error in errors)
        assert slowest_sec < 1.0
        assert len((await client.snapshot()).bookings) == 60


async def test_with_a_full_disk_nothing_is_booked_and_a_cancellation_says_that_it_may_not_last(tmp_path: Path) -> None:
    """Both work again once there is room."""
    async with (
        serve_tracker(state_dir=tmp_path) as served,
        SimulatedAgent(served.address, ["devices/a", "devices/b"]) as agent,
        doors(served, account_proof(served.address)) as owner,
    ):
        agent.find_poison(DIGEST, device_name="devices/a")
        booked = await owner.book(selector="name=a")
        await eventually(lambda: served.tracker.state.poison)
        (tmp_path / "room").write_bytes(b"")
        with full_disk(tmp_path / "room", free_bytes=1):  # files may have at most one byte
            assert isinstance(await refusal(owner.book(selector="name=b")), DiskFull)
            assert [each.name for each in await owner.bookings()] == [booked.name]
            error = await refusal(owner.cancel(booked.name))
            assert isinstance(error, DiskFull)
            assert "cancel it again" in str(error)
            assert isinstance(await refusal(owner.forget(DIGEST)), DiskFull)
        again = await booked_when_there_is_room(owner)
        await owner.cancel(again.name)


async def booked_when_there_is_room(owner: Doors) -> Any:
    """Book until the journal is written again, which is tried every second."""
    while True:
        try:
            return await owner.book(selector="name=b")
        except DiskFull:
            continue
