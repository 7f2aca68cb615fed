"""The devices that a configuration makes, and their names."""

from __future__ import annotations

import re

import pytest

from device_agents.config import make_drivers, parse_config
from device_agents.registry import load_driver
from fleet.base.config import parse_yaml
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


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tracker: lab:1\ndevcies: []\n", "agent.yaml: line 2: unknown key 'devcies'; did you mean 'devices'?"),
        ("true: 3\n", "agent.yaml: line 1: unknown key True; known are"),
        ("tracker: lab:1\ntracker: lab:2\n", "agent.yaml: line 2: the key 'tracker' stands in line 1 already"),
        ("\ntracker: lab\n", "agent.yaml: line 2: tracker: 'lab'; write it like"),
        ("\nrelay: lab\n", "agent.yaml: line 2: relay: 'lab'; write it like"),
        ("\ncache_max_bytes: many\n", "agent.yaml: line 2: cache_max_bytes: expected a whole number, found 'many'"),
        ("\ncache_max_bytes: 0\n", "agent.yaml: line 2: cache_max_bytes: expected a number above zero, found 0"),
        ("\nmemory_limit_bytes: 1\n", "agent.yaml: line 2: memory_limit_bytes: 1 bytes, a worker needs at least"),
        ("\njail: bars\n", "agent.yaml: line 2: jail: expected auto, required, none, found 'bars'"),
        ("\ndevices: []\n", "agent.yaml: line 2: devices: name at least one"),
        (
            "devices:\n- driver: cpu\n- cpu\n",
            "agent.yaml: line 3: devices[1]: expected 'driver: NAME' and its settings",
        ),
        ("devices:\n- driver: cpu\n- name: x\n", "agent.yaml: line 3: devices[1]: the key 'driver' is missing"),
        ("devices:\n- name: x\n  driver: cup\n", "agent.yaml: line 3: devices[0]: unknown driver 'cup'; did you mean"),
        (
            "devices:\n- driver: cpu\n  theads: 1\n",
            "agent.yaml: line 3: devices[0]: unknown key 'theads'; did you mean",
        ),
        (
            "devices:\n- driver: cpu\n  lables: {}\n",
            "agent.yaml: line 3: devices[0]: unknown key 'lables'; did you mean",
        ),
        ("devices:\n- driver: cpu\n  threads: x\n", "agent.yaml: line 3: devices[0]: threads: expected a whole number"),
        ("devices:\n- driver: cpu\n  threads: 0\n", "agent.yaml: line 3: devices[0]: threads: expected a number above"),
        ("devices:\n- driver: cpu\n  cpus: fast\n", "agent.yaml: line 3: devices[0]: cpus: expected all, big, little"),
        (
            "devices:\n- driver: cpu\n  sys_root: ~nobody-of-this-name/x\n",
            "agent.yaml: line 3: devices[0]: sys_root: ~nobody-of-this-name/x: there is no home directory",
        ),
        (
            "devices:\n- driver: cpu\n  labels:\n    rack: 3\n    Arch: x\n",
            "agent.yaml: line 5: devices[0]: labels: 'Arch' is no key",
        ),
        (
            "devices:\n- driver: cpu\n  labels:\n    rack: 3\n    room: a,b\n",
            "agent.yaml: line 5: devices[0]: labels: room: 'a,b' is nothing that a selector can name",
        ),
        (
            "devices:\n- driver: cpu\n  facts: {a: .inf}\n",
            "agent.yaml: line 3: devices[0]: facts: cannot be written as JSON",
        ),
        (
            "devices:\n- driver: cpu\n  before_lease:\n    comand: []\n",
            "agent.yaml: line 4: devices[0]: before_lease: unknown key 'comand'; did you mean 'command'?",
        ),
        (
            "devices:\n- driver: cpu\n  before_lease:\n    timeout_sec: 3\n",
            "agent.yaml: line 3: devices[0]: before_lease: the key 'command' is missing",
        ),
        (
            "devices:\n- driver: cpu\n  power_cycle:\n    command: [a]\n    timeout_sec: 601\n",
            "agent.yaml: line 5: devices[0]: power_cycle: timeout_sec: expected a number above 0",
        ),
        (
            "devices:\n- driver: simulated\n  name: a\n- driver: simulated\n  name: a\n",
            "agent.yaml: line 5: devices[1]: two devices are named 'a'",
        ),
        ("devices:\n- driver: cpu\n  name: a/b\n", "agent.yaml: line 3: devices[0]: 'a/b' is no device name"),
        ("devices:\n- driver: simulated\n  count: 2000\n", "agent.yaml: line 3: devices[0]: count: 2000 devices"),
        ("devices:\n- driver: simulated\n  board: pi9\n", "agent.yaml: line 3: devices[0]: board: unknown board 'pi9'"),
        (
            "devices:\n- driver: tvm_rpc\n  address: here\n  target: rpi4b\n",
            "agent.yaml: line 3: devices[0]: address: 'here'; write it like",
        ),
        (
            "devices:\n- driver: tvm_rpc\n  address: a:1\n  target: pi9\n",
            "agent.yaml: line 4: devices[0]: target: unknown board 'pi9'",
        ),
        (
            "devices:\n- driver: tvm_rpc\n  address: a:1\n  target:\n    kind: llvm\n    num-cores: x\n",
            "agent.yaml: line 6: devices[0]: target: num-cores: expected a number above zero, found 'x'",
        ),
        (
            "devices:\n- driver: tvm_rpc\n  address: a:1\n  target: {kind: llvm, date: 2026-11-29}\n",
            "agent.yaml: line 4: devices[0]: target: cannot be written as JSON",
        ),
        (
            "devices:\n- driver: android\n  device_type: gpu\n",
            "agent.yaml: line 3: devices[0]: device_type: expected cpu or opencl, found 'gpu'",
        ),
        ("devices:\n- driver: opencl\n  type: tpu\n", "agent.yaml: line 3: devices[0]: type: expected one of"),
        ("devices:\n- driver: zynq\n  part: x\n", "agent.yaml: line 3: devices[0]: part: 'x' is no Zynq"),
    ],
)
def test_an_error_of_agent_yaml_names_line_and_key(text: str, message: str) -> None:
    """Also in entries of devices, in settings of their drivers, and in hooks."""
    with pytest.raises(ConfigError, match=re.escape(message)):
        _drivers_of(text)


def _drivers_of(text: str) -> None:
    values, place = parse_yaml(text, where="agent.yaml")
    make_drivers(parse_config(values, where=place), where=place)
