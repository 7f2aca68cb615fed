"""Entries of the driver tvm_registered in agent.yaml."""

from __future__ import annotations

from ipaddress import ip_address

import pytest

from device_agents.config import make_drivers, parse_config
from device_agents.drivers.tvm_registered.config import parse_entry
from fleet.base.config import parse_yaml
from fleet.errors import ConfigError

TARGET = {"kind": "llvm", "mtriple": "aarch64-linux-gnu"}


def entry(**more: object) -> dict[str, object]:
    return {"listen": "10.1.0.1:9190", "keys": {"rpi4": {"target": TARGET, **more}}}


def test_boards_come_from_the_wire_of_the_port_by_default() -> None:
    """Only the networks of `from` are admitted, where it is given."""
    usual = parse_entry(entry(), "x").keys["rpi4"]
    chosen = parse_entry(entry(**{"from": ["10.2.0.0/16", "fd00::/8"]}), "x").keys["rpi4"]

    assert usual.admits(ip_address("10.1.0.200"))
    assert not usual.admits(ip_address("10.1.1.1"))
    assert chosen.admits(ip_address("fd00::7"))
    assert not chosen.admits(ip_address("10.1.0.200"))


@pytest.mark.parametrize(
    ("yaml", "message"),
    [
        ("listen: lab:9190\n  keys: {}", "line 3: devices[0]: listen: expected the IP address of one interface"),
        ("listen: 10.1.0.1\n  keys: {}", "line 3: devices[0]: listen: '10.1.0.1'"),
        ("listen: 10.1.0.1:9190\n  keys: {}", "line 4: devices[0]: keys: name at least one"),
        ("listen: 0.0.0.0:9190\n  keys:\n    pi: {target: rpi4-64}", "line 5: devices[0]: keys: pi: the key 'from' is"),
        ("listen: 10.1.0.1:9190\n  keys:\n    p i: {target: rpi4-64}", "line 5: devices[0]: keys: 'p i' is no key"),
        ("listen: 10.1.0.1:9190\n  keys:\n    pi: rpi4-64", "line 5: devices[0]: keys: pi: expected settings like"),
        ("listen: 10.1.0.1:9190\n  keys:\n    pi: {target: pi9}", "line 5: devices[0]: keys: pi: target: "),
        ("listen: 10.1.0.1:9190\n  keys:\n    pi: {traget: rpi4-64}", "unknown key 'traget'; did you mean 'target'?"),
        (
            "listen: 10.1.0.1:9190\n  keys:\n    pi: {target: rpi4-64, from: 10.1.0.1/24}",
            "devices[0]: keys: pi: from: expected a network like 10.1.0.0/24",
        ),
        (
            'listen: 10.1.0.1:9190\n  keys:\n    pi: {target: rpi4-64, tvm: "0.20"}',
            "devices[0]: keys: pi: tvm: the boards have TVM 0.20 and this agent 0.",
        ),
        ("listen: 10.1.0.1:9190\n  name: /\n  keys: {}", "devices[0]: name: '/' begins no device name"),
    ],
)
def test_errors_name_the_place_and_the_remedy(yaml: str, message: str) -> None:
    values, place = parse_yaml(f"devices:\n- driver: tvm_registered\n  {yaml}\n", where="agent.yaml")
    with pytest.raises(ConfigError) as caught:
        make_drivers(parse_config(values, where=place), where=place)

    assert message in str(caught.value)
