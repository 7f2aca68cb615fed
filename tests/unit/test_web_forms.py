"""Forms and options of the page are checked before anything is asked of the tracker."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from fleet.errors import ConfigError, InvalidRequest
from fleet.web.forms import MOST_BYTES, booking_in, parse_form, read_form, reason_in
from fleet.web.options import WebOptions

NOW = 1_800_000_000.0
TYPE = "application/x-www-form-urlencoded; charset=utf-8"


async def _endless() -> AsyncIterator[bytes]:
    while True:
        yield b"x" * 1000


async def _once(body: bytes) -> AsyncIterator[bytes]:
    yield body


async def test_a_form_is_read() -> None:
    """With text of any language."""
    found = await read_form(TYPE, _once(urlencode({"reason": "neue Stromversorgung - größer", "csrf": ""}).encode()))

    assert found == {"reason": "neue Stromversorgung - größer", "csrf": ""}


async def test_an_endless_form_is_refused_early() -> None:
    """After 16 KiB, for any promised length."""
    with pytest.raises(InvalidRequest, match=str(MOST_BYTES)):
        await read_form(TYPE, _endless())


@pytest.mark.parametrize("kind", ["", "text/plain", "multipart/form-data; boundary=x", "application/json"])
async def test_other_types_are_refused(kind: str) -> None:
    """Text is a type that pages of other origins send without asking first."""
    with pytest.raises(InvalidRequest, match="urlencoded"):
        await read_form(kind, _once(b"a=1"))


@pytest.mark.parametrize("body", [b"a=1&a=2", b"a=%ff", b"\xff=1", b"&".join(b"f%d=1" % at for at in range(17))])
def test_malformed_forms_are_refused(body: bytes) -> None:
    """Repeated fields, other encodings, and too many fields."""
    with pytest.raises(InvalidRequest):
        parse_form(body)


def test_a_reason_is_one_bounded_line() -> None:
    """Control characters would reach terminals of other users."""
    found = reason_in({"reason": "a\x1b[2Jb\n" + "c" * 1000})

    assert found.isprintable()
    assert len(found) == 500


def test_a_booking_is_read() -> None:
    """The browser's date becomes a moment."""
    form = {"selector": "board=rpi4", "start": "2027-01-20T14:00", "hours": "1.5", "count": "2"}

    selector, starts_at_sec, length_sec, count = booking_in(form, NOW)

    assert (selector, length_sec, count) == ("board=rpi4", 5400.0, 2)
    assert NOW < starts_at_sec < NOW + 30 * 86_400


@pytest.mark.parametrize(
    "change",
    [
        {"selector": ""},
        {"start": "tomorrow"},
        {"start": "1999-01-01T00:00"},
        {"hours": "nan"},
        {"hours": "-1"},
        {"hours": "inf"},
        {"count": "0"},
        {"count": "1e9"},
        {"count": ""},
    ],
)
def test_a_bad_booking_is_refused(change: dict[str, str]) -> None:
    """Each field is checked."""
    form = {"selector": "board=rpi4", "start": "2h", "hours": "1", "count": "1", **change}

    with pytest.raises(InvalidRequest):
        booking_in(form, NOW)


@pytest.mark.parametrize(
    ("values", "advice"),
    [
        ({"host": "0.0.0.0"}, "--allow-network"),
        ({"is_network_allowed": True}, "--behind-proxy"),
        ({"is_network_allowed": True, "is_behind_proxy": True}, "--url"),
        ({"is_behind_proxy": True}, "--url"),
        ({"is_behind_proxy": True, "url": "http://fleet.example.org"}, "https"),
        ({"url": "https://fleet.example.org"}, "http://"),
        ({"url": "fleet.example.org"}, "write it like"),
        ({"certificate": Path("a.pem")}, "--key"),
        ({"certificate": Path("/none/a.pem"), "key": Path("/none/b.pem")}, "/none/a.pem"),
    ],
)
def test_the_network_needs_encryption(values: dict[str, Any], advice: str) -> None:
    """Each refusal names the missing option."""
    with pytest.raises(ConfigError, match=advice):
        WebOptions(**values).check()


def test_a_proxy_adds_its_name_to_the_accepted_hosts() -> None:
    """Other names are refused: see the system test."""
    options = WebOptions(is_behind_proxy=True, is_network_allowed=True, url="https://Fleet.example.org/")
    options.check()

    assert options.hosts(8080) == {"127.0.0.1:8080", "localhost:8080", "[::1]:8080", "fleet.example.org"}
    assert options.address(8080) == "https://Fleet.example.org"
    assert options.is_encrypted
