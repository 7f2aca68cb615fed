"""Bookings are kept: devices are free at their start, whatever was leased, marked or restarted before."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fleet.domain.bookings import LONGEST_AHEAD_SEC, NOTICE_SEC, UNUSED_SEC
from fleet.domain.health import HealthMark, HealthState
from fleet.domain.leases import LeaseClass, LeaseEnd, LeaseTerms
from fleet.domain.waits import BookingBefore, Wait, WaitReason, wait_text
from fleet.errors import (
    AlreadyBooked,
    Cancelled,
    DiskFull,
    FleetError,
    InvalidRequest,
    LimitReached,
    NoMatchingDevice,
    NotAllowed,
    NotFound,
)
from fleet.tracker.core import events as ev
from fleet.tracker.core.invariants import validate
from fleet.tracker.core.records import BookingEntry, TrackerLimits
from fleet.tracker.core.share_policy import Quota, SharePolicy
from fleet.tracker.core.standing import standing_of
from fleet.tracker.core.state import TrackerState
from fleet.tracker.journal.file import Journal
from tests.unit.tracker_bench import Bench, granted, offer, refused

BATCH, NORMAL, INTERACTIVE = LeaseClass.BATCH, LeaseClass.NORMAL, LeaseClass.INTERACTIVE
HOUR_SEC = 3600.0
DAY_SEC = 86_400.0


@pytest.fixture
def bench() -> Bench:
    bench = Bench()
    bench.state = TrackerState(boot=7)
    bench.apply(ev.AgentAttached("agent", "host:1", tuple(map(board, ("pi-0", "pi-1", "gpu-0", "gpu-1")))))
    bench.connect("alice", "bob", "carol")
    return bench


def board(name: str) -> ev.OfferedDevice:
    return offer(name, board=name.partition("-")[0])


def booking_of(
    bench: Bench,
    client: str,
    selector: str,
    *,
    in_sec: float = 2 * HOUR_SEC,
    for_sec: float = HOUR_SEC,
    count: int = 1,
    request_id: str = "",
) -> ev.Book:
    return ev.Book(
        selector=selector,
        device_count=count,
        starts_at_sec=bench.now + in_sec,
        ends_at_sec=bench.now + in_sec + for_sec,
        holder=f"{client}@host",
        account=f"{client}@host",
        request_id=request_id,
    )


def book(bench: Bench, client: str, selector: str, **options: float) -> BookingEntry:
    effects = bench.apply(booking_of(bench, client, selector, **options))  # type: ignore[arg-type]
    (booked,) = [effect for effect in effects if isinstance(effect, ev.Booked)]
    return booked.booking


def refusal(effects: list[ev.Effect]) -> tuple[type[FleetError], str]:
    (found,) = [effect for effect in effects if isinstance(effect, ev.BookingRefused)]
    return found.error_class, found.message


def ask(
    bench: Bench,
    client: str,
    request_id: str,
    selector: str = "*",
    *,
    lease_class: LeaseClass = NORMAL,
    max_sec: float | None = None,
    booking: str = "",
) -> list[ev.Effect]:
    terms = LeaseTerms(selector=selector, lease_class=lease_class, max_sec=max_sec, ttl_sec=300.0, booking=booking)
    return bench.apply(ev.Acquire(client, request_id, terms))


def board_of(bench: Bench, client: str, request_id: str) -> str:
    return bench.state.clients[client].leases[request_id].device_name


STEP_SEC = 100.0


def pass_time(bench: Bench, sec: float) -> list[ev.Effect]:
    """Let time pass in steps, with renewals of all leases."""
    effects, until = [], bench.now + sec
    while bench.now < until:
        step = min(STEP_SEC, until - bench.now)
        bench.now += step
        for _ in range(12):  # each event processes a few due timers
            effects += bench.state.apply(ev.Tick(), bench.now)
        validate(bench.state)
        for lease in list(bench.state.leases.values()):
            effects += bench.apply(ev.Renew(lease.client_id, lease.name))
    return effects


def names_of(bench: Bench, booking: BookingEntry) -> tuple[str, ...]:
    return bench.state.bookings.entries[booking.name].entry.device_names


def written_again(bench: Bench, folder: Path, away_sec: float = 1.0) -> None:
    """Restart the tracker from its journal."""
    journal = Journal(folder / "journal.sqlite")
    journal.open(bench.now)
    journal.write(bench.state.take_changes())
    journal.close()
    bench.now += away_sec
    bench.state = TrackerState.restore(journal.open(bench.now), bench.now)
    journal.close()


def test_a_booking_is_kept_and_its_account_gets_the_board(bench: Bench) -> None:
    booking = book(bench, "alice", "board=pi")

    assert booking.device_names[0].startswith("devices/pi")
    pass_time(bench, 2 * HOUR_SEC)
    assert granted(ask(bench, "alice", "a", booking=booking.name)) == ["a"]
    assert board_of(bench, "alice", "a") == booking.device_names[0]
    assert bench.state.clients["alice"].leases["a"].ends_at_sec == booking.ends_at_sec


def test_a_request_with_a_booking_waits_for_its_start(bench: Bench) -> None:
    booking = book(bench, "alice", "board=pi")
    assert granted(ask(bench, "alice", "a", booking=booking.name)) == []
    request = bench.state.clients["alice"].requests["a"]
    standing = standing_of(bench.state, request)
    assert (standing.reason, standing.device_name) == (WaitReason.BOOKED, "")

    assert granted(pass_time(bench, 2 * HOUR_SEC)) == ["a"]


def test_a_booking_that_has_begun_promises_nothing_to_shorter_leases() -> None:
    """Before, the reason said that a lease which ends before the booking is granted at once, in the middle of it."""
    coming = BookingBefore(name="bookings/b", holder="ann", starts_in_sec=90.0, ends_in_sec=690.0)
    wait = Wait(reason=WaitReason.BOOKED, match_count=1, device_name="devices/pi", booking=coming)
    begun = replace(coming, starts_in_sec=0.0, ends_in_sec=600.0)
    assert wait_text(wait) == "devices/pi is booked by ann in 1 min; a lease that ends before is granted at once"
    assert wait_text(replace(wait, booking=begun)) == "devices/pi is booked by ann for 10 min more"


def test_only_leases_that_end_before_the_booking_fill_in(bench: Bench) -> None:
    book(bench, "alice", "board=pi", count=2)

    assert granted(ask(bench, "bob", "long", "board=pi", max_sec=2 * HOUR_SEC + 1)) == []
    request = bench.state.clients["bob"].requests["long"]
    standing = standing_of(bench.state, request)
    assert standing.reason is WaitReason.BOOKED
    assert standing.booking is not None
    assert granted(ask(bench, "carol", "short", "board=pi", max_sec=2 * HOUR_SEC)) == ["short"]
    assert granted(ask(bench, "carol", "default", "board=pi")) == []


def test_a_waiting_request_that_ends_in_time_goes_before_a_longer_one(bench: Bench) -> None:
    ask(bench, "carol", "c", "board=gpu", max_sec=600.0)
    ask(bench, "carol", "d", "board=gpu", max_sec=600.0)
    book(bench, "alice", "board=gpu", count=2)
    ask(bench, "bob", "long", "board=gpu")
    ask(bench, "carol", "short", "board=gpu", max_sec=600.0)

    lease = bench.state.clients["carol"].leases["c"]
    assert granted(bench.apply(ev.Release("carol", lease.name))) == ["short"]


def test_a_longer_lease_takes_a_board_that_the_booking_does_not_need(bench: Bench) -> None:
    booking = book(bench, "alice", "board=pi")

    assert granted(ask(bench, "bob", "long", "board=pi")) == ["long"]
    assert board_of(bench, "bob", "long") not in booking.device_names


def test_a_booking_moves_to_another_board_for_a_request_that_names_its_own(bench: Bench) -> None:
    booking = book(bench, "alice", "board=pi")
    former = booking.device_names[0]

    assert granted(ask(bench, "bob", "long", f"name={former.removeprefix('devices/')}")) == ["long"]
    assert booking.device_names[0] not in ("", former)
    validate(bench.state)


def test_bookings_move_so_that_a_new_one_fits(bench: Bench) -> None:
    """A bipartite matching: the first booking takes any board, the second one needs just that."""
    first = book(bench, "alice", "*")
    second = book(bench, "bob", f"name={first.device_names[0].removeprefix('devices/')}")

    assert second.device_names != first.device_names
    assert first.device_names[0]


def test_bookings_at_other_times_share_a_board(bench: Bench) -> None:
    first = book(bench, "alice", "name=pi-0", in_sec=HOUR_SEC)
    second = book(bench, "bob", "name=pi-0", in_sec=2 * HOUR_SEC)

    assert first.device_names == second.device_names
    error_class, text = refusal(bench.apply(booking_of(bench, "carol", "name=pi-0", in_sec=1.5 * HOUR_SEC)))
    assert error_class is AlreadyBooked
    assert "alice@host" in text


def test_a_batch_lease_gives_way_in_time(bench: Bench) -> None:
    ask(bench, "bob", "b", "board=pi", lease_class=BATCH)
    ask(bench, "bob", "b2", "board=pi", lease_class=BATCH)
    booking = book(bench, "alice", "board=pi", count=2)
    assert not any(isinstance(each, ev.YieldWanted) for each in pass_time(bench, 2 * HOUR_SEC - 20.0))

    effects = pass_time(bench, 5.0)
    wanted = [each.wanted for each in effects if isinstance(each, ev.YieldWanted)]
    assert [each.until_sec for each in wanted] == [booking.starts_at_sec] * 2
    ended = [each for each in pass_time(bench, 15.0) if isinstance(each, ev.LeaseEnded)]
    assert [each.end for each in ended] == [LeaseEnd.YIELDED] * 2
    assert granted(ask(bench, "alice", "a", booking=booking.name)) == ["a"]


def test_a_batch_lease_begins_on_a_booked_board(bench: Bench) -> None:
    book(bench, "alice", "board=pi", count=2)

    assert granted(ask(bench, "bob", "b", "board=pi", lease_class=BATCH)) == ["b"]


def test_normal_and_interactive_leases_in_the_way_are_asked_with_notice(bench: Bench) -> None:
    ask(bench, "bob", "b", "board=pi")
    ask(bench, "carol", "c", "board=pi", lease_class=INTERACTIVE)
    booking = book(bench, "alice", "board=pi", count=2, in_sec=HOUR_SEC)
    assert not any(isinstance(each, ev.YieldWanted) for each in pass_time(bench, HOUR_SEC - NOTICE_SEC - 1.0))

    effects = pass_time(bench, 2.0)
    wanted = [each.wanted for each in effects if isinstance(each, ev.YieldWanted)]
    assert [each.until_sec for each in wanted] == [booking.starts_at_sec] * 2
    assert all("alice@host" in each.reason for each in wanted)
    effects = pass_time(bench, NOTICE_SEC)
    ended = [each for each in effects if isinstance(each, ev.LeaseEnded)]
    assert [each.end for each in ended] == [LeaseEnd.REVOKED] * 2


def test_a_booking_soon_takes_no_board_whose_holder_would_get_no_notice(bench: Bench) -> None:
    ask(bench, "bob", "b", "name=pi-0")

    error_class, _ = refusal(bench.apply(booking_of(bench, "alice", "name=pi-0", in_sec=NOTICE_SEC - 1.0)))
    assert error_class is AlreadyBooked
    book(bench, "alice", "name=pi-0", in_sec=NOTICE_SEC)


def test_an_unused_booking_is_released_after_ten_minutes(bench: Bench) -> None:
    booking = book(bench, "alice", "board=pi", count=2, in_sec=0.0)
    ask(bench, "alice", "a", booking=booking.name)
    assert granted(ask(bench, "bob", "b", "board=pi")) == []

    effects = pass_time(bench, UNUSED_SEC + 1.0)

    assert granted(effects) == ["b"]
    assert len(booking.device_names) == 1
    lease = bench.state.clients["alice"].leases["a"]
    bench.apply(ev.Release("alice", lease.name))
    pass_time(bench, UNUSED_SEC + 1.0)
    assert not bench.state.bookings.entries
    assert booking.name in [name for name, entry in bench.state.changes.bookings.items() if entry is None]


def test_the_ten_minutes_of_an_unused_booking_go_on_over_a_restart(bench: Bench, tmp_path: Path) -> None:
    """They go on from the start of the booking for one board, from the end of a lease for the other."""
    booking = book(bench, "alice", "board=pi", count=2, in_sec=0.0)
    ask(bench, "alice", "a", booking=booking.name)
    used = board_of(bench, "alice", "a")
    pass_time(bench, UNUSED_SEC - 120.0)
    bench.apply(ev.Release("alice", bench.state.clients["alice"].leases["a"].name))

    written_again(bench, tmp_path)
    bench.apply(ev.AgentAttached("agent", "host:1", tuple(map(board, ("pi-0", "pi-1")))))
    pass_time(bench, 110.0)
    assert len(names_of(bench, booking)) == 2
    pass_time(bench, 30.0)
    assert names_of(bench, booking) == (used,)
    pass_time(bench, UNUSED_SEC - 200.0)
    assert names_of(bench, booking) == (used,)
    pass_time(bench, 100.0)
    assert not bench.state.bookings.entries


def test_an_unused_booking_is_released_only_after_its_clients_could_return(bench: Bench, tmp_path: Path) -> None:
    booking = book(bench, "alice", "board=pi", in_sec=0.0)
    written_again(bench, tmp_path, away_sec=UNUSED_SEC)
    bench.apply(ev.AgentAttached("agent", "host:1", tuple(map(board, ("pi-0", "pi-1")))))

    pass_time(bench, 20.0)
    assert len(names_of(bench, booking)) == 1
    pass_time(bench, 20.0)
    assert not bench.state.bookings.entries


def test_a_booking_goes_to_another_board_when_its_own_leaves(bench: Bench) -> None:
    booking = book(bench, "alice", "board=pi", in_sec=60.0)
    (former,) = booking.device_names
    mark = HealthMark(state=HealthState.QUARANTINED, at_sec=bench.now, reason="odd")
    bench.apply(ev.MarkHealth((former,), mark))

    pass_time(bench, 2.0)

    assert booking.device_names[0] not in ("", former)


def test_it_is_told_that_a_booking_cannot_be_kept_and_that_it_can_again(bench: Bench) -> None:
    booking = book(bench, "alice", "board=pi", count=2)
    mark = HealthMark(state=HealthState.RETIRED, at_sec=bench.now, reason="broken")

    effects = bench.apply(ev.MarkHealth(("devices/pi-0",), mark)) + pass_time(bench, 2.0)

    assert [each.missing_count for each in effects if isinstance(each, ev.BookingChanged)] == [1]
    assert bench.state.bookings.entries[booking.name].kept_names == ("devices/pi-1",)
    bench.apply(ev.AgentAttached("other", "host:2", (board("pi-7"),)))
    told = [each.missing_count for each in pass_time(bench, 10.0) if isinstance(each, ev.BookingChanged)]
    assert told == [0]


def test_a_board_that_reconnects_is_still_booked(bench: Bench) -> None:
    """Another request does not slip in, neither while the board is away nor when it comes back."""
    hello = ev.AgentAttached("agent", "host:1", tuple(map(board, ("pi-0", "pi-1", "gpu-0", "gpu-1"))))
    booking = book(bench, "alice", "board=pi", count=2, in_sec=0.0)
    ask(bench, "bob", "b", "board=pi")
    bench.apply(ev.AgentDetached("agent"))
    bench.tick(20.0)

    assert granted(bench.apply(hello) + pass_time(bench, 20.0)) == []
    bench.apply(ev.AgentDetached("agent"))
    told = [each.missing_count for each in pass_time(bench, 100.0) if isinstance(each, ev.BookingChanged)]
    assert told == [2]
    assert granted(bench.apply(hello) + pass_time(bench, 2.0)) == []
    assert len(granted(ask(bench, "alice", "a", booking=booking.name))) == 1


def test_a_running_booking_keeps_its_board_over_a_restart(bench: Bench) -> None:
    """Agents come back before their boards are given to others."""
    booking = book(bench, "alice", "board=pi", count=2, in_sec=0.0)
    bench.restart(away_sec=1.0)
    for _ in range(5):
        bench.tick(1.0)
    bench.connect("alice", "bob")
    ask(bench, "bob", "b", "board=pi")

    effects = bench.apply(ev.AgentAttached("agent", "host:1", tuple(map(board, ("pi-0", "pi-1")))))
    assert granted(effects) == []
    assert len(granted(ask(bench, "alice", "a", booking=booking.name))) == 1


@pytest.mark.parametrize(
    ("changed", "error_class", "text"),
    [
        ({"in_sec": -120.0}, InvalidRequest, "in the past"),
        ({"in_sec": LONGEST_AHEAD_SEC + 60.0}, InvalidRequest, "more than 30 days"),
        ({"in_sec": float("nan")}, InvalidRequest, "in the past"),
        ({"for_sec": 0.0}, InvalidRequest, "positive length"),
        ({"for_sec": -5.0}, InvalidRequest, "positive length"),
        ({"for_sec": float("nan")}, InvalidRequest, "positive length"),
        ({"for_sec": 25 * HOUR_SEC}, InvalidRequest, "at most 24 h"),
        ({"count": 0}, InvalidRequest, "1 to 64 devices"),
        ({"count": -1}, InvalidRequest, "1 to 64 devices"),
        ({"count": 65}, InvalidRequest, "1 to 64 devices"),
        ({"count": 3}, NoMatchingDevice, "matches 2 of the 3 devices wanted"),
        ({"selector": "board=zynq"}, NoMatchingDevice, "no device matches"),
        ({"selector": "board=="}, InvalidRequest, "selector"),
        ({"selector": "\x1b[31m"}, InvalidRequest, "control characters"),
    ],
)
def test_bad_bookings_are_refused(
    bench: Bench, changed: dict[str, object], error_class: type[FleetError], text: str
) -> None:
    options = {"selector": "board=pi", **changed}
    found, message = refusal(bench.apply(booking_of(bench, "alice", **options)))  # type: ignore[arg-type]

    assert found is error_class
    assert text in message
    assert not bench.state.bookings.entries
    assert not bench.state.changes.bookings


def test_a_booking_beyond_the_quota_is_refused(bench: Bench) -> None:
    quotas = {"": {NORMAL: Quota(leases=2, longest_sec=2 * HOUR_SEC)}}
    bench.apply(ev.PolicyChanged(SharePolicy(class_quotas=quotas)))

    found, text = refusal(bench.apply(booking_of(bench, "alice", "*", for_sec=3 * HOUR_SEC)))
    assert found is InvalidRequest
    assert "at most 2 h" in text
    found, text = refusal(bench.apply(booking_of(bench, "alice", "*", count=3)))
    assert found is InvalidRequest
    assert "2 leases at once" in text
    book(bench, "alice", "*")
    found, text = refusal(bench.apply(booking_of(bench, "alice", "*", count=2)))
    assert found is InvalidRequest
    assert "beside 1 that are booked" in text
    book(bench, "alice", "*", count=2, in_sec=4 * HOUR_SEC)


def test_the_21st_booking_of_an_account_is_refused(bench: Bench) -> None:
    for number in range(20):
        book(bench, "alice", "name=pi-0", in_sec=(number + 1) * HOUR_SEC)

    found, text = refusal(bench.apply(booking_of(bench, "alice", "name=pi-0", in_sec=30 * HOUR_SEC)))
    assert found is LimitReached
    assert "20 bookings" in text
    book(bench, "bob", "name=pi-0", in_sec=30 * HOUR_SEC)


def test_all_bookings_together_are_bounded(bench: Bench) -> None:
    bench.state.limits = replace(bench.state.limits, max_bookings=1)
    book(bench, "alice", "*")

    assert refusal(bench.apply(booking_of(bench, "bob", "*")))[0] is LimitReached


def test_a_repeated_call_books_once(bench: Bench) -> None:
    first = book(bench, "alice", "*", request_id="r1")  # type: ignore[arg-type]

    assert book(bench, "alice", "*", request_id="r1") is first  # type: ignore[arg-type]
    assert len(bench.state.bookings) == 1


def test_nothing_is_booked_while_the_journal_cannot_be_written(bench: Bench) -> None:
    bench.apply(ev.JournalFailed((), "disk full"))

    assert refusal(bench.apply(booking_of(bench, "alice", "*"))) == (DiskFull, "disk full")


def test_a_booking_serves_only_its_account(bench: Bench) -> None:
    booking = book(bench, "alice", "board=pi", in_sec=0.0)

    assert refused(ask(bench, "bob", "b", booking=booking.name)) == [("b", NotAllowed)]
    assert refused(ask(bench, "bob", "c", booking="bookings/none")) == [("c", NotFound)]
    assert refused(ask(bench, "alice", "d", "board=gpu", booking=booking.name)) == [("d", InvalidRequest)]


def test_a_cancelled_booking_frees_its_boards_and_refuses_its_requests(bench: Bench) -> None:
    booking = book(bench, "alice", "board=pi", count=2)
    ask(bench, "alice", "a", booking=booking.name)
    ask(bench, "bob", "b", "board=pi")

    effects = bench.apply(ev.CancelBooking(booking.name)) + bench.tick(0.01)

    assert [each.booking.name for each in effects if isinstance(each, ev.BookingCancelled)] == [booking.name]
    assert refused(effects) == [("a", Cancelled)]
    assert granted(effects) == ["b"]
    assert bench.apply(ev.CancelBooking(booking.name)) == []


def test_demands_of_a_cancelled_booking_are_withdrawn(bench: Bench) -> None:
    ask(bench, "bob", "b", "name=pi-0")
    booking = book(bench, "alice", "name=pi-0", in_sec=NOTICE_SEC)
    pass_time(bench, 1.0)
    assert bench.state.yields

    bench.apply(ev.CancelBooking(booking.name))

    assert not bench.state.yields
    pass_time(bench, 2 * NOTICE_SEC)
    assert "b" in bench.state.clients["bob"].leases


def test_a_set_leaves_booked_boards_alone(bench: Bench) -> None:
    book(bench, "alice", "board=pi")
    terms = LeaseTerms(selector="board=pi", also=("board=pi",), ttl_sec=300.0)
    effects = bench.apply(ev.Acquire("bob", "s", terms)) + pass_time(bench, 5.0)
    assert granted(effects) == []

    short = replace(terms, max_sec=HOUR_SEC)
    effects = bench.apply(ev.Acquire("carol", "s", short)) + bench.tick(0.0) + pass_time(bench, 5.0)
    assert len(granted(effects)) == 2


def test_a_restart_keeps_bookings_their_boards_and_their_leases(bench: Bench) -> None:
    running = book(bench, "alice", "board=pi", in_sec=0.0)
    later = book(bench, "bob", "*", count=2, in_sec=5 * HOUR_SEC)
    ask(bench, "alice", "a", booking=running.name)
    before = {entry.name: entry.device_names for entry in (running, later)}

    bench.restart(away_sec=3.0)

    entries = bench.state.bookings.entries
    assert {name: booking.entry.device_names for name, booking in entries.items()} == before
    (slot,) = entries[running.name].slots
    assert slot.lease_name in bench.state.leases
    validate(bench.state)


def test_a_clock_that_was_set_back_keeps_bookings(bench: Bench) -> None:
    running = book(bench, "alice", "board=pi", in_sec=0.0)
    later = book(bench, "bob", "board=gpu", in_sec=LONGEST_AHEAD_SEC)
    ask(bench, "alice", "a", booking=running.name)

    bench.restart(away_sec=-DAY_SEC)

    assert set(bench.state.bookings.entries) == {running.name, later.name}
    bench.apply(ev.AgentAttached("agent", "host:1", tuple(map(board, ("pi-0", "pi-1", "gpu-0", "gpu-1")))))
    bench.connect("alice", "bob", "carol")
    new = book(bench, "carol", "board=gpu", in_sec=HOUR_SEC)
    assert new.name not in (running.name, later.name)
    pass_time(bench, 10.0)
    validate(bench.state)


def test_the_journal_on_disk_keeps_bookings(bench: Bench, tmp_path: Path) -> None:
    with_devices = bench.state
    booking = book(bench, "alice", "board=pi", count=2)
    journal = Journal(tmp_path / "journal.sqlite")
    journal.open(bench.now)
    journal.write(with_devices.take_changes())
    journal.close()

    again = Journal(tmp_path / "journal.sqlite")
    (found,) = again.open(bench.now).bookings
    again.close()

    names = BookingEntry.__dataclass_fields__
    assert {name: getattr(found, name) for name in names} == {name: getattr(booking, name) for name in names}


KINDS = ("*", "board=a", "board=b", "board=c", "board=a|b", "board=b|c", "name=a-0", "name=b-1")


@given(st.lists(st.tuples(st.sampled_from(KINDS), st.integers(1, 3)), max_size=12), st.randoms(use_true_random=False))
@settings(deadline=None, max_examples=150)
def test_bookings_at_one_time_are_accepted_as_long_as_a_matching_exists(
    wanted: list[tuple[str, int]], rng: random.Random
) -> None:
    """Acceptance equals Hall's condition: each group of slots has at least as many suitable boards."""
    bench = Bench()
    bench.state = TrackerState(boot=7, limits=TrackerLimits(max_bookings_per_account=100))
    names = [f"{kind}-{number}" for kind in "abc" for number in range(2)]
    rng.shuffle(names)
    bench.apply(ev.AgentAttached("agent", "host:1", tuple(map(board, names))))
    accepted: list[set[str]] = []
    for selector, count in wanted:
        matching = set(bench.state.matching.names(selector, 10)) if names else set()
        effects = bench.apply(booking_of(bench, "alice", selector, count=count))
        is_accepted = any(isinstance(effect, ev.Booked) for effect in effects)
        slots = [*accepted, *[matching] * count]
        assert is_accepted is has_matching(slots)
        if is_accepted:
            accepted = slots
    for booking in bench.state.bookings.entries.values():
        assert booking.missing_count == 0


