"""Grants, waiting and refusals of requests, event by event."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from fleet.errors import Cancelled, FleetError, InvalidRequest, NoMatchingDevice, QueueFull, WaitTimeout
from fleet.tracker.core import events as ev
from fleet.tracker.core.queries import Queries
from fleet.tracker.core.records import BOOT_SHIFT
from fleet.tracker.core.state import TrackerState
from tests.unit.tracker_bench import T0, Bench, checked_bench, granted, offer, refused


@pytest.fixture
def bench() -> Iterator[Bench]:
    yield from checked_bench()


def test_free_device_is_granted_at_once(bench: Bench) -> None:
    """A request that a free device satisfies gets it with an epoch above the boot number."""
    bench.attach("a")
    bench.connect("alice")

    effect = bench.grant("alice", "r1", ttl_sec=10.0)

    assert effect.lease.device_name == "devices/a"
    assert effect.lease.epoch == (7 << BOOT_SHIFT) + 1
    assert effect.lease.expires_at_sec == T0 + 10
    assert effect.lease.holder == "alice@host"


def test_least_recently_used_device_goes_first(bench: Bench) -> None:
    """Devices take turns."""
    bench.attach("a", "b", "c")
    bench.connect("alice")
    first = bench.grant("alice", "r1").lease
    bench.apply(ev.Release("alice", first.name))

    order = [bench.grant("alice", f"s{i}").lease.device_name for i in range(3)]

    assert order == ["devices/b", "devices/c", "devices/a"]


def test_freed_device_goes_to_the_first_in_line(bench: Bench) -> None:
    """A release serves the waiting request of the highest priority, then the oldest."""
    bench.attach("a")
    bench.connect("alice", "bob")
    lease = bench.grant("alice", "r0").lease
    for request_id, priority in [("old", 0), ("high", 1), ("low", -1), ("late", 0)]:
        bench.acquire("bob", request_id, priority=priority)

    served = []
    for _ in range(4):
        (request_id,) = granted(bench.apply(ev.Release(lease.client_id, lease.name)))
        served.append(request_id)
        lease = bench.state.clients["bob"].leases[request_id]

    assert served == ["high", "old", "late", "low"]


def test_position_counts_only_rivals(bench: Bench) -> None:
    """Requests for other devices are not ahead of one."""
    bench.attach("a", "b")
    bench.connect("alice")
    bench.grant("alice", "r0", "name=a")
    bench.grant("alice", "r1", "name=b")
    for request_id, selector in [("a1", "name=a"), ("b1", "name=b"), ("any", "cpu"), ("b2", "name=b")]:
        bench.acquire("alice", request_id, selector)

    requests = bench.state.clients["alice"].requests
    positions = {
        request_id: Queries(bench.state).standing(request).position for request_id, request in requests.items()
    }

    assert positions == {"a1": 0, "b1": 0, "any": 2, "b2": 2}


def test_an_unsatisfiable_selector_is_refused_with_the_devices(bench: Bench) -> None:
    """The refusal lists the devices that exist."""
    bench.attach("a")
    bench.connect("alice")

    (effect,) = bench.acquire("alice", "r1", "cuda")

    assert isinstance(effect, ev.Refused)
    assert effect.error_class is NoMatchingDevice
    assert "devices/a (cpu)" in effect.message


def test_a_selector_of_very_many_clauses_is_refused(bench: Bench) -> None:
    """Each takes the tracker time for every class of devices."""
    bench.attach("a")
    bench.connect("alice")

    (effect,) = bench.acquire("alice", "r", ",".join(f"arch!=a{number}" for number in range(33)))

    assert isinstance(effect, ev.Refused)
    assert effect.message == "the selector has 33 clauses; at most 32 are taken"


def test_selector_of_an_offline_device_waits(bench: Bench) -> None:
    """A device that may come back keeps its requests waiting, and serves them when it does."""
    bench.attach("a")
    bench.apply(ev.AgentDetached("agent"))
    bench.connect("alice")

    (effect,) = bench.acquire("alice", "r1")
    back = bench.attach("a", agent="agent-2")

    assert isinstance(effect, ev.Queued)
    assert granted(back) == ["r1"]


@pytest.mark.parametrize(
    ("request_id", "selector", "priority", "error_class"),
    [("", "cpu", 0, InvalidRequest), ("r", "k=", 0, InvalidRequest), ("r", "cpu", 101, InvalidRequest)],
)
def test_bad_request_is_refused(
    bench: Bench, request_id: str, selector: str, priority: int, error_class: type[FleetError]
) -> None:
    """A request without an id, with a malformed selector or a priority out of bounds is the caller's mistake."""
    bench.attach("a")
    bench.connect("alice")

    assert refused(bench.acquire("alice", request_id, selector, priority=priority)) == [(request_id, error_class)]


def test_full_queue_refuses(bench: Bench) -> None:
    """Requests beyond the limit are refused as retryable, and the queue stays unchanged."""
    bench.attach("a")
    bench.connect("alice")
    bench.grant("alice", "r")
    for i in range(5):
        bench.acquire("alice", f"r{i}")

    assert refused(bench.acquire("alice", "one-more")) == [("one-more", QueueFull)]
    assert len(bench.state.waiting) == 5


