"""Notices of bookings in a client: which states of the tracker reach its watchers."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from fleet.client.booking_notices import BookingNotices
from fleet.domain.bookings import Booking, notice_text

KEPT = Booking(
    name="bookings/t1",
    selector="board=pi",
    device_count=2,
    starts_at_sec=1_700_000_000.0,
    ends_at_sec=1_700_003_600.0,
    device_names=("devices/pi-1", "devices/pi-2"),
)
LACKING = replace(KEPT, device_names=("devices/pi-1",), missing_device_names=("devices/pi-2",))
WORSE = replace(KEPT, device_names=(), missing_device_names=("devices/pi-1", "devices/pi-2"))


def watched() -> tuple[BookingNotices, list[Booking]]:
    notices, seen = BookingNotices(), []
    notices.watch(seen.append)
    return notices, seen


def test_each_change_is_told_once() -> None:
    """The tracker repeats states: only changes reach the watchers, and a kept booking is no news."""
    notices, seen = watched()

    for state in (KEPT, LACKING, LACKING, WORSE, WORSE, KEPT, KEPT):
        notices.changed(state)

    assert seen == [LACKING, WORSE, KEPT]


def test_a_lacking_booking_is_told_again_after_a_reconnection() -> None:
    """A new stream starts with all states."""
    notices, seen = watched()
    notices.changed(LACKING)

    notices.reopen()
    notices.changed(LACKING)
    notices.changed(LACKING)

    assert seen == [LACKING, LACKING]


def test_a_recovery_during_an_outage_is_told() -> None:
    notices, seen = watched()
    notices.changed(LACKING)

    notices.reopen()
    notices.changed(KEPT)

    assert seen == [LACKING, KEPT]


@given(st.lists(st.tuples(st.sampled_from([KEPT, LACKING, WORSE]), st.sampled_from(["push", "outage", "flap"]))))
def test_a_connected_owner_knows_the_newest_state_whatever_was_missed(steps: list[tuple[Booking, str]]) -> None:
    """No change is lost in an outage, and none is reported twice on one stream."""
    notices, seen = watched()
    is_up, told_on_stream = True, list[Booking]()
    for state, kind in steps:
        before = len(seen)
        if kind == "flap" or (kind == "push" and not is_up):  # a stream begins with the state of every booking
            notices.reopen()
            told_on_stream.clear()
        is_up = kind != "outage"
        if not is_up:
            continue
        notices.changed(state)
        told_on_stream += seen[before:]

        known = seen[-1].lacking if seen else (0, ())
        assert known == state.lacking
        assert all(one.lacking != other.lacking for one, other in pairwise(told_on_stream))


def test_a_late_watcher_is_told_at_once() -> None:
    """A callback that is registered after the states have arrived is called with them."""
    notices = BookingNotices()
    notices.changed(LACKING)
    seen: list[Booking] = []

    notices.watch(seen.append)

    assert seen == [LACKING]


def test_a_hostile_trackers_bookings_are_bounded() -> None:
    """The oldest are forgotten."""
    notices = BookingNotices()
    for number in range(1_000):
        notices.changed(replace(LACKING, name=f"bookings/t{number}"))
    seen: list[Booking] = []
    notices.watch(seen.append)
    assert len(seen) <= 64
    assert seen[-1].name == "bookings/t999"


def test_the_sentence_names_the_booking_its_missing_devices_and_the_next_step() -> None:
    """A tracker that names no devices leaves the number."""
    text = notice_text(LACKING, LACKING.starts_at_sec)
    assert text.startswith("the booking t1 of board=pi, ")
    assert "cannot be kept: it lacks pi-2, and no other device will do" in text
    assert "fleet bookings cancel t1" in text
    assert "it lacks 1 of 2 devices" in notice_text(replace(LACKING, missing_device_names=()), 0.0)
    assert notice_text(KEPT, 0.0).endswith("can be kept again, on pi-1, pi-2")
