"""Messages of TVM's tracker protocol: each malformed one is refused."""

from __future__ import annotations

import json
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.wire.tvm_frames import (
    BrokenMessage,
    Code,
    Message,
    Request,
    failure,
    frame_length,
    parse_message,
    parse_request,
    result,
    success,
)

MOST = 2**31 - 1


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ([1], Message(Code.PING, [])),
        ([2, "stop key"], Message(Code.STOP, ["stop key"])),
        ([3, "key", [5000, "key:0.1"], None], Message(Code.PUT, ["key", [5000, "key:0.1"], None])),
        ([7], Message(Code.GET_PENDING_MATCHKEYS, [])),
    ],
)
def test_each_message_is_parsed(content: object, expected: Message) -> None:
    assert expected == parse_message(json.dumps(content).encode())


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b"1", b'["1"]', b"[1.0]", b"[8]", b"[-1]", b"[" * 9999])
def test_malformed_messages_are_refused(content: bytes) -> None:
    with pytest.raises(BrokenMessage):
        parse_message(content)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["kind=cpu", "me", 3], Request(key="kind=cpu", priority=3)),
        (["a", "", -(2**80)], Request(key="a", priority=-MOST)),
    ],
)
def test_requests_are_parsed(arguments: list[object], expected: Request) -> None:
    assert expected == parse_request(arguments)


@pytest.mark.parametrize("arguments", [[], [5, "me", 0], ["a", "me", "0"], ["a", "me"], [["a"], "me", 0]])
def test_malformed_requests_are_refused(arguments: list[object]) -> None:
    with pytest.raises(BrokenMessage):
        parse_request(arguments)


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_refused_or_parsed(content: bytes) -> None:
    """No other exception leaves the parser."""
    try:
        parse_message(content)
    except BrokenMessage:
        return


@pytest.mark.parametrize("length", [0, -1, -(2**31), 2**20 + 1, MOST])
def test_lengths_out_of_range_are_refused(length: int) -> None:
    """Before a byte of the content is read."""
    with pytest.raises(BrokenMessage):
        frame_length(struct.pack("<i", length))


def test_replies_are_those_of_tvm() -> None:
    """Success is the bare text 0: stock clients compare it."""
    assert [b"0", b"-1", b'[-1, "no"]', b'[0, ["127.0.0.1", 9190, "k"]]'] == [
        reply[4:] for reply in (success(), failure(), failure("no"), result(["127.0.0.1", 9190, "k"]))
    ]
    assert struct.pack("<i", 1) == success()[:4]
