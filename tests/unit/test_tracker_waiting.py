"""The indexes of devices and requests against a search of everything, and the order of service."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.domain.leases import LeaseClass, LeaseTerms
from fleet.domain.selectors import device_labels, parse_selector
from fleet.tracker.core.accounts import Accounts
from fleet.tracker.core.matching import Matching
from fleet.tracker.core.positions import Positions
from fleet.tracker.core.records import RequestEntry
from fleet.tracker.core.share_policy import Quota, SharePolicy
from fleet.tracker.core.waiting import Waiting

NAMES = tuple(f"devices/d{i}" for i in range(5))
SELECTORS = tuple(
    str(parse_selector(text)) for text in ("*", "cpu", "gpu", "name=d0", "name=d*", "arch!=arm", "name=d1,arch=arm")
)
ACCOUNTS = ("a", "b", "c")
POLICY = SharePolicy(starvation_sec=15.0, class_quotas={"c": {LeaseClass.NORMAL: Quota(leases=1)}})


class Queue:
    """Devices, and the requests that wait for them."""

    def __init__(self, max_idle: int = 8) -> None:
        self.matching = Matching(max_idle, max_idle)
        self.accounts = Accounts(POLICY)
        self.waiting = Waiting(self.matching, self.accounts)
        self.labels: dict[str, dict[str, str]] = {}
        self.requests: list[RequestEntry] = []
        self.since: dict[str, float] = {}
        """Time of each account's oldest request since it last waited for nothing."""

    def push(self, request: RequestEntry) -> None:
        self.requests.append(request)
        self.waiting.push(request)
        self.since[request.account] = min(self.since.get(request.account, math.inf), request.asked_at_sec)

    def drop(self, requests: Sequence[RequestEntry]) -> None:
        self.waiting.discard_many(requests)
        for request in requests:
            self.requests.remove(request)
        waiting = {request.account for request in self.requests}
        self.since = {name: since_sec for name, since_sec in self.since.items() if name in waiting}

    def order(self, request: RequestEntry) -> tuple[object, ...]:
        """Return the sort key of a request, by its definition."""
        terms, name = request.terms, request.account
        turn = (terms.lease_class.rank, self.accounts.account(name).level, self.since[name], name)
        return *turn, -terms.priority, -terms.bid, request.asked_at_sec, request.arrival

    def fits(self, request: RequestEntry, device_name: str) -> bool:
        return parse_selector(request.terms.selector).matches(self.labels[device_name])


device = st.sampled_from(NAMES)
selector = st.sampled_from(SELECTORS)
step = st.one_of(
    st.tuples(st.just("add"), device, st.sampled_from(["cpu", "gpu"]), st.sampled_from(["arm", "x86"])),
    st.tuples(st.just("remove"), device),
    st.tuples(st.just("free"), device),
    st.tuples(st.just("busy"), device),
    st.tuples(
        st.just("push"),
        selector,
        st.sampled_from(LeaseClass),
        st.integers(-1, 1),
        st.sampled_from(ACCOUNTS),
        st.integers(0, 2),
    ),
    st.tuples(st.just("discard"), st.integers(0, 30)),
    st.tuples(st.just("discard many"), st.integers(0, 4)),
    st.tuples(st.just("charge"), st.sampled_from(ACCOUNTS), st.sampled_from([1.0, 20.0, 3_000.0])),
    st.tuples(st.just("refund"), st.sampled_from(ACCOUNTS), st.sampled_from([0.5, 15.0])),
    st.tuples(st.just("hold"), st.sampled_from(ACCOUNTS), st.integers(0, 1)),
)


def make_request(
    number: int,
    selector: str,
    lease_class: LeaseClass = LeaseClass.NORMAL,
    priority: int = 0,
    *,
    account: str = "",
    bid: float = 0.0,
) -> RequestEntry:
    return RequestEntry(
        client_id="c",
        request_id=str(number),
        holder="anybody@here",
        account=account,
        terms=LeaseTerms(selector=selector, lease_class=lease_class, priority=priority, bid=bid),
        deadline_sec=None,
        asked_at_sec=float(number),
        arrival=number,
    )


@pytest.mark.slow
@pytest.mark.parametrize("idle_groups", [1, 1024])
@settings(max_examples=150, deadline=None)
@given(begun=st.booleans(), steps=st.lists(step, max_size=40))
def test_indexes_agree_with_a_full_search(idle_groups: int, begun: bool, steps: list[tuple[object, ...]]) -> None:
    """After any order of changes, matches, free devices, the next request and positions agree with brute force."""
    queue = Queue(idle_groups)
    before = [("add", name, "cpu", "arm") for name in NAMES] + [("free", name) for name in NAMES]
    for number, (kind, *rest) in enumerate([*before, *steps] if begun else steps):
        _apply(queue, number, str(kind), rest)
        _compare(queue, float(number))
        queue.waiting.validate()


