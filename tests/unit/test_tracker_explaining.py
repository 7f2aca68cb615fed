"""Why a request waits: shares, quotas, and the gain from leaving out each clause of its selector."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import replace
from typing import TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from fleet.dashboard.explanation import render_explanation
from fleet.domain.devices import DeviceState
from fleet.domain.explanation import Candidate, Explanation, Omission
from fleet.domain.leases import LeaseClass, LeaseTerms, PendingRequest
from fleet.domain.waits import LeaseBefore, QuotaUse
from fleet.tracker.core import events as ev
from fleet.tracker.core.explaining import omissions, quota_of, shares
from fleet.tracker.core.records import RequestEntry
from fleet.wire.explanations import explanation_from_proto, explanation_to_proto
from tests.unit.tracker_bench import Bench, checked_bench, offer

T = TypeVar("T")


@pytest.fixture
def bench() -> Iterator[Bench]:
    """Three boards: a and b are alike."""
    for bench in checked_bench():
        boards = tuple(
            offer(name, board=board, os="linux") for name, board in (("a", "pi"), ("b", "pi"), ("c", "orin"))
        )
        bench.apply(ev.AgentAttached("agent", "host:1", boards))
        bench.connect("alice", "bob")
        yield bench


def result(steps: Generator[None, None, T]) -> T:
    while True:
        try:
            next(steps)
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]


def waiting(bench: Bench, selector: str) -> RequestEntry:
    """Let bob wait for devices that alice holds."""
    for number in range(len(bench.state.matching.names(selector, 9))):
        bench.grant("alice", f"a{number}", selector)
    bench.acquire("bob", "r", selector)
    return bench.state.clients["bob"].requests["r"]


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        ("board=pi,os=linux", [("board=pi", 3, 1), ("os=linux", 2, 0)]),
        ("board=pi,name=a", [("board=pi", 1, 0), ("name=a", 2, 1)]),
        ("name=[ab]", [("name=[ab]", 3, 1)]),
    ],
)
def test_devices_without_each_clause(bench: Bench, selector: str, expected: list[tuple[str, int, int]]) -> None:
    """A device that fails two clauses is gained by leaving out neither."""
    request = waiting(bench, selector)

    assert sorted(map(_plain, result(omissions(bench.state, request)))) == sorted(expected)


def test_shares_had_and_due(bench: Bench) -> None:
    """Alice holds two boards and bob none: she had all of the use, and half of it is due to each."""
    waiting(bench, "board=pi")

    used_sec, had, due = result(shares(bench.state, "alice@host"))

    assert (used_sec > 0, had, due) == (True, 1.0, 0.5)
    assert result(shares(bench.state, "bob@host"))[1:] == (0.0, 0.5)


def test_the_quota_of_a_class(bench: Bench) -> None:
    """Only interactive requests have one by default."""
    assert quota_of(bench.state, waiting(bench, "board=pi")) is None
    bench.apply(ev.Acquire("bob", "i", LeaseTerms(selector="board=pi", lease_class=LeaseClass.INTERACTIVE)))
    quota = quota_of(bench.state, bench.state.clients["bob"].requests["i"])
    assert quota is not None
    assert (quota.leases, quota.most_leases) == (0, 2)


def test_the_text_says_the_gain_from_each_clause() -> None:
    """A used-up quota is not helped by other devices."""
    quota = QuotaUse(account="bob", lease_class=LeaseClass.INTERACTIVE, leases=1, most_leases=2)
    found = explanation(quota)
    shown = _text(found)
    assert "had 25% of the recent use, due 50% (weight 2)" in shown
    assert "1 of 2 leases at once" in shown
    assert "ann for 1 min, batch, expected free in 5 min" in shown
    assert "without board=pi: now, 3 of 12 devices are free" in shown
    assert "without os=linux: no other device" in shown

    used_up = _text(explanation(replace(quota, leases=2)))
    assert "without board=pi: 12 devices instead of 1, but the quota is used up" in used_up
    assert ": now" not in used_up


def test_the_selector_is_shown_as_users_write_it() -> None:
    found = explanation(None)
    terms = LeaseTerms(selector="board==pi|rock", also=("os=linux",))
    assert "board=pi|rock and os=linux" in _text(replace(found, request=replace(found.request, terms=terms)))


def test_the_clauses_of_a_booking_cannot_be_left_out() -> None:
    """The booking serves its requests whatever other devices are free."""
    found = explanation(None)
    terms = replace(found.request.terms, booking="bookings/b")
    assert "without" not in _text(replace(found, request=replace(found.request, terms=terms)))


def explanation(quota: QuotaUse | None) -> Explanation:
    lease = LeaseBefore(device_name="devices/pi-1", holder="ann", lease_class=LeaseClass.BATCH, held_sec=65.0)
    return Explanation(
        request=PendingRequest(
            request_id="r", holder="bob", terms=LeaseTerms(selector="board=pi,os=linux"), reason="x"
        ),
        account="bob",
        weight=2.0,
        used_sec=60.0,
        share_had=0.25,
        share_due=0.5,
        quota=quota,
        device_count=1,
        at_sec=1000.0,
        candidates=(Candidate(device_name="devices/pi-1", state=DeviceState.LEASED, lease=lease, free_at_sec=1300.0),),
        omissions=(Omission("board=pi", 12, 3), Omission("os=linux", 1, 0)),
    )


@given(st.sampled_from(DeviceState), st.integers(0, 2**31), st.floats(0, 1), st.text())
def test_an_explanation_survives_the_wire(state: DeviceState, count: int, share: float, text: str) -> None:
    found = Explanation(
        request=PendingRequest(request_id="r", terms=LeaseTerms(selector="cpu", ttl_sec=3.0)),
        account=text,
        share_had=share,
        device_count=count,
        candidates=(Candidate(device_name=text, state=state, free_at_sec=count / 2),),
        omissions=(Omission(text, count, count),),
    )
    assert explanation_from_proto(explanation_to_proto(found)) == found


def _plain(omission: Omission) -> tuple[str, int, int]:
    return omission.clause, omission.device_count, omission.free_count


def _text(found: Explanation) -> str:
    console = Console(width=100, color_system=None)
    with console.capture() as captured:
        console.print(render_explanation(found, has_request=True))
    return captured.get()
