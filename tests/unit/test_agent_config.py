"""The devices that a configuration makes, and their names."""

from __future__ import annotations

import re

import pytest

from device_agents.config import make_drivers, parse_config
from device_agents.registry import load_driver
from fleet.errors import ConfigError


def test_an_unknown_driver_names_the_nearest_and_lists_all() -> None:
    """A typo is found at once."""
    with pytest.raises(ConfigError, match=r"did you mean 'cpu'.*cpu, .*simulated"):
        load_driver("cpuu", where="agent.yaml: devices[0]")


def test_devices_are_named_by_host_and_driver() -> None:
    """Devices without a name are named by host and driver; counted devices get a number."""
    config = parse_config({"devices": [{"driver": "cpu"}, {"driver": "simulated", "count": 2}]})

    names = [driver.name for driver in make_drivers(config, host_name="box")]

    assert names == ["devices/box-cpu", "devices/box-simulated-0", "devices/box-simulated-1"]


def test_the_default_is_this_machines_cpu() -> None:
    """A machine can be served without a configuration file."""
    assert [driver.name for driver in make_drivers(parse_config({}), host_name="box")] == ["devices/box-cpu"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"cpus": "fast"}, "devices[0]: cpus: expected all, big, little, or numbers"),
        ({"reference_limit": 1}, "devices[0]: reference_limit: expected a number above 1, found 1"),
        ({"threads": 0}, "devices[0]: threads: expected a number above zero, found 0"),
    ],
)
def test_a_cpu_device_that_no_machine_can_be_is_refused(settings: dict[str, object], message: str) -> None:
    """Invalid settings are refused at the start, and the message names the key."""
    with pytest.raises(ConfigError, match=re.escape(message)):
        make_drivers(parse_config({"devices": [{"driver": "cpu", **settings}]}))
