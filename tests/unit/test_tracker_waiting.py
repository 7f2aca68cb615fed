"""The indexes of devices and requests against a search of everything, and the order of service."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.domain.leases import LeaseTerms
from fleet.domain.selectors import device_labels, parse_selector
from fleet.tracker.core.matching import Matching
from fleet.tracker.core.records import RequestEntry
from fleet.tracker.core.standing import position_of
from fleet.tracker.core.waiting import BID_REACH_SEC, Waiting

NAMES = tuple(f"devices/d{i}" for i in range(5))
SELECTORS = tuple(
    str(parse_selector(text)) for text in ("*", "cpu", "gpu", "name=d0", "name=d*", "arch!=arm", "name=d1,arch=arm")
)


class Queue:
    """Devices, and the requests that wait for them."""

    def __init__(self, max_idle: int = 8) -> None:
        self.matching = Matching(max_idle, max_idle)
        self.waiting = Waiting(self.matching)


device = st.sampled_from(NAMES)
selector = st.sampled_from(SELECTORS)
step = st.one_of(
    st.tuples(st.just("add"), device, st.sampled_from(["cpu", "gpu"]), st.sampled_from(["arm", "x86"])),
    st.tuples(st.just("remove"), device),
    st.tuples(st.just("free"), device),
    st.tuples(st.just("busy"), device),
    st.tuples(st.just("push"), selector, st.integers(-2, 2), st.sampled_from(["a", "b"]), st.sampled_from([0, 1, 2])),
    st.tuples(st.just("discard"), st.integers(0, 30)),
    st.tuples(st.just("discard many"), st.integers(0, 4)),
)


def make_request(
    number: int, selector: str, priority: int = 0, *, user: str = "", bid: float = 0.0, asked_sec: float | None = None
) -> RequestEntry:
    asked_sec = float(number) if asked_sec is None else asked_sec
    return RequestEntry(
        client_id="c",
        request_id=str(number),
        holder="anybody@here",
        user=user,
        terms=LeaseTerms(selector=selector, priority=priority, bid=bid),
        deadline_sec=None,
        asked_at_sec=asked_sec,
        order=(asked_sec - 60.0 * priority, number),
    )


@pytest.mark.slow
@pytest.mark.parametrize("idle_groups", [1, 1024])
@settings(max_examples=150, deadline=None)
@given(begun=st.booleans(), steps=st.lists(step, max_size=40))
def test_indexes_agree_with_a_full_search(idle_groups: int, begun: bool, steps: list[tuple[object, ...]]) -> None:
    """After any order of changes, matches, free devices, heads and positions agree with brute force."""
    queue, labels, requests = Queue(idle_groups), dict[str, dict[str, str]](), list[RequestEntry]()
    before = [("add", name, "cpu", "arm") for name in NAMES] + [("free", name) for name in NAMES]
    for number, (kind, *rest) in enumerate([*before, *steps] if begun else steps):
        _apply(queue, labels, requests, number, str(kind), rest)
        queue.waiting.validate()
        _compare(queue, labels, requests)


def _apply(
    queue: Queue,
    labels: dict[str, dict[str, str]],
    requests: list[RequestEntry],
    number: int,
    kind: str,
    rest: list[object],
) -> None:
    match kind, rest:
        case "add", [str(name), str(device_kind), str(arch)]:
            labels[name] = device_labels(name, device_kind, {"arch": arch})
            queue.matching.add_device(name, labels[name])
        case "remove", [str(name)]:
            labels.pop(name, None)
            queue.matching.remove_device(name)
        case "free", [str(name)] if name in labels:
            queue.matching.set_free(name)
        case "busy", [str(name)] if name in labels:
            queue.matching.set_busy(name)
        case "push", [str(selector), int(priority), str(user), int(bid)]:
            asked_sec = number * BID_REACH_SEC / 4
            requests.append(make_request(number, selector, priority, user=user, bid=bid, asked_sec=asked_sec))
            queue.waiting.push(requests[-1])
        case "discard", [int(index)] if requests:
            queue.waiting.discard(requests.pop(index % len(requests)))
        case "discard many", [int(kept)]:
            queue.waiting.discard_many(requests[kept:])
            del requests[kept:]


def _compare(queue: Queue, labels: dict[str, dict[str, str]], requests: list[RequestEntry]) -> None:
    ordered = sorted(requests, key=lambda request: request.order)
    assert list(queue.waiting.first(100)) == ordered
    for name, own in labels.items():
        fitting = [request for request in ordered if parse_selector(request.terms.selector).matches(own)]
        first = queue.waiting.next_for(name)
        assert first is (fitting[0] if fitting else None)
        assert first is None or queue.waiting.highest_bid(first, name) is _highest_bid(fitting)
    for request in requests:
        mine = {name for name, own in labels.items() if parse_selector(request.terms.selector).matches(own)}
        rivals = [
            other
            for other in ordered[: ordered.index(request)]
            if other.terms.selector == request.terms.selector
            or any(parse_selector(other.terms.selector).matches(labels[name]) for name in mine)
        ]
        assert position_of(request, queue.waiting, queue.matching) == len(rivals)


def _highest_bid(fitting: list[RequestEntry]) -> RequestEntry:
    """Return the request with the highest bid among those of the first one's holder that may pass it."""
    first = fitting[0]
    rivals = [
        other
        for other in fitting
        if (other.user, other.terms.priority) == (first.user, first.terms.priority)
        and other.order[0] - first.due_sec <= BID_REACH_SEC
    ]
    return max(rivals, key=lambda other: other.terms.bid)


