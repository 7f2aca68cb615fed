"""First messages of stock sessions: each malformed one is refused."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.gateway.greetings import MOST_GREETING_BYTES, Greeting, parse_greeting
from fleet.wire.tvm_frames import BrokenMessage, frame_length


@pytest.mark.parametrize(
    ("text", "timeout_sec"),
    [
        ("client:k", None),
        ("client:k -timeout=10", 10),
        ("client:k -timeout=0.2", 1),
        ("client:k -timeout=10.0", 10),
        ("client:k -timeout=0", None),
        ("client:k -other -timeout=3", 3),
    ],
)
def test_time_limits_are_whole_seconds(text: str, timeout_sec: int | None) -> None:
    """Fractions are rounded up, and 0 means unlimited, as in TVM."""
    assert Greeting(match_key="k", timeout_sec=timeout_sec) == parse_greeting(text.encode())


@pytest.mark.parametrize(
    "text", ["", "server:k", "client:k -timeout=nan", "client:k -timeout=-1", "client:k -timeout=x"]
)
def test_malformed_greetings_are_refused(text: str) -> None:
    with pytest.raises(BrokenMessage):
        parse_greeting(text.encode())


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_refused_or_parsed(content: bytes) -> None:
    """No other exception leaves the parser."""
    try:
        parse_greeting(content)
    except BrokenMessage:
        return


@pytest.mark.parametrize("length", [0, -1, -(2**31), 4097, 2**31 - 1])
def test_lengths_out_of_range_are_refused(length: int) -> None:
    """Before a byte of the content is read."""
    with pytest.raises(BrokenMessage):
        frame_length(struct.pack("<i", length), MOST_GREETING_BYTES)