def has_matching(slots: list[set[str]]) -> bool:
    """Return True if each slot can have a board of its own, by trying everything."""
    assigned: dict[str, int] = {}

    def place(index: int, seen: set[str]) -> bool:
        for name in sorted(slots[index] - seen):
            seen.add(name)
            if name not in assigned or place(assigned[name], seen):
                assigned[name] = index
                return True
        return False

    return all(place(index, set()) for index in range(len(slots)))


EVENTS = st.sampled_from(("book", "ask", "booked", "release", "time", "restart", "cancel"))


@given(st.lists(st.tuples(EVENTS, st.integers(0, 10**6)), max_size=60))
@example(
    [("book", 0), ("book", 0), ("book", 0), ("book", 380023), ("ask", 47693), *[("time", n) for n in (17626, 4201, 0)]]
)
@settings(deadline=None, max_examples=150)
def test_accepted_bookings_are_kept_and_no_lease_reaches_into_one_under_any_order(steps: list[tuple[str, int]]) -> None:
    """As long as no board leaves, each booking has all its boards from its start to its end."""
    bench = Bench()
    bench.state = TrackerState(boot=7, limits=TrackerLimits(max_duration_sec=2 * HOUR_SEC))
    names = tuple(f"{kind}-{number}" for kind in "abc" for number in range(2))
    hello = ev.AgentAttached("agent", "host:1", tuple(map(board, names)))
    bench.apply(hello)
    clients = ("alice", "bob")
    bench.connect(*clients)
    for count, (step, number) in enumerate(steps):
        rng = random.Random(number)
        client = rng.choice(clients)
        match step:
            case "book":
                in_sec, for_sec = rng.choice((0.0, 700.0, 3000.0, 9000.0)), rng.choice((300.0, 3000.0))
                bench.apply(
                    booking_of(
                        bench, client, rng.choice(KINDS), in_sec=in_sec, for_sec=for_sec, count=rng.choice((1, 2))
                    )
                )
            case "ask":
                longest = rng.choice((None, 100.0, 1000.0, 5000.0))
                ask(
                    bench,
                    client,
                    f"r{count}",
                    rng.choice(KINDS),
                    lease_class=rng.choice(list(LeaseClass)),
                    max_sec=longest,
                )
            case "booked" if bench.state.bookings.entries:
                name = rng.choice(list(bench.state.bookings.entries))
                ask(bench, client, f"r{count}", booking=name)
            case "release" if bench.state.leases:
                lease = rng.choice(list(bench.state.leases.values()))
                bench.apply(ev.Release(lease.client_id, lease.name))
            case "cancel" if bench.state.bookings.entries and rng.random() < 0.3:
                bench.apply(ev.CancelBooking(rng.choice(list(bench.state.bookings.entries))))
            case "time":
                pass_time(bench, rng.choice((1.0, 30.0, 500.0, 2500.0)))
            case "restart":
                before = [(each.name, each.device_names) for each in bench.state.durable().bookings]
                bench.restart(away_sec=1.0)
                assert [(each.name, each.device_names) for each in bench.state.durable().bookings] == before
                bench.apply(hello)
                bench.connect(*clients)
        for booking in bench.state.bookings.entries.values():
            assert booking.missing_count == 0
            # Batch leases are asked at the first tick in the grace before the start, and end at the next one after it.
            if not booking.entry.starts_at_sec + 20.0 + STEP_SEC <= bench.now < booking.entry.ends_at_sec:
                continue
            for slot in booking.slots:
                found = bench.state.devices[slot.device_name].lease
                assert found is None or found.terms.booking == booking.name


