"""Choosing the connections of strangers to close."""

from __future__ import annotations

from fleet.wire.connections import Peer, StrangerLimits, Strangers

LIMITS = StrangerLimits(of_address=3, of_all=6, stranger_sec=15.0)


def _peers(host: str, numbers: range) -> dict[int, Peer]:
    return {number: (host, 1_000 + number) for number in numbers}


def test_few_and_young_ones_stay() -> None:
    """A connection that may be about to join or to call stays open."""
    strangers = Strangers(LIMITS)

    assert strangers.to_close(_peers("10.0.0.1", range(3)), 0.0) == []
    assert strangers.to_close(_peers("10.0.0.1", range(3)), 14.0) == []


def test_one_that_stays_a_strangers_is_closed() -> None:
    """Each connection is closed at its own age limit."""
    strangers = Strangers(LIMITS)
    strangers.to_close(_peers("10.0.0.1", range(1)), 0.0)

    assert strangers.to_close(_peers("10.0.0.1", range(2)), 15.0) == [0]


def test_the_oldest_of_an_address_go_first() -> None:
    """A new client of the same address is served, too."""
    strangers = Strangers(LIMITS)
    strangers.to_close(_peers("10.0.0.1", range(5, 7)), 0.0)
    found = _peers("10.0.0.1", range(3)) | _peers("10.0.0.1", range(5, 7))

    assert strangers.to_close(found | _peers("10.0.0.2", range(9, 10)), 1.0) == [5, 6]


def test_one_network_of_ipv6_is_one_address() -> None:
    """The owner of one IPv6 network has 2^64 addresses."""
    found = {number: (f"2001:db8:1:2::{number}", 4_000) for number in range(5)}

    assert Strangers(LIMITS).to_close(found, 0.0) == [0, 1]


def test_many_addresses_have_a_bound_together() -> None:
    """Half of all connections are reserved for members."""
    found = {number: (f"10.0.0.{number}", 4_000) for number in range(8)}

    assert Strangers(LIMITS).to_close(found, 0.0) == [0, 1]


def test_a_fragment_of_a_tls_header_is_closed_at_the_second_look() -> None:
    """TVM's clients send 4 bytes and wait, but TLS needs 5; a slow client may still send the rest of its header."""
    strangers = Strangers(LIMITS)

    assert strangers.to_close(_peers("10.0.0.1", range(2)), 0.0, {0}) == []
    assert strangers.to_close(_peers("10.0.0.1", range(2)), 1.0, {0}) == [0]
