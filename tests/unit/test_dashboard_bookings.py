"""Bookings in `fleet status`: the table, the details of devices and bookings, and the action on a booking."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime

import pytest

from fleet.base.local_time import moment_text, span_text
from fleet.dashboard.actions import CancelBooking
from fleet.dashboard.panes import BOOKINGS, Choice, arrange, parse_filter
from fleet.dashboard.selection import PANES, action_for, details_of, find, make_sheets, shown_panes
from fleet.domain.bookings import Booking
from fleet.domain.devices import DeviceState, DeviceStatus
from fleet.domain.snapshot import Snapshot
from tests.unit.test_dashboard_details import text_of as drawn
from tests.unit.test_dashboard_view import NOW_SEC, busy_fleet, text_of

HOUR_SEC = 3600.0
# NOW_SEC is 22:13:20 in UTC
RUNNING = Booking(
    name="bookings/t3w1",
    selector="board=rpi4",
    device_count=2,
    starts_at_sec=NOW_SEC - HOUR_SEC,
    ends_at_sec=NOW_SEC + HOUR_SEC,
    holder="ann@desk",
    account="team-a",
    device_names=("devices/pi4-01", "devices/pi4-02"),
    leased_count=1,
)
NEXT = Booking(
    name="bookings/t3w2",
    selector="board=rpi4",
    device_count=2,
    starts_at_sec=NOW_SEC + 2 * HOUR_SEC,
    ends_at_sec=NOW_SEC + 3 * HOUR_SEC,
    holder="bob@lab",
    device_names=("devices/pi4-01",),
    missing_device_names=("devices/pi4-03",),
)
DISTANT = replace(
    NEXT,
    name="bookings/t3w3",
    holder="cy@lab",
    device_count=1,
    starts_at_sec=NOW_SEC + 48 * HOUR_SEC,
    ends_at_sec=NOW_SEC + 50 * HOUR_SEC,
    missing_device_names=(),
)


@pytest.fixture(autouse=True)
def in_utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def booked_fleet() -> Snapshot:
    return replace(busy_fleet(), bookings=(RUNNING, NEXT, DISTANT))


@pytest.mark.parametrize("width", [80, 140])
def test_the_table_has_author_devices_time_and_state(width: int) -> None:
    """A booking in use, one that lacks a device, and one in two days; each on one line."""
    lines = text_of(booked_fleet(), width).splitlines()

    head = next(at for at, line in enumerate(lines) if line.startswith("booking "))
    rows = [" ".join(line.split()) for line in lines[head + 1 : head + 4]]
    wants = " board=rpi4" if width >= 100 else ""
    used, lacks = ("pi4-01 pi4-…", "pi4-01, lac…") if width == 80 else ("pi4-01 pi4-02", "pi4-01, lacks pi4-03")
    assert rows == [
        f"t3w1 ann@desk for team-a{wants} 21:13 23:13 1 of 2 in use {used}",
        f"t3w2 bob@lab{wants} Wed 00:13 01:13 cannot be kept {lacks}",
        f"t3w3 cy@lab{wants} Thu 22:13 Fri 00:13 kept pi4-01",
    ]
    assert max(map(len, lines)) <= width


def test_without_bookings_there_is_no_table() -> None:
    """Neither printed nor as a pane."""
    assert "booking" not in text_of(busy_fleet(), 140)
    assert BOOKINGS.title not in shown_panes(busy_fleet())
    assert BOOKINGS.title not in shown_panes(None)
    assert shown_panes(booked_fleet()) == list(PANES)


def test_many_bookings_are_counted() -> None:
    """The printed table has eight; the pane has all, and finds each."""
    many = tuple(replace(DISTANT, name=f"bookings/t{number}") for number in range(11))
    fleet = Snapshot(bookings=many)

    assert "and 3 more" in text_of(fleet, 80)
    sheet = make_sheets(fleet, dict.fromkeys(PANES, Choice()), NOW_SEC, width=80, address="")[BOOKINGS.title]
    assert sheet.header.plain.startswith("booking 11 ")
    assert list(many) == [find(fleet, BOOKINGS.title, name) for name in sheet.names]


def test_every_column_of_bookings_sorts_and_filters_match_authors() -> None:
    """No column loses a row, even if all fields are unknown."""
    bare = Booking(name="bookings/x", selector="", device_count=1, starts_at_sec=0.0, ends_at_sec=0.0)
    things = (RUNNING, NEXT, bare)

    for column in BOOKINGS.columns:
        found = arrange(BOOKINGS, things, Choice(sort_by=column.title))
        assert sorted(map(BOOKINGS.name, things)) == sorted(map(BOOKINGS.name, found))
    assert [RUNNING] == arrange(BOOKINGS, things, Choice(selector=parse_filter("account=team-a")))
    assert [NEXT] == arrange(BOOKINGS, things, Choice(selector=parse_filter("holder=bob*")))


def test_a_device_says_what_it_is_booked_for() -> None:
    """Its details have the running booking and the next ones, also one that lacks it."""
    booked = DeviceStatus(name="devices/pi4-01", state=DeviceState.AVAILABLE)
    lost = DeviceStatus(name="devices/pi4-03", state=DeviceState.OFFLINE)

    text = drawn(details_of(booked, booked_fleet(), NOW_SEC))
    assert "21:13 to 23:13, now by ann@desk for team-a (t3w1)" in text
    assert "00:13 to 01:13, in 2 h 00 min by bob@lab (t3w2)" in text
    assert "in 2 d 0 h by cy@lab (t3w3)" in text
    assert "(t3w2); it lacks this device" in drawn(details_of(lost, booked_fleet(), NOW_SEC))
    assert "booked" not in drawn(details_of(replace(lost, name="devices/free"), booked_fleet(), NOW_SEC))

    many = tuple(replace(DISTANT, name=f"bookings/t{number}") for number in range(5))
    assert "and 2 more" in drawn(details_of(booked, Snapshot(bookings=many), NOW_SEC))


def test_a_bookings_details_name_its_missing_devices() -> None:
    """A tracker of an older version sends the number only."""
    text = drawn(details_of(NEXT, booked_fleet(), NOW_SEC))
    assert "2 of board=rpi4" in text
    assert "cannot be kept" in text
    assert "pi4-01, lacks pi4-03" in text
    unnamed = drawn(details_of(replace(NEXT, missing_device_names=()), booked_fleet(), NOW_SEC))
    assert "pi4-01, lacks 1 of 2" in unnamed


def test_a_booking_is_cancelled_after_a_question() -> None:
    action = action_for(RUNNING)
    assert isinstance(action, CancelBooking)
    assert action.booking_name == "bookings/t3w1"
    assert "Cancel the booking t3w1 of ann@desk for team-a for board=rpi4?" in action.question


def test_moments_beyond_the_calendar_are_shown_as_unknown() -> None:
    """A hostile tracker's times do not end the view; distant moments have their date."""
    assert moment_text(NOW_SEC + 7 * 86_400.0, NOW_SEC) == "2023-11-21 22:13"
    assert (moment_text(1e18, NOW_SEC), moment_text(float("nan"), NOW_SEC)) == ("?", "?")
    assert span_text(NOW_SEC, 1e18, NOW_SEC).endswith(" to ?")


def test_a_moment_on_another_day_names_it() -> None:
    """The end of a booking over midnight has a day, too; a moment of today has none, however far away."""
    late = datetime(2026, 3, 4, 23, 30).timestamp()  # a Wednesday
    assert span_text(late - 7_200.0, late, late - 80_000.0) == "21:30 to 23:30"
    assert span_text(late - 7_200.0, late + 7_200.0, late) == "21:30 to Thu 01:30"
    assert span_text(late + 3_600.0, late + 7_200.0, late) == "Thu 00:30 to 01:30"