def test_a_lost_device_is_reported_at_once_however_many_bookings_there_are(bench: Bench) -> None:
    """A mark has the bookings of its device visited before all others."""
    bench.state = TrackerState(boot=7, limits=bench.limits(max_bookings_per_account=500))
    bench.apply(ev.AgentAttached("agent", "host:1", tuple(map(board, ("pi-0", "pi-1", "gpu-0")))))
    for number in range(300):
        book(bench, "alice", "name=pi-0", in_sec=HOUR_SEC * (1 + number), for_sec=HOUR_SEC / 2)
    pass_time(bench, 60.0)
    lost = book(bench, "alice", "name=gpu-0")

    mark = HealthMark(state=HealthState.RETIRED, at_sec=bench.now, reason="broken")
    effects = bench.apply(ev.MarkHealth(("devices/gpu-0",), mark)) + bench.tick(0.01)

    (changed,) = [each for each in effects if isinstance(each, ev.BookingChanged)]
    assert (changed.booking.name, changed.missing_count) == (lost.name, 1)


def test_a_booking_knows_its_lost_devices_right_after_a_restart(bench: Bench) -> None:
    """Clients that connect before the first round get the state that holds."""
    entry = book(bench, "alice", "board=pi", count=2)
    bench.apply(ev.MarkHealth(("devices/pi-0",), HealthMark(state=HealthState.RETIRED, at_sec=bench.now)))
    pass_time(bench, 5.0)

    bench.restart()

    booking = bench.state.bookings.entries[entry.name]
    assert booking.lacking == (1, ("devices/pi-0",))
    assert [each.missing_count for each in pass_time(bench, 5.0) if isinstance(each, ev.BookingChanged)] == [1]
