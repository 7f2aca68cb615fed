"""The terms of a lease, read once from the arguments of a caller, and carried whole."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.domain.leases import LeaseKeywords, LeaseTerms, PendingRequest, make_terms, set_terms
from fleet.errors import InvalidRequest
from fleet.v1 import lease_pb2
from fleet.wire.leases import acquire_to_proto, request_from_proto, request_to_proto, terms_from_proto
from fleet.wire.times import duration

TEXT = st.text(st.characters(codec="utf-8"), max_size=8)
SEC = st.integers(1, 10**12).map(lambda nanos: nanos / 1e9)
TERMS = st.builds(
    LeaseTerms,
    selector=TEXT,
    priority=st.integers(-100, 100),
    ttl_sec=SEC,
    max_sec=st.none() | SEC,
    wait_timeout_sec=st.none() | SEC,
    purpose=TEXT,
    prefer=TEXT,
    bid=st.floats(0, 1e9),
    booking=TEXT,
)


def test_each_term_is_a_keyword() -> None:
    """Each term but the selectors can be given to `acquire` as a keyword, and nothing else."""
    fields = {field.name for field in dataclasses.fields(LeaseTerms)}
    assert fields - {"selector", "also"} == LeaseKeywords.__annotations__.keys()


def test_terms_are_read_once() -> None:
    """Selectors become canonical; keywords beside terms replace their values, and the others stay."""
    terms = make_terms("cpu", priority=3, prefer="zynq,bitstream=x")
    assert terms == LeaseTerms(selector="kind=cpu", priority=3, prefer="bitstream=x,kind=zynq")

    changed = make_terms(terms, ttl_sec=5.0, prefer="")

    assert changed == LeaseTerms(selector=terms.selector, priority=3, ttl_sec=5.0)


@pytest.mark.parametrize(
    ("selector", "keywords", "said"),
    [
        ("=!", {}, "character 1: expected a label"),
        ("cpu", {"prefer": "=!"}, "character 1: expected a label"),
        ("cpu", {"ttl_sec": 0.0}, "longer than 0"),
        ("cpu", {"max_sec": -1.0}, "longer than 0"),
        ("cpu", {"ttl_sec": math.nan}, "longer than 0"),
        ("cpu", {"ttl_sec": 1e30}, "at most"),
        ("cpu", {"wait_timeout_sec": -1.0}, "a wait takes"),
        ("cpu", {"wait_timeout_sec": math.inf}, "a wait takes"),
        ("cpu", {"priority": 2**31}, "lies between"),
        ("cpu", {"bid": -1.0}, "at least zero"),
        (LeaseTerms(selector="cpu", also=("cpu",)), {"booking": "t3"}, "one by one"),
        ("cpu", {"bid": math.nan}, "at least zero"),
        ("cpu", {"lease_class": "urgent"}, "class urgent of a request is unknown; choose one of interactive, normal"),
    ],
)
def test_invalid_lease_terms_are_refused_by_the_client(
    selector: str | LeaseTerms, keywords: LeaseKeywords, said: str
) -> None:
    """The client refuses such terms without the tracker."""
    with pytest.raises(InvalidRequest, match=said):
        make_terms(selector, **keywords)


@pytest.mark.parametrize("selectors", [[], "cpu", ["cpu"] * 17])
def test_a_set_takes_a_list_of_one_to_sixteen_selectors(selectors: Sequence[str]) -> None:
    """A text would be a list of its characters."""
    with pytest.raises(InvalidRequest, match=r"1 to 16 selectors|at most 16"):
        set_terms(selectors)


def test_unset_terms_stay_unset_on_the_wire() -> None:
    """Lengths travel as durations; a length that was left out takes the tracker's default."""
    message = acquire_to_proto("r1", make_terms("cpu", wait_timeout_sec=1.5))

    assert (message.request_id, message.selector, message.prefer) == ("r1", "kind=cpu", "")
    assert message.ttl == duration(30)
    assert message.wait_timeout == duration(1.5)
    assert not message.HasField("max_duration")


@given(TERMS)
def test_terms_travel_whole(terms: LeaseTerms) -> None:
    """Terms are complete in a request to the tracker, and in its snapshot of the queue."""
    assert terms_from_proto(acquire_to_proto("r1", terms)) == terms
    request = PendingRequest(request_id="r1", holder="ann", terms=terms, position=2, reason="all are held")
    assert request_from_proto(request_to_proto(request)) == request


def test_older_trackers_send_a_few_terms() -> None:
    """They are fields of the waiting request; the others have their defaults."""
    message = lease_pb2.PendingRequest(request_id="r1", selector="kind=cpu", priority=2, purpose="tune")
    assert request_from_proto(message).terms == LeaseTerms(selector="kind=cpu", priority=2, purpose="tune")
