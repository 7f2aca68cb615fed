"""What a client asks for, read once from what its caller wrote."""

from __future__ import annotations

import dataclasses
import math

import pytest

from fleet.domain.leases import LeaseTerms, LeaseWish, make_wish
from fleet.domain.selectors import parse_selector
from fleet.errors import InvalidRequest
from fleet.wire.leases import wish_to_proto
from fleet.wire.times import duration


def test_the_terms_are_the_fields_of_a_wish() -> None:
    """Whatever a wish can say can be given as a keyword, and nothing else."""
    fields = {field.name for field in dataclasses.fields(LeaseWish)}
    assert fields - {"selector"} == LeaseTerms.__annotations__.keys()


def test_a_wish_is_read_once() -> None:
    """Selectors become values; terms beside a wish replace its own, and the others stay."""
    wish = make_wish("cpu", priority=3, prefer="bitstream=x")
    assert wish == LeaseWish(selector=parse_selector("kind=cpu"), priority=3, prefer=parse_selector("bitstream=x"))

    changed = make_wish(wish, ttl_sec=5.0, prefer="")

    assert changed == LeaseWish(selector=wish.selector, priority=3, ttl_sec=5.0)


@pytest.mark.parametrize(
    ("selector", "terms", "said"),
    [
        ("=!", {}, "cannot read"),
        ("cpu", {"prefer": "=!"}, "cannot read"),
        ("cpu", {"ttl_sec": 0.0}, "longer than 0"),
        ("cpu", {"max_sec": -1.0}, "longer than 0"),
        ("cpu", {"ttl_sec": math.nan}, "longer than 0"),
        ("cpu", {"ttl_sec": 1e30}, "at most"),
        ("cpu", {"wait_timeout_sec": -1.0}, "a wait takes"),
        ("cpu", {"wait_timeout_sec": math.inf}, "a wait takes"),
        ("cpu", {"priority": 2**31}, "lies between"),
    ],
)
def test_what_cannot_be_granted_is_refused_at_once(selector: str, terms: LeaseTerms, said: str) -> None:
    """Nobody has to ask the tracker."""
    with pytest.raises(InvalidRequest, match=said):
        make_wish(selector, **terms)


def test_a_wish_travels_whole() -> None:
    """Selectors as text, lengths as durations; what was left out stays unset."""
    message = wish_to_proto("r1", make_wish("cpu", priority=2, wait_timeout_sec=1.5, purpose="tune", prefer="name=a"))

    assert (message.request_id, message.selector, message.prefer) == ("r1", "kind=cpu", "name=a")
    assert (message.priority, message.purpose) == (2, "tune")
    assert message.ttl == duration(30)
    assert message.wait_timeout == duration(1.5)
    assert not message.HasField("max_duration")