def _served(requests: list[RequestEntry]) -> list[RequestEntry]:
    """Return the order in which one device serves all requests."""
    queue = Queue()
    queue.matching.add_device(NAMES[0], device_labels(NAMES[0], "cpu", {}))
    for request in requests:
        queue.waiting.push(request)
    served: list[RequestEntry] = []
    while (first := queue.waiting.next_for(NAMES[0])) is not None:
        request = queue.waiting.highest_bid(first, NAMES[0])
        queue.waiting.discard(request)
        if request is not first:
            queue.waiting.move(first, request.order)
        queue.waiting.validate()
        served.append(request)
    return served


@given(
    asked=st.lists(
        st.tuples(st.sampled_from("abc"), st.integers(-1, 1), st.integers(0, 3), st.integers(0, 90)), max_size=12
    )
)
@settings(max_examples=40, deadline=None)
def test_bids_change_places_of_one_users_requests_only(asked: list[tuple[str, int, int, int]]) -> None:
    """For any bids, each holder is served at the same turns with the same priorities, and no request waits for ever."""
    requests = [
        make_request(number, SELECTORS[0], priority, user=user, bid=bid, asked_sec=20.0 * asked_at)
        for number, (user, priority, bid, asked_at) in enumerate(asked)
    ]
    without = [
        make_request(number, SELECTORS[0], priority, user=user, asked_sec=20.0 * asked_at)
        for number, (user, priority, _, asked_at) in enumerate(asked)
    ]

    served, plain = _served(requests), _served(without)

    turns = [[(request.user, request.terms.priority) for request in order] for order in (served, plain)]
    assert turns[0] == turns[1]
    for place, request in enumerate(served):
        assert sum(other.due_sec <= request.due_sec + BID_REACH_SEC for other in plain) > place


def test_the_highest_bid_goes_first_within_ones_own() -> None:
    """The highest bid takes the first of its user's places; equal bids keep their order."""
    requests = [
        make_request(0, SELECTORS[0], user="a", bid=1.0),
        make_request(1, SELECTORS[0], user="b", bid=9.0),
        make_request(2, SELECTORS[0], user="a", bid=3.0),
        make_request(3, SELECTORS[0], user="a", bid=3.0),
    ]

    assert ["2", "1", "3", "0"] == [request.request_id for request in _served(requests)]


def test_position_among_very_many_selectors_is_never_too_small() -> None:
    """If counting rivals exactly would cost too much, all requests ahead count."""
    queue = Queue()
    for i in range(100):
        name = f"devices/d{i}"
        queue.matching.add_device(name, device_labels(name, "cpu", {}))
        queue.waiting.push(make_request(i, f"name=d{i}"))
    last = make_request(100, "kind=cpu")
    queue.waiting.push(last)

    assert position_of(last, queue.waiting, queue.matching) == 100
