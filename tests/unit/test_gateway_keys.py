"""Tracker keys of stock clients as selectors."""

from __future__ import annotations

import pytest

from fleet.domain.devices import DeviceState, DeviceStatus, Inventory
from fleet.errors import InvalidRequest, NoMatchingDevice
from fleet.gateway.keys import KeySummary, is_known, selector_of, summarize, with_version


def device(
    name: str,
    *,
    alias: str = "",
    version: str = "0.27.0",
    state: DeviceState = DeviceState.AVAILABLE,
    server: str = "",
) -> DeviceStatus:
    labels = {"tvm_key": alias} if alias else {}
    kind, facts = ("tvm_registered", {"address": server}) if server else ("cpu", {})
    inventory = Inventory(kind=kind, tvm_version=version, labels=labels, facts=facts)
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
    """Kept devices count as free. Aliases with a colon would break stock clients."""
    devices = [
        device("a", alias="rpi4"),
        device("b", alias="rpi4", state=DeviceState.LEASED),
        device("c", alias="x:y", state=DeviceState.OFFLINE),
    ]

    assert {
        "cpu": KeySummary(servers=(None, None, None), free=2, pending=0),
        "rpi4": KeySummary(servers=(None, None), free=2, pending=1),
        "name=c": KeySummary(servers=(None,), free=0, pending=0),
        "pixel": KeySummary(servers=(), free=0, pending=2),
    } == summarize(devices, ["name=c", "mem>=", "name=nobody"], {"devices/b"}, {"rpi4": 1, "pixel": 2})


def test_the_summary_has_the_addresses_of_registered_servers() -> None:
    """A server that is gone has none, but its key stays. A strange address of an agent is not one."""
    devices = [
        device("a", alias="1.2.3.4:5", server="10.1.0.7:9090"),
        device("b", alias="1.2.3.4:5", server="board:9091", state=DeviceState.LEASED),
        device("c", alias="1.2.3.4:5", server="10.1.0.8:9090", state=DeviceState.FAULTED),
        device("d", alias="odd", server="nowhere", state=DeviceState.OFFLINE),
    ]
    found = summarize(devices, [], (), {})

    assert found["1.2.3.4:5"] == KeySummary(servers=(("10.1.0.7", 9090), ("board", 9091)), free=1, pending=0)
    assert found["odd"].servers == (None,)


def test_a_key_is_known_once_a_device_has_it() -> None:
    devices = [device("a", alias="1.2.3.4:5")]

    assert [is_known(key, devices) for key in ("1.2.3.4:5", "cpu", "other", "mem>=")] == [True, True, False, False]
