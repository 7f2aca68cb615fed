"""Owners of bookings are notified when one cannot be kept any more, and when it can again."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from contextlib import AsyncExitStack
from pathlib import Path

import fleet
import fleet.aio
from fleet.domain.bookings import Booking
from fleet.domain.health import HealthState
from fleet.identity.store import CredentialStore
from fleet.testing import SimulatedAgent, eventually, serve_tracker
from fleet.testing.identity import account_proof
from tests.service.identity_parts import user

DEVICES = ["devices/a", "devices/b"]
HOUR_SEC = 3600.0
TOLD_SEC = 2.0


def lacking(seen: list[Booking]) -> list[tuple[str, ...]]:
    return [booking.missing_device_names for booking in seen]


async def test_all_clients_of_its_account_are_told_within_two_seconds_and_no_others() -> None:
    """Also that it can be kept again, and a client that connects meanwhile."""
    async with serve_tracker() as served, SimulatedAgent(served.address, DEVICES), AsyncExitStack() as stack:
        store, proof = CredentialStore(), account_proof(served.address)
        seen: dict[str, list[Booking]] = {"owner": [], "second": [], "late": [], "other": []}
        owner = await stack.enter_async_context(fleet.aio.connect(served.address))
        second = await stack.enter_async_context(fleet.aio.connect(served.address))
        store.save(served.address, user())
        try:
            other = await stack.enter_async_context(fleet.aio.connect(served.address))
        finally:
            store.save(served.address, proof)
        for name, client in (("owner", owner), ("second", second), ("other", other)):
            client.watch_bookings(seen[name].append)
        now_sec = served.tracker.engine.clock.now_sec()
        booking = await owner.book("simulated", now_sec + HOUR_SEC, HOUR_SEC, count=2)

        began_sec = time.monotonic()
        await owner.set_health("name=a", HealthState.RETIRED, "broken")
        await eventually(lambda: seen["owner"] and seen["second"])
        assert time.monotonic() - began_sec < TOLD_SEC
        late = await stack.enter_async_context(fleet.aio.connect(served.address))
        late.watch_bookings(seen["late"].append)
        await eventually(lambda: seen["late"])
        await owner.set_health("name=a", HealthState.GOOD, "repaired")
        await eventually(lambda: len(seen["owner"]) == len(seen["second"]) == len(seen["late"]) == 2)

        for name in ("owner", "second", "late"):
            assert {each.name for each in seen[name]} == {booking.name}
            assert lacking(seen[name]) == [("devices/a",), ()]
        assert seen["other"] == []


async def test_a_booking_that_moves_to_another_device_is_no_news() -> None:
    async with (
        serve_tracker() as served,
        SimulatedAgent(served.address, DEVICES),
        fleet.aio.connect(served.address) as client,
    ):
        seen: list[Booking] = []
        client.watch_bookings(seen.append)
        now_sec = served.tracker.engine.clock.now_sec()
        booking = await client.book("simulated", now_sec + HOUR_SEC, HOUR_SEC)
        (planned,) = booking.device_names
        await client.set_health(f"name={planned.removeprefix('devices/')}", HealthState.RETIRED, "broken")
        (spare,) = set(DEVICES) - {planned}
        await eventually(lambda: served.tracker.engine.queries.kept_devices(booking.name) == (spare,))
        await client.set_health(f"name={spare.removeprefix('devices/')}", HealthState.RETIRED, "broken, too")
        await eventually(lambda: seen)
        assert lacking(seen) == [(spare,)]


async def test_a_client_is_told_once_more_after_the_trackers_restart(tmp_path: Path) -> None:
    """It also gets a notice of a booking that can be kept again."""
    async with (
        serve_tracker(state_dir=tmp_path) as served,
        SimulatedAgent(served.address, DEVICES),
        fleet.aio.connect(served.address) as client,
    ):
        seen: list[Booking] = []
        client.watch_bookings(seen.append)
        now_sec = served.tracker.engine.clock.now_sec()
        await client.book("simulated", now_sec + HOUR_SEC, HOUR_SEC, count=2)
        await client.set_health("name=a", HealthState.RETIRED, "broken")
        await eventually(lambda: seen)

        await served.restart()
        await eventually(lambda: len(seen) == 2)
        assert lacking(seen) == [("devices/a",), ("devices/a",)]
        await eventually(lambda: client.is_connected)
        await client.set_health("name=a", HealthState.GOOD, "repaired")
        await eventually(lambda: len(seen) == 3)
        assert lacking(seen)[-1] == ()


async def test_the_blocking_client_calls_back_from_its_thread() -> None:
    async with (
        serve_tracker() as served,
        SimulatedAgent(served.address, DEVICES),
        fleet.aio.connect(served.address) as admin,
    ):
        now_sec = served.tracker.engine.clock.now_sec()
        await admin.book("name=a", now_sec + HOUR_SEC, HOUR_SEC)
        seen: list[Booking] = []
        asked, released = threading.Event(), threading.Event()

        def watch() -> None:
            with fleet.connect(served.address) as client:
                client.watch_bookings(seen.append)
                asked.set()
                released.wait(30.0)

        watching = asyncio.create_task(asyncio.to_thread(watch))
        try:
            await eventually(asked.is_set)
            await admin.set_health("name=a", HealthState.RETIRED, "broken")
            await eventually(lambda: lacking(seen) == [("devices/a",)])
        finally:
            released.set()
            await watching


async def test_fleet_acquire_prints_one_sentence() -> None:
    """It names the booking, the missing device and the next step."""
    async with (
        serve_tracker() as served,
        SimulatedAgent(served.address, DEVICES),
        fleet.aio.connect(served.address) as client,
    ):
        now_sec = served.tracker.engine.clock.now_sec()
        booking = await client.book("name=a", now_sec + HOUR_SEC, HOUR_SEC)
        words = ("--tracker", served.address, "acquire", "name=b", "--max", "600", "--", "sh", "-c", "echo up; cat")
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "fleet", *words),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        assert await process.stdout.readline() == b"up\n"
        await client.set_health("name=a", HealthState.RETIRED, "broken")
        told = (await process.stderr.readline()).decode()
        await client.set_health("name=a", HealthState.GOOD, "repaired")
        again = (await process.stderr.readline()).decode()
        process.stdin.close()
        _, rest = await process.communicate()

    shown_id = booking.name.removeprefix("bookings/")
    assert told.startswith(f"the booking {shown_id} of name=a, ")
    assert "cannot be kept: it lacks a," in told
    assert f"fleet bookings cancel {shown_id}" in told
    assert again.rstrip().endswith("can be kept again, on a")
    assert (process.returncode, rest) == (0, b"")
