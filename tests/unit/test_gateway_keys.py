"""Tracker keys of stock clients as selectors."""

from __future__ import annotations

import pytest

from fleet.domain.devices import DeviceState, DeviceStatus, Inventory
from fleet.errors import InvalidRequest, NoMatchingDevice
from fleet.gateway.keys import KeySummary, selector_of, summarize, with_version


def device(
    name: str, *, alias: str = "", version: str = "0.27.0", state: DeviceState = DeviceState.AVAILABLE
) -> DeviceStatus:
    labels = {"tvm_key": alias} if alias else {}
    inventory = Inventory(kind="cpu", tvm_version=version, labels=labels)
    return DeviceStatus(name=f"devices/{name}", state=state, inventory=inventory)


def test_an_alias_goes_before_a_selector() -> None:
    """A key that is both is the alias."""
    assert ["tvm_key=rpi4", "kind=cpu", "kind=rpi4"] == [
        selector_of("rpi4", [device("a", alias="rpi4")]),
        selector_of("cpu", [device("a", alias="rpi4")]),
        selector_of("rpi4", [device("a")]),
    ]


def test_a_malformed_key_is_refused() -> None:
    with pytest.raises(InvalidRequest):
        selector_of("mem>=", [device("a")])


def test_devices_of_other_versions_are_not_asked_for() -> None:
    """0.27 is any 0.27.x, and no 0.270."""
    devices = [device("a"), device("b", version="0.270.0"), device("c", version="0.19.0")]

    assert with_version("cpu", "0.27", devices) == "kind=cpu,tvm==0.27|0.27.*"


def test_a_version_that_no_device_has_is_refused_with_both_versions() -> None:
    with pytest.raises(NoMatchingDevice, match=r"has TVM 0\.19.*they have no TVM, TVM 0\.27\.0"):
        with_version("cpu", "0.19", [device("a"), device("b", version="")])


def test_the_summary_counts_devices_by_key() -> None:
    """Kept devices count as free. Keys with a colon would break stock clients."""
    devices = [
        device("a", alias="rpi4"),
        device("b", alias="rpi4", state=DeviceState.LEASED),
        device("c", alias="x:y", state=DeviceState.OFFLINE),
    ]

    assert {
        "cpu": KeySummary(devices=3, free=2),
        "rpi4": KeySummary(devices=2, free=2),
        "name=c": KeySummary(devices=1, free=0),
    } == summarize(devices, ["name=c", "mem>=", "name=nobody"], {"devices/b"})
