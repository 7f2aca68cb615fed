"""Bookings at a running tracker: the RPCs, their roles, the audit log, the journal, and the commands."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import fleet.aio
from fleet.cli.main import app
from fleet.client.identity_calls import IdentityCalls
from fleet.client.tracker_calls import TrackerCalls
from fleet.domain.bookings import booking_id
from fleet.domain.health import HealthState
from fleet.errors import AlreadyBooked, Cancelled, InvalidRequest, NoMatchingDevice, NotAllowed, NotFound
from fleet.identity.store import CredentialStore
from fleet.testing import SimulatedAgent, eventually, serve_tracker
from fleet.testing.identity import account_proof
from fleet.tracker.journal.file import Journal
from fleet.v1 import booking_service_pb2
from fleet.wire.rpc import from_rpc_error
from fleet.wire.stubs import booking_service_stub
from tests.service.identity_parts import user

DEVICES = ["devices/a", "devices/b"]
HOUR_SEC = 3600.0


async def test_a_booking_is_listed_used_and_ended() -> None:
    async with (
        serve_tracker() as served,
        SimulatedAgent(served.address, DEVICES),
        fleet.aio.connect(served.address) as client,
    ):
        now_sec = served.tracker.engine.clock.now_sec()
        booking = await client.book("simulated", now_sec, HOUR_SEC, count=2)

        assert booking.device_names == ("devices/a", "devices/b")
        assert booking.missing_count == 0
        held = await client.acquire_device("*", booking=booking_id(booking.name))
        assert held.lease.ends_at_sec == pytest.approx(booking.ends_at_sec, abs=0.01)
        (listed,) = await client.bookings()
        assert (listed.name, listed.leased_count) == (booking.name, 1)
        assert (await client.snapshot()).bookings == (listed,)
        with pytest.raises(AlreadyBooked, match=booking_id(booking.name)):
            await client.book("name=a", now_sec + 60.0, HOUR_SEC)
        assert (await client.cancel_booking(booking_id(booking.name))).name == booking.name
        assert await client.bookings() == []
        await held.release()
        with pytest.raises(NotFound):
            await client.cancel_booking(booking.name)


async def test_a_waiting_request_is_told_of_the_booking_in_its_way() -> None:
    """An explanation names it for each board."""
    async with (
        serve_tracker() as served,
        SimulatedAgent(served.address, DEVICES),
        fleet.aio.connect(served.address) as client,
    ):
        now_sec = served.tracker.engine.clock.now_sec()
        await client.book("simulated", now_sec + HOUR_SEC, HOUR_SEC, count=2)
        reasons: list[tuple[str, str]] = []
        waiting = asyncio.create_task(
            client.acquire_device(
                "simulated", on_queued=lambda request: reasons.append((request.request_id, request.reason))
            )
        )
        await eventually(lambda: reasons)
        assert "is booked by" in reasons[0][1]
        found = await client.explain_request(reasons[0][0])
        assert all(each.booking is not None for each in found.candidates)
        async with client.acquire("simulated", max_sec=HOUR_SEC / 2) as device:
            assert device.name in DEVICES
        waiting.cancel()


async def test_a_request_with_a_booking_waits_and_is_refused_when_that_is_cancelled() -> None:
    async with (
        serve_tracker() as served,
        SimulatedAgent(served.address, DEVICES),
        fleet.aio.connect(served.address) as client,
    ):
        now_sec = served.tracker.engine.clock.now_sec()
        booking = await client.book("name=a", now_sec + HOUR_SEC, HOUR_SEC)
        reasons: list[str] = []
        waiting = asyncio.create_task(
            client.acquire_device("*", booking=booking.name, on_queued=lambda request: reasons.append(request.reason))
        )
        await eventually(lambda: reasons)
        assert reasons[0].startswith("its booking starts in ")
        await client.cancel_booking(booking.name)
        with pytest.raises(Cancelled):
            await waiting


async def test_bad_bookings_have_their_errors_also_from_other_clients() -> None:
    """The client refuses before it calls; the tracker checks again."""
    async with (
        serve_tracker() as served,
        SimulatedAgent(served.address, DEVICES),
        fleet.aio.connect(served.address) as client,
    ):
        now_sec = served.tracker.engine.clock.now_sec()
        for starts, length, count in ((-HOUR_SEC, 60.0, 1), (31 * 86_400.0, 60.0, 1), (0.0, 0.0, 1), (0.0, 60.0, 65)):
            with pytest.raises(InvalidRequest):
                await client.book("simulated", now_sec + starts, length, count=count)
        with pytest.raises(NoMatchingDevice):
            await client.book("gpu", now_sec, 60.0)
        calls = TrackerCalls(served.address)
        try:
            stub = booking_service_stub(await calls.connection.channel())
            for request in (
                booking_service_pb2.BookRequest(selector="simulated"),
                booking_service_pb2.BookRequest(selector="simulated", request_id="x" * 129),
            ):
                with pytest.raises(Exception, match=r"start and an end|128 characters") as caught:
                    await stub.book(request)
                assert isinstance(from_rpc_error(caught.value, NotFound), InvalidRequest)  # type: ignore[arg-type]
        finally:
            await calls.close()


async def test_others_cannot_use_or_cancel_a_booking_and_an_admin_can() -> None:
    """Each booking is in the audit log."""
    async with serve_tracker() as served, SimulatedAgent(served.address, DEVICES):
        store, proof = CredentialStore(), account_proof(served.address)
        now_sec = served.tracker.engine.clock.now_sec()
        async with fleet.aio.connect(served.address) as client:
            booking = await client.book("name=a", now_sec, HOUR_SEC)
        store.save(served.address, user())
        try:
            async with fleet.aio.connect(served.address) as other:
                assert [each.name for each in await other.bookings()] == [booking.name]
                with pytest.raises(NotAllowed, match="is another's"):
                    await other.cancel_booking(booking.name)
                with pytest.raises(NotAllowed, match="another account's"):
                    await other.acquire_device("*", booking=booking.name)
                own = await other.book("name=b", now_sec, HOUR_SEC)
        finally:
            store.save(served.address, proof)
        async with fleet.aio.connect(served.address) as client:
            await client.cancel_booking(own.name)
        async with IdentityCalls(served.address) as admin:
            actions = [entry.action for entry in await admin.audit_entries(100)]

    assert actions.count("BookingService.Book") == 2
    assert actions.count("BookingService.CancelBooking") == 2


async def test_a_lost_device_of_a_booking_is_in_the_audit_log() -> None:
    async with (
        serve_tracker() as served,
        SimulatedAgent(served.address, DEVICES),
        fleet.aio.connect(served.address) as client,
    ):
        now_sec = served.tracker.engine.clock.now_sec()
        booking = await client.book("simulated", now_sec + HOUR_SEC, HOUR_SEC, count=2)
        await client.set_health("name=a", HealthState.RETIRED, "broken")
        await eventually(lambda: len(served.tracker.engine.queries.kept_devices(booking.name)) == 1)
        assert (await client.bookings())[0].missing_device_names == ("devices/a",)
        async with IdentityCalls(served.address) as admin:
            (entry,) = [entry for entry in await admin.audit_entries(100) if entry.action == "Booking.Change"]

    assert json.loads(entry.subject) == {"booking": booking.name, "by": booking.holder, "missing": 1}


async def test_the_commands_book_list_use_and_cancel() -> None:
    async with serve_tracker() as served, SimulatedAgent(served.address, DEVICES):

        async def run(*words: str) -> tuple[int, str, str]:
            # the tracker comes first: all words after a command's name are its own
            done = await asyncio.to_thread(CliRunner().invoke, app, ["--tracker", served.address, *words])
            return done.exit_code, done.stdout, done.stderr

        booked = await run("book", "simulated", "--from", "0m", "--for", "2h", "--count", "2", "--json")
        (name,) = [each["name"] for each in json.loads(booked[1])["bookings"]]
        listed = await run("bookings")
        words = ("--tracker", served.address, "acquire", "--booking", booking_id(name), "--", "echo", "held")
        used = await asyncio.create_subprocess_exec(sys.executable, "-m", "fleet", *words, stdout=subprocess.PIPE)
        held, _ = await used.communicate()
        refused = await run("book", "name=a", "--from", "10m", "--for", "2h")
        late = await run("book", "name=a", "--from", "40d", "--for", "2h")
        no_length = await run("book", "name=a", "--from", "10m", "--for", "long")
        cancelled = await run("bookings", "cancel", booking_id(name))
        empty = await run("bookings")

    assert booked[0] == 0
    assert booking_id(name) in listed[1]
    assert (used.returncode, held) == (0, b"held\n")
    assert (refused[0], late[0], no_length[0]) == (1, 2, 2)
    assert "cannot be had beside the bookings" in refused[2]
    assert "more than 30 days" in late[2]
    assert "is no length of time" in no_length[2]
    assert cancelled[2].startswith(f"cancelled {booking_id(name)}, kind=simulated, ")
    assert empty[1] == "no bookings\n"


async def test_bookings_are_there_again_after_the_tracker_was_killed(tmp_path: Path) -> None:
    """The journal that a killed tracker leaves has them, with the devices that were planned."""
    async with (
        serve_tracker(state_dir=tmp_path / "state") as served,
        SimulatedAgent(served.address, DEVICES),
        fleet.aio.connect(served.address) as client,
    ):
        now_sec = served.tracker.engine.clock.now_sec()
        booking = await client.book("simulated", now_sec + HOUR_SEC, HOUR_SEC)
        (tmp_path / "copy").mkdir()
        for path in (tmp_path / "state").glob("journal.sqlite*"):  # as kill -9 leaves them
            shutil.copy(path, tmp_path / "copy")

    journal = Journal(tmp_path / "copy/journal.sqlite")
    (kept,) = journal.open(0.0).bookings
    journal.close()
    assert (kept.name, kept.device_names) == (booking.name, booking.device_names)