def _apply(queue: Queue, number: int, kind: str, rest: list[object]) -> None:
    match kind, rest:
        case "add", [str(name), str(device_kind), str(arch)]:
            queue.labels[name] = device_labels(name, device_kind, {"arch": arch})
            queue.matching.add_device(name, queue.labels[name])
        case "remove", [str(name)]:
            queue.labels.pop(name, None)
            queue.matching.remove_device(name)
        case "free", [str(name)] if name in queue.labels:
            queue.matching.set_free(name)
        case "busy", [str(name)] if name in queue.labels:
            queue.matching.set_busy(name)
        case "push", [str(selector), LeaseClass() as lease_class, int(priority), str(account), int(bid)]:
            queue.push(make_request(number, selector, lease_class, priority, account=account, bid=bid))
        case "discard", [int(index)] if queue.requests:
            queue.drop([queue.requests[index % len(queue.requests)]])
        case "discard many", [int(kept)]:
            queue.drop(queue.requests[kept:])
        case "charge", [str(account), float(sec)]:
            queue.accounts.charge(queue.accounts.account(account), LeaseClass.NORMAL, sec, float(number))
            queue.waiting.note_use(account)
        case "refund", [str(account), float(sec)]:
            queue.accounts.charge(queue.accounts.account(account), LeaseClass.NORMAL, -sec, float(number))
            queue.waiting.note_use(account)
        case "hold", [str(account), int(leases)]:
            queue.accounts.account(account).leases[LeaseClass.NORMAL] = leases
            queue.waiting.note_use(account)


def _compare(queue: Queue, now: float) -> None:
    ordered = sorted(queue.requests, key=queue.order)
    for name in queue.labels:
        fitting = [request for request in ordered if queue.fits(request, name)]
        open_to = [
            request
            for request in fitting
            if not queue.accounts.account(request.account).is_blocked(request.terms.lease_class)
        ]
        starving = [request for request in open_to if request.asked_at_sec < now - POLICY.starvation_sec]
        oldest = min(starving, key=lambda request: request.asked_at_sec, default=None)
        expected = oldest or (open_to[0] if open_to else None)
        assert queue.waiting.next_for(name, now) is expected
    first = list(queue.waiting.first(100))
    assert sorted(request.arrival for request in first) == sorted(request.arrival for request in ordered)
    assert [request.terms.lease_class.rank for request in first] == [r.terms.lease_class.rank for r in ordered]
    positions = Positions(queue.waiting, queue.matching)
    for request in queue.requests:
        rivals = [other for other in ordered if _share_a_device(queue, request, other)]
        position = positions.of(request, now)
        turns = [r for r in _in_turns(rivals) if r.terms.lease_class.rank <= request.terms.lease_class.rank]
        before = turns.index(request)
        accounts = len({r.account for r in rivals})
        assert before <= position <= before + (accounts if _rank(rivals, request) else 0)


def _share_a_device(queue: Queue, request: RequestEntry, other: RequestEntry) -> bool:
    if request.terms.selector == other.terms.selector:
        return True
    return any(queue.fits(request, name) and queue.fits(other, name) for name in queue.labels)


def _rank(ordered: list[RequestEntry], request: RequestEntry) -> int:
    """Return the number of requests of the same account and class before one."""
    own = [r for r in ordered if (r.account, r.terms.lease_class) == (request.account, request.terms.lease_class)]
    return own.index(request)


def _in_turns(ordered: list[RequestEntry]) -> list[RequestEntry]:
    """Return requests as the accounts of each class take turns."""
    by_turn = sorted(
        enumerate(ordered), key=lambda each: (each[1].terms.lease_class.rank, _rank(ordered, each[1]), each[0])
    )
    return [request for _, request in by_turn]


def test_position_among_very_many_selectors_is_never_too_small() -> None:
    """If counting rivals exactly would cost too much, all requests ahead count."""
    queue = Queue()
    for i in range(100):
        name = f"devices/d{i}"
        queue.matching.add_device(name, device_labels(name, "cpu", {}))
        queue.waiting.push(make_request(i, f"name=d{i}"))
    last = make_request(100, "kind=cpu")
    queue.waiting.push(last)

    assert Positions(queue.waiting, queue.matching).of(last, 0.0) == 100
