"""First bytes of a relay's connections."""

from __future__ import annotations

import ssl

import pytest

from fleet.relay.client_hello import MOST_HELLO_BYTES, NoClientHello, server_name_in
from fleet.relay.opening import OfAgent, ToAgent, ToRelay, parse_opening
from fleet.relay.refusal import Refused
from fleet.wire.relay_preface import MAGIC, make_preface

KEY_ID = "0123456789abcdef0123456789abcdef01234567"


def hello_for(name: str | None) -> bytes:
    """Return the ClientHello of Python's TLS."""
    context = ssl.create_default_context()
    context.check_hostname = name is not None
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        context.wrap_bio(incoming, outgoing, server_hostname=name).do_handshake()
    return outgoing.read()


def in_records(hello: bytes, size: int) -> bytes:
    """Return the same handshake in records of this size."""
    body = hello[5:]
    parts = [body[at : at + size] for at in range(0, len(body), size)]
    return b"".join(b"\x16\x03\x01" + len(part).to_bytes(2, "big") + part for part in parts)


def test_the_name_is_found_once_the_hello_is_complete() -> None:
    """Every shorter prefix is incomplete; later bytes change nothing."""
    hello = hello_for("tracker.fleet")

    assert [server_name_in(hello[:size]) for size in range(len(hello))] == [None] * len(hello)
    assert server_name_in(hello) == "tracker.fleet"
    assert server_name_in(hello + b"\x17more") == "tracker.fleet"


@pytest.mark.parametrize("size", [1, 7, 100])
def test_a_hello_may_come_in_several_records(size: int) -> None:
    """TLS allows records to cut a handshake anywhere."""
    assert server_name_in(in_records(hello_for("tracker.fleet"), size)) == "tracker.fleet"


@pytest.mark.parametrize(
    "content",
    [
        b"GET / HTTP/1.1\r\n",
        b"\x16\x04",
        b"\x17\x03\x03\x00\x05hello",
        b"\x16\x03\x01\x00\x00",
        b"\x16\x03\x01\xff\xff",
        b"\x16\x03\x01\x00\x04\x02\x00\x00\x00",
        b"\x16\x03\x01\x00\x04\x01\xff\xff\xff",
        b"\x16\x03\x01\x00\x05\x01\x00\x00\x01\x00",
        hello_for(None),
        in_records(b"     \x01\x00\x3f\x00" + bytes(0x3F00), 1)[:MOST_HELLO_BYTES],
    ],
)
def test_other_bytes_are_refused(content: bytes) -> None:
    """Another protocol, wrong lengths, a hello that is cut off inside, too large, or without a name."""
    with pytest.raises(NoClientHello):
        server_name_in(content)


def test_a_cut_hello_inside_complete_lengths_is_refused() -> None:
    """The lengths of the fields are checked against the rest, at every place."""
    hello = hello_for("tracker.fleet")
    for size in range(40, len(hello) - 9, 7):
        body = hello[9 : 9 + size]
        record = b"\x01" + len(body).to_bytes(3, "big") + body
        with pytest.raises(NoClientHello):
            server_name_in(b"\x16\x03\x01" + len(record).to_bytes(2, "big") + record)


def test_names_lead_to_agents_and_to_the_relay() -> None:
    """Only these two kinds of names, and agents' prefaces."""
    hello, own = hello_for(f"{KEY_ID}.agent.fleet"), hello_for("member.fleet")
    secret = bytes(range(16))

    assert parse_opening(hello) == ToAgent(key_id=KEY_ID, first_bytes=hello)
    assert parse_opening(own) == ToRelay(first_bytes=own)
    assert parse_opening(make_preface(secret)) == OfAgent(secret=secret)
    assert parse_opening(make_preface(secret)[:-1]) is None
    assert parse_opening(MAGIC[:3]) is None
    for name in ("tracker.fleet", f"{KEY_ID}.agent.fleet.org", f"{KEY_ID.upper()}.agent.fleet", "x.agent.fleet"):
        with pytest.raises(Refused):
            parse_opening(hello_for(name))
