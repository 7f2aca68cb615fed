"""Addresses that only this machine reaches."""

from __future__ import annotations

import pytest

from fleet.base.network import (
    address_of,
    addresses_of,
    check_address,
    check_addresses,
    host_of,
    is_loopback,
    refuse_network,
    refuse_plain_network,
)
from fleet.errors import ConfigError


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.10", "::1", "[::1]", "localhost"])
def test_the_loopback_is_this_machines_alone(host: str) -> None:
    """It is recognised in both versions of IP, and by its name."""
    assert is_loopback(host)
    refuse_network(host)
    refuse_plain_network(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "10.0.0.5", "pi4.local", "localhost.example.com"])
def test_every_other_command_is_reached_by_others(host: str) -> None:
    """Names that need a look-up count, too; the message names the option to allow it. Without TLS there is no such
    option.
    """
    assert not is_loopback(host)
    with pytest.raises(ConfigError, match=r"other machines reach .*--allow-network"):
        refuse_network(host)
    with pytest.raises(ConfigError, match=r"--plain means no TLS"):
        refuse_plain_network(host)


@pytest.mark.parametrize(
    ("address", "host"), [("10.0.0.5:9290", "10.0.0.5"), ("[::1]:9290", "[::1]"), ("pi4.local:1", "pi4.local")]
)
def test_the_host_of_an_address(address: str, host: str) -> None:
    """Brackets around IPv6 stay, as in URLs."""
    assert host == host_of(address)


@pytest.mark.parametrize("host", ["10.0.0.5", "pi4.local", "::1", "[::1]", "fd00::5"])
def test_an_address_is_written_as_it_is_read(host: str) -> None:
    """Addresses of both IP versions are read back, with or without brackets."""
    address = address_of(host, 9290)

    check_address(address, "it")
    assert host_of(address).strip("[]") == host.strip("[]")


@pytest.mark.parametrize("host", ["lab..local", "x" * 64, "lab\udcff"])
def test_a_host_that_no_lookup_takes_is_refused(host: str) -> None:
    """An empty or overlong label, and a byte of the command line that is no UTF-8."""
    with pytest.raises(ConfigError, match="write it like"):
        check_address(f"{host}:9290", "it")


def test_several_addresses_are_separated_by_commas() -> None:
    """Each is checked; a repeated one counts once."""
    assert addresses_of("a:1, b:2,a:1") == ("a:1", "b:2")
    check_addresses("a:1,b:2", "the tracker")
    for text in ("", ",", "a:1,b", "a:1 b:2"):
        with pytest.raises(ConfigError, match="cannot read the tracker"):
            check_addresses(text, "the tracker")