@pytest.mark.parametrize("limit", ["max_waiting", "max_waiting_per_account", "max_waiting_per_client"])
def test_a_client_that_comes_again_and_again_waits_for_no_more(bench: Bench, limit: str) -> None:
    """Requests that a client may still repeat count as waiting, and keep their places when repeated."""
    bench.state.limits = bench.limits(**{"max_waiting": 100, limit: 3})
    bench.attach("a")
    bench.connect("alice")
    lease = bench.grant("alice", "held").lease
    for life in range(4):
        bench.connect("greedy")
        for number in range(3):
            bench.acquire("greedy", f"{life}.{number}")
    assert [request.request_id for request in bench.state.durable().requests] == ["0.0", "0.1", "0.2"]

    for number in (2, 1, 0):
        bench.acquire("greedy", f"0.{number}")

    assert granted(bench.apply(ev.Release("alice", lease.name))) == ["0.0"]


def test_repeated_request_is_answered_again_and_has_no_effect(bench: Bench) -> None:
    """The same request_id gives the same lease, or the same place in the queue."""
    bench.attach("a")
    bench.connect("alice")
    first = bench.grant("alice", "r1")
    bench.acquire("alice", "r2")

    again = bench.grant("alice", "r1")
    (queued,) = bench.acquire("alice", "r2")

    assert again.lease is first.lease
    assert again.is_repeat
    assert isinstance(queued, ev.Queued)
    assert len(bench.state.waiting) == 1


def test_wait_timeout_refuses(bench: Bench) -> None:
    """A request leaves the queue when its own patience ends."""
    bench.attach("a")
    bench.connect("alice")
    bench.grant("alice", "r1")
    bench.acquire("alice", "r2", wait_timeout_sec=3.0)

    assert refused(bench.tick(2.9)) == []
    assert refused(bench.tick(0.2)) == [("r2", WaitTimeout)]


def test_cancel_leaves_the_queue_but_not_a_grant(bench: Bench) -> None:
    """Cancel of a waiting request is answered; of a granted one it is not."""
    bench.attach("a")
    bench.connect("alice")
    bench.grant("alice", "r1")
    bench.acquire("alice", "r2")

    assert refused(bench.apply(ev.Cancel("alice", "r2"))) == [("r2", Cancelled)]
    assert bench.apply(ev.Cancel("alice", "r1")) == []
    assert len(bench.state.leases) == 1


def test_a_refusal_counts_the_devices_that_each_clause_leaves(bench: Bench) -> None:
    """The user sees the clause that asks too much."""
    bench.apply(
        ev.AgentAttached(
            "agent",
            "10.0.0.5:9300",
            tuple(offer(f"pi{number}", arch="aarch64", mem=f"{number}GiB") for number in range(1, 5)),
        )
    )
    bench.connect("alice")

    (effect,) = bench.acquire("alice", "r1", "fpga!=none,arch=aarch64,mem>=3GiB")
    (by_name,) = bench.acquire("alice", "r2", "name=pi*,mem>8GiB")
    (bare,) = bench.acquire("alice", "r3", "pi1")

    assert isinstance(effect, ev.Refused)
    assert isinstance(bare, ev.Refused)
    assert bare.message.endswith("to ask for a device by its name, write name=pi1")
    assert isinstance(by_name, ev.Refused)
    assert effect.error_class is NoMatchingDevice
    assert "(arch=aarch64: 4 of 4; mem>=3GiB: 2 of these; fpga!=none: none); there are devices/pi1" in effect.message
    assert "(name=pi*: 4 of 4; mem>8GiB: none)" in by_name.message


def test_a_comparison_with_text_is_a_mistake(bench: Bench) -> None:
    """No device can ever satisfy it; a device with a comparable label is served."""
    bench.apply(ev.AgentAttached("agent", "10.0.0.5:9300", (offer("a", rack="left"),)))
    bench.connect("alice")

    (effect,) = bench.acquire("alice", "r1", "rack>=3")
    bench.apply(ev.AgentAttached("other", "10.0.0.6:9300", (offer("b", rack="4"),)))
    (later,) = bench.acquire("alice", "r2", "rack>=3")

    assert isinstance(effect, ev.Refused)
    assert effect.error_class is InvalidRequest
    assert "rack>=3 compares a number, but 'rack' is one on no device; it is the text 'left'" in effect.message
    assert isinstance(later, ev.Granted)
    assert later.lease.device_name == "devices/b"


@pytest.mark.parametrize(("selector", "is_refused"), [("arch=a<b", True), ("arch=a|cpu,kind=cpu", False)])
def test_a_request_that_an_older_tracker_read_otherwise_comes_back(
    bench: Bench, selector: str, is_refused: bool
) -> None:
    """After an upgrade, a waiting request is read again, or refused in a sentence."""
    bench.apply(ev.AgentAttached("agent", "10.0.0.5:9300", (offer("a", arch="cpu"),)))
    bench.connect("alice")
    bench.grant("alice", "r1")
    bench.acquire("alice", "r2")
    durable = bench.state.durable()
    for request in durable.requests:
        request.terms = replace(request.terms, selector=selector)
    bench.state = TrackerState.restore(durable, bench.now, bench.state.limits)
    bench.connect("alice")

    (effect,) = bench.acquire("alice", "r2", "cpu")

    assert isinstance(effect, ev.Refused if is_refused else ev.Queued)
