"""Messages of stock TVM clients: each malformed one is refused."""

from __future__ import annotations

import json
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.gateway.frames import (
    BrokenMessage,
    Describe,
    Greeting,
    ListPending,
    Message,
    Ping,
    Register,
    Request,
    Stop,
    Summarize,
    failure,
    frame_length,
    greeting_length,
    parse_greeting,
    parse_message,
    result,
    success,
)

MOST = 2**31 - 1


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ([1], Ping()),
        ([2, "stop key"], Stop()),
        ([3, "key", [5000, "key:0.1"], None], Register()),
        ([3, "key", ["5000", "key:0.1"]], Register()),
        ([4, "kind=cpu", "me", 3], Request(key="kind=cpu", priority=3)),
        ([4, "a", "", -(2**80)], Request(key="a", priority=-MOST)),
        ([5, {"key": "server:a"}], Describe()),
        ([6], Summarize()),
        ([7], ListPending()),
    ],
)
def test_each_message_is_parsed(content: object, expected: Message) -> None:
    assert expected == parse_message(json.dumps(content).encode())


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b"[]",
        b"[4]",
        b'["1"]',
        b"[8]",
        b'[4, 5, "me", 0]',
        b'[4, "a", "me", "0"]',
        b"[" * 9999,
    ],
)
def test_malformed_messages_are_refused(content: bytes) -> None:
    with pytest.raises(BrokenMessage):
        parse_message(content)


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_refused_or_parsed(content: bytes) -> None:
    """No other exception leaves the parsers."""
    for parse in (parse_message, parse_greeting):
        try:
            parse(content)
        except BrokenMessage:
            continue


@pytest.mark.parametrize("length", [0, -1, -(2**31), 2**20 + 1, MOST])
def test_lengths_out_of_range_are_refused(length: int) -> None:
    """Before a byte of the content is read."""
    for parse in (frame_length, greeting_length):
        with pytest.raises(BrokenMessage):
            parse(struct.pack("<i", length))


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


def test_replies_are_those_of_tvm() -> None:
    """Success is the bare text 0: stock clients compare it."""
    assert [b"0", b"-1", b'[-1, "no"]', b'[0, ["127.0.0.1", 9190, "k"]]'] == [
        reply[4:] for reply in (success(), failure(), failure("no"), result(["127.0.0.1", 9190, "k"]))
    ]
    assert struct.pack("<i", 1) == success()[:4]
