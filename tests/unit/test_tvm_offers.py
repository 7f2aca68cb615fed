"""Offers of registered TVM RPC servers, as values."""

from __future__ import annotations

import pytest

from device_agents.drivers.tvm_registered.driver import device_id
from device_agents.drivers.tvm_registered.offers import (
    MOST_OFFERS,
    Offers,
    Put,
    Server,
    parse_put,
)
from fleet.wire.tvm_frames import BrokenMessage

HOST = "10.1.0.7"
MOST = {"rpi4": 2, "pixel": 1}
PI = Server("rpi4", HOST, 9090)


def served_as(key: str) -> str | None:
    return key if key in MOST else None


def put(match_key: str, *, key: str = "rpi4", port: int = 9090) -> Put:
    return Put(key=key, port=port, match_key=match_key, host="")


@pytest.mark.parametrize(
    ("arguments", "port", "host"),
    [
        (["rpi4", [9090, "rpi4:0.1"], None], 9090, ""),
        (["rpi4", [9090, "rpi4:0.1"]], 9090, ""),
        (["rpi4", ["5001", "rpi4:0.1"], None], 5001, ""),
        (["rpi4", [9090, "rpi4:0.1"], HOST, "more"], 9090, HOST),
    ],
)
def test_offers_of_all_stock_servers_are_read(arguments: list[object], port: int, host: str) -> None:
    """Ports are texts in C++ and Java, and the custom address may be absent."""
    assert parse_put(arguments) == Put(key="rpi4", port=port, match_key="rpi4:0.1", host=host)


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["rpi4"],
        ["rpi4", 9090, "rpi4:0.1"],
        ["rpi4", [9090, "rpi4:0.1"], 7],
        [7, [9090, "rpi4:0.1"], None],
        ["rpi4", [9090, None], None],
        *(["rpi4", [port, "rpi4:0.1"], None] for port in (0, -1, 99999, True, 90.5, "", "0x5", "٣", "99999", None)),
        *(["rpi4", [9090, text], None] for text in ("", "a b", 'a"', "a\\", "é", "a\n", "x" * 257)),
        ["rpi 4", [9090, "rpi4:0.1"], None],
    ],
)
def test_malformed_offers_are_refused(arguments: list[object]) -> None:
    """Match keys travel in greetings and in lists that stock servers search as text."""
    with pytest.raises(BrokenMessage):
        parse_put(arguments)


def test_a_match_key_is_used_once_and_then_a_new_one_comes() -> None:
    offers = Offers(MOST, served_as)
    assert offers.add(1, put("rpi4:0.1"), HOST) == PI
    assert offers.pending(1) == ["rpi4:0.1"]

    assert offers.take(PI) == "rpi4:0.1"
    assert (offers.take(PI), offers.has(PI), offers.pending(1)) == (None, False, [])
    assert offers.add(1, put("rpi4:0.2"), HOST) == PI
    assert offers.take(PI) == "rpi4:0.2"


def test_an_offer_that_is_repeated_counts_once() -> None:
    """TVM's Android app offers the same match key again after five minutes."""
    offers = Offers(MOST, served_as)
    offers.add(1, put("rpi4:0.1"), HOST)

    assert offers.add(1, put("rpi4:0.1"), HOST) is None
    assert offers.pending(1) == ["rpi4:0.1"]


def test_offers_end_with_their_connection() -> None:
    offers = Offers(MOST, served_as)
    offers.add(1, put("rpi4:0.1"), HOST)
    offers.add(2, put("rpi4:0.2", port=9091), HOST)

    assert offers.drop(1) == [PI]
    assert (offers.has(PI), offers.pending(1)) == (False, [])
    assert offers.has(Server("rpi4", HOST, 9091))
    assert offers.drop(1) == []


def test_a_server_that_was_restarted_replaces_its_former_offer() -> None:
    """Its former connection may end later, or never. An offer from there stays listed, so that nothing offers more."""
    offers = Offers(MOST, served_as)
    offers.add(1, put("rpi4:old"), HOST)

    assert offers.add(2, put("rpi4:new"), HOST) == PI
    assert offers.pending(1) == ["rpi4:old"]
    assert offers.drop(1) == []
    assert offers.take(PI) == "rpi4:new"


def test_a_proxy_offers_several_boards_over_one_connection() -> None:
    """Boards of one key are numbered; after a session the free number is taken again."""
    offers = Offers(MOST, served_as)
    names = [offers.add(1, put(f"rpi4:{number}"), HOST) for number in range(2)]
    other = offers.add(1, put("pixel:0", key="pixel"), HOST)

    assert names == [PI, Server("rpi4", HOST, 9090, 2)]
    assert other == Server("pixel", HOST, 9090)
    assert offers.pending(1) == ["rpi4:0", "rpi4:1", "pixel:0"]
    offers.take(PI)
    assert offers.add(1, put("rpi4:2"), HOST) == PI


def test_offers_that_are_not_served_wait() -> None:
    """They are listed, or their server would offer others again and again."""
    offers = Offers(MOST, served_as)

    assert offers.add(1, put("odd:0.1", key="odd"), None) is None
    assert offers.pending(1) == ["odd:0.1"]
    assert offers.drop(1) == []


def test_offers_and_servers_are_bounded() -> None:
    offers = Offers(MOST, served_as)
    assert [offers.add(port, put("rpi4:0.1", port=port), HOST) is not None for port in (1, 2, 3)] == [True, True, False]
    assert offers.add(4, put("pixel:0.1", key="pixel"), HOST) is not None
    assert offers.pending(3) == ["rpi4:0.1"]

    for number in range(MOST_OFFERS):
        offers.add(1000, put(f"odd:{number}", key="odd"), None)
    with pytest.raises(BrokenMessage):
        offers.add(1000, put("odd:more", key="odd"), None)


@pytest.mark.parametrize(
    ("server", "expected"),
    [
        (PI, "lab-rpi4-10.1.0.7-9090"),
        (Server("rpi4", HOST, 9090, 2), "lab-rpi4-10.1.0.7-9090-2"),
        (Server("pi", "fe80::1", 9090), "lab-pi-fe80-0000-0000-0000-0000-0000-0000-0001-9090"),
    ],
)
def test_devices_are_named_by_key_and_address(server: Server, expected: str) -> None:
    assert device_id(server, "lab-") == expected


def test_long_names_stay_apart() -> None:
    """A device name has at most 63 characters."""
    names = {device_id(Server("k" * 32, "fe80::1", port), "p" * 16) for port in (9090, 9091)}

    assert len(names) == 2
    assert {len(name) for name in names} == {63}
