"""Contents of pages as values, and their templates."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from fleet.domain.bookings import Booking
from fleet.domain.devices import DeviceState, DeviceStatus, Telemetry
from fleet.domain.health import HealthMark, HealthState
from fleet.domain.leases import LeaseTerms, PendingRequest
from fleet.domain.snapshot import Snapshot
from fleet.errors import InvalidRequest, NotFound, TrackerUnavailable
from fleet.web import views
from fleet.web.feed import Feed
from fleet.web.pages import Pages, static_file
from fleet.web.sessions import Right, Session
from fleet.web.tables import View

NOW = 1_800_000_000.0
EVIL = "<script>alert(1)</script>\"'"
SESSION = Session(right=Right.ACT, csrf="secret", ends_at_sec=NOW)

DEVICES = (
    DeviceStatus(name="devices/pi-2", state=DeviceState.AVAILABLE),
    DeviceStatus(name="devices/pi-10", state=DeviceState.LEASED, holder=EVIL, lease_name="leases/1", reason=EVIL),
)
REQUESTS = (PendingRequest(request_id="a/b", holder=EVIL, terms=LeaseTerms(selector="cpu"), reason=EVIL),)
SNAPSHOT = Snapshot(devices=DEVICES, requests=REQUESTS, request_count=2000, taken_at_sec=NOW)


def test_devices_are_sorted_and_filtered() -> None:
    """By the address of the page alone, so that it works without JavaScript."""
    names = [row[0].text for row in views.fleet_grid(SNAPSHOT, View(), NOW).rows]
    leased = views.fleet_grid(SNAPSHOT, View(filter="state=leased"), NOW)
    turned = views.fleet_grid(SNAPSHOT, View(sort="device", is_turned=True), NOW)

    assert names == ["pi-2", "pi-10"]
    assert [row[0].text for row in leased.rows] == ["pi-10"]
    assert [row[0].text for row in turned.rows] == ["pi-10", "pi-2"]
    assert [head.order for head in turned.headings if head.title == "device"] == ["descending"]
    assert turned.headings[0].href == "?sort=device"
    assert [cell.kind for cell in leased.rows[0]][1] == "busy"


def test_a_drained_device_is_not_counted_as_free() -> None:
    """Nobody is granted it. A leased one that is drained still counts as leased."""
    mark = HealthMark(state=HealthState.DRAINING, reason="new card", by="root", at_sec=NOW)
    drained = [replace(device, name=f"{device.name}-drained", mark=mark) for device in DEVICES]
    counts = views.counts(replace(SNAPSHOT, devices=(*DEVICES, *drained)))

    assert [datum.text for datum in counts] == ["1 free", "2 leased", "1 draining", "2000 waiting"]


def test_a_bad_filter_is_refused() -> None:
    """The error is the selector's own."""
    with pytest.raises(InvalidRequest):
        views.fleet_grid(SNAPSHOT, View(filter="=,="), NOW)


def test_a_long_queue_tells_how_much_is_hidden() -> None:
    """A tracker lists the first thousand requests."""
    grid = views.queue_grid(SNAPSHOT, View(), NOW)

    assert grid.more == 1999
    assert grid.rows[0][0].href == "/requests/a%2Fb"


def test_an_unknown_device_has_no_page() -> None:
    """Names come from addresses, which anybody may type."""
    assert views.device_page(SNAPSHOT, "pi-10", NOW).facts["holder"].startswith(EVIL)
    with pytest.raises(NotFound):
        views.device_page(SNAPSHOT, "../pi-10", NOW)


def test_a_booking_over_midnight_is_in_both_days() -> None:
    """Each day shows its part."""
    today = datetime(2027, 1, 15)
    start = today + timedelta(hours=22)
    booking = Booking(
        name="bookings/b1",
        selector="cpu",
        device_count=1,
        starts_at_sec=start.timestamp(),
        ends_at_sec=(start + timedelta(hours=6)).timestamp(),
    )

    days = views.week([booking], (today + timedelta(hours=9)).timestamp(), 0)

    assert [len(day.bookings) for day in days] == [1, 1, 0, 0, 0, 0, 0]
    assert [day.is_today for day in days] == [True, *[False] * 6]
    (first,), (second,) = days[0].bookings, days[1].bookings
    assert (first.time, first.from_hour, first.to_hour) == ("22:00 to 24:00", 22, 24)
    assert (second.time, second.from_hour, second.to_hour) == ("00:00 to 04:00", 0, 4)
    assert not any(day.bookings for day in views.week([booking], today.timestamp(), 1))


def test_readings_that_a_device_lacks_have_no_plot() -> None:
    """A plot of nothing would look like zero."""
    samples = [Telemetry(read_at_sec=NOW + at, temp_c=40.0 + at) for at in range(3)]

    titles = [title for title, _ in views.history_plots(samples)]

    assert titles == ["temperature [°C]", "trials per minute"]
    assert views.history_plots(samples[:1]) == []


@pytest.mark.parametrize("name", ["fleet", "queue"])
def test_texts_of_others_are_escaped(name: str) -> None:
    """Holders, reasons and names are chosen by users and agents."""
    pages, make = Pages("127.0.0.1:9290"), {"fleet": views.fleet_grid, "queue": views.queue_grid}[name]
    part = pages.part(name, grid=make(SNAPSHOT, View(), NOW), is_away=False, counts=[])
    page = pages.page("live", SESSION, live=part, title=EVIL, path="/", filter=EVIL).body.decode()

    assert "&lt;script&gt;" in part
    assert "<script>" not in page
    assert "style=" not in page
    assert EVIL not in page


def test_a_notice_is_shown_once() -> None:
    """It belongs to the form that was sent."""
    session, pages = Session(right=Right.ACT, csrf="", ends_at_sec=NOW, notice=EVIL), Pages("")

    first, second = (pages.page("error", session, title="", text="").body.decode() for _ in range(2))

    assert "alert(1)" in first
    assert "alert(1)" not in second


@pytest.mark.parametrize("name", ["", "..", "../pages.py", "/etc/passwd", "page.css/", "%2e%2e"])
def test_only_known_static_files_are_served(name: str) -> None:
    """Their names are a list, so no path leads elsewhere."""
    assert static_file(name) is None
    assert static_file("page.css") is not None


class _Client:
    """A tracker with snapshots from a queue."""

    address = "127.0.0.1:9290"

    def __init__(self) -> None:
        self.snapshots: asyncio.Queue[Snapshot] = asyncio.Queue()
        self.watches = 0

    async def watch(self, least_sec: float) -> AsyncIterator[Snapshot]:
        self.watches += 1
        while True:
            yield await self.snapshots.get()


async def test_one_watch_of_the_tracker_serves_all_viewers() -> None:
    """Viewers wait for the same snapshot."""
    client: Any = _Client()
    feed = Feed(client)
    with pytest.raises(TrackerUnavailable):
        _ = feed.snapshot
    viewers = [asyncio.ensure_future(anext(feed.versions())) for _ in range(3)]
    watching = asyncio.ensure_future(feed.run())

    client.snapshots.put_nowait(SNAPSHOT)

    assert await asyncio.gather(*viewers) == [1, 1, 1]
    assert feed.snapshot is SNAPSHOT
    assert client.watches == 1
    watching.cancel()
    await asyncio.wait([watching])
