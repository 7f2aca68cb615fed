"""The queue's indexes against a search of everything, and its order."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.domain.selectors import device_labels, parse_selector
from fleet.tracker.core.entries import RequestEntry
from fleet.tracker.core.queue import Queue

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
    st.tuples(st.just("push"), selector, st.integers(-2, 2)),
    st.tuples(st.just("discard"), st.integers(0, 30)),
    st.tuples(st.just("discard many"), st.integers(0, 4)),
)


def make_request(number: int, selector: str, priority: int = 0) -> RequestEntry:
    return RequestEntry(
        client_id="c",
        request_id=str(number),
        holder="",
        selector=selector,
        priority=priority,
        ttl_sec=30.0,
        max_duration_sec=30.0,
        deadline_sec=None,
        asked_at_sec=float(number),
        purpose="",
        order=(number - 60.0 * priority, number),
    )


@pytest.mark.slow
@pytest.mark.parametrize("idle_groups", [1, 1024])
@settings(max_examples=150, deadline=None)
@given(steps=st.lists(step, max_size=40))
def test_indexes_agree_with_a_search_of_everything(idle_groups: int, steps: list[tuple[object, ...]]) -> None:
    """After any order of changes: matches, free devices, heads and positions are what brute force finds."""
    queue, labels, requests = Queue(idle_groups), dict[str, dict[str, str]](), list[RequestEntry]()
    for number, (kind, *rest) in enumerate(steps):
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
        case "push", [str(selector), int(priority)]:
            requests.append(make_request(number, selector, priority))
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
        fitting = [request for request in ordered if parse_selector(request.selector).matches(own)]
        assert queue.next_for(name) is (fitting[0] if fitting else None)
    for request in requests:
        mine = {name for name, own in labels.items() if parse_selector(request.selector).matches(own)}
        rivals = [
            other
            for other in ordered[: ordered.index(request)]
            if other.selector == request.selector
            or any(parse_selector(other.selector).matches(labels[name]) for name in mine)
        ]
        assert queue.position(request) == len(rivals)


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
