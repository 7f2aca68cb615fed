"""The queue's indexes against a search of everything, and its order."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.domain.leases import LeaseTerms
from fleet.domain.selectors import device_labels, parse_selector
from fleet.tracker.core.queue import BID_REACH_SEC, Queue
from fleet.tracker.core.records import RequestEntry

NAMES = tuple(f"devices/d{i}" for i in range(5))
SELECTORS = tuple(
    str(parse_selector(text)) for text in ("*", "cpu", "gpu", "name=d0", "name=d*", "arch!=arm", "name=d1,arch=arm")
)

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
def test_indexes_agree_with_a_search_of_everything(
    idle_groups: int, begun: bool, steps: list[tuple[object, ...]]
) -> None:
    """After any order of changes: matches, free devices, heads and positions are what brute force finds."""
    queue, labels, requests = Queue(idle_groups, idle_groups), dict[str, dict[str, str]](), list[RequestEntry]()
    before = [("add", name, "cpu", "arm") for name in NAMES] + [("free", name) for name in NAMES]
    for number, (kind, *rest) in enumerate([*before, *steps] if begun else steps):
        _apply(queue, labels, requests, number, str(kind), rest)
        queue.validate()
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
            queue.add_device(name, labels[name])
        case "remove", [str(name)]:
            labels.pop(name, None)
            queue.remove_device(name)
        case "free", [str(name)] if name in labels:
            queue.set_free(name)
        case "busy", [str(name)] if name in labels:
            queue.set_busy(name)
        case "push", [str(selector), int(priority), str(user), int(bid)]:
            asked_sec = number * BID_REACH_SEC / 4
            requests.append(make_request(number, selector, priority, user=user, bid=bid, asked_sec=asked_sec))
            queue.push(requests[-1])
        case "discard", [int(index)] if requests:
            queue.discard(requests.pop(index % len(requests)))
        case "discard many", [int(kept)]:
            queue.discard_many(requests[kept:])
            del requests[kept:]


def _compare(queue: Queue, labels: dict[str, dict[str, str]], requests: list[RequestEntry]) -> None:
    ordered = sorted(requests, key=lambda request: request.order)
    assert list(queue.first(100)) == ordered
    for name, own in labels.items():
        fitting = [request for request in ordered if parse_selector(request.terms.selector).matches(own)]
        first = queue.next_for(name)
        assert first is (fitting[0] if fitting else None)
        assert first is None or queue.highest_bid(first, name) is _highest_bid(fitting)
    for request in requests:
        mine = {name for name, own in labels.items() if parse_selector(request.terms.selector).matches(own)}
        rivals = [
            other
            for other in ordered[: ordered.index(request)]
            if other.terms.selector == request.terms.selector
            or any(parse_selector(other.terms.selector).matches(labels[name]) for name in mine)
        ]
        assert queue.position(request) == len(rivals)


def _highest_bid(fitting: list[RequestEntry]) -> RequestEntry:
    """Return whose bid is highest among those of the first one's holder that may pass it."""
    first = fitting[0]
    rivals = [
        other
        for other in fitting
        if (other.user, other.terms.priority) == (first.user, first.terms.priority)
        and other.order[0] - first.due_sec <= BID_REACH_SEC
    ]
    return max(rivals, key=lambda other: other.terms.bid)


def _served(requests: list[RequestEntry]) -> list[RequestEntry]:
    """Return in which order one device serves all requests."""
    queue = Queue()
    queue.add_device(NAMES[0], device_labels(NAMES[0], "cpu", {}))
    for request in requests:
        queue.push(request)
    served: list[RequestEntry] = []
    while (first := queue.next_for(NAMES[0])) is not None:
        request = queue.highest_bid(first, NAMES[0])
        queue.discard(request)
        if request is not first:
            queue.move(first, request.order)
        queue.validate()
        served.append(request)
    return served


@given(
    asked=st.lists(
        st.tuples(st.sampled_from("abc"), st.integers(-1, 1), st.integers(0, 3), st.integers(0, 90)), max_size=12
    )
)
@settings(max_examples=40, deadline=None)
def test_bids_change_places_of_one_users_requests_only(asked: list[tuple[str, int, int, int]]) -> None:
    """Whatever is bid, each holder is served at the same turns, with the same priorities, and nobody waits for ever."""
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
    """Where counting rivals exactly would cost too much, everyone ahead counts."""
    queue = Queue()
    for i in range(100):
        name = f"devices/d{i}"
        queue.add_device(name, device_labels(name, "cpu", {}))
        queue.push(make_request(i, f"name=d{i}"))
    last = make_request(100, "kind=cpu")
    queue.push(last)

    assert queue.position(last) == 100


def test_selectors_that_nobody_waits_with_are_forgotten() -> None:
    """Each takes memory for all devices that will do: with 10,000 devices a thousand of them took 1.3 GB."""
    queue = Queue(max_idle_groups=3, max_idle_names=5)
    for name in NAMES:
        queue.add_device(name, device_labels(name, "cpu", {}))
        queue.set_free(name)
    queue.push(make_request(1, "kind=cpu"))

    for number in range(20):
        assert queue.first_free(f"arch!=a{number}") == NAMES[0]
        assert queue.match_count(f"name=d{number}") == (number < len(NAMES))

    assert queue.selector_count == 1 + 3 + 5
    queue.validate()


def test_free_devices_take_turns() -> None:
    """The one that has been free longest goes first, also in a group that was made later."""
    queue = Queue()
    for name in NAMES:
        queue.add_device(name, device_labels(name, "cpu", {}))
    for name in (NAMES[3], NAMES[1], NAMES[2]):
        queue.set_free(name)
    queue.set_busy(NAMES[3])
    queue.set_free(NAMES[3])

    assert queue.free_devices() == [NAMES[1], NAMES[2], NAMES[3]]
    assert queue.first_free("kind=cpu") == NAMES[1]
