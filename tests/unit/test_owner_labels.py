"""Labels and facts that agent.yaml gives a device."""

from __future__ import annotations

import json
import re

import pytest

from device_agents.config import make_drivers, parse_config
from device_agents.driver import NoStrays
from fleet.domain.selectors import parse_selector
from fleet.errors import ConfigError
from fleet.v1 import measurement_pb2
from fleet.wire.measurements import provenance_from_proto, provenance_to_proto


async def test_labels_of_any_driver_are_matched_by_selectors() -> None:
    """Numbers and booleans of YAML are matched by their text; the driver's own labels stay."""
    entry = {"driver": "cpu", "labels": {"rack": 3, "cooling": "fan", "lab": True}}
    (driver,) = make_drivers(parse_config({"devices": [entry]}))
    await driver.open(NoStrays())

    labels = driver.inventory().labels
    await driver.close()

    assert labels["arch"]
    assert parse_selector("rack=3,cooling=fan,lab=true").matches({**labels, "name": "x", "kind": "cpu"})


def test_facts_are_kept_as_json() -> None:
    """Nested values are kept; dates of YAML become texts."""
    entry = {"driver": "cpu", "facts": {"heatsink": {"fins": 24}, "bought": "2026-03-01"}}
    (driver,) = make_drivers(parse_config({"devices": [entry]}))

    assert json.loads(driver.given_facts_json) == {"heatsink": {"fins": 24}, "bought": "2026-03-01"}


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"labels": {"arch": "z80"}}, "labels: the fleet finds 'arch' by itself; choose another key"),
        ({"labels": {"mem": "2GiB"}}, "labels: the fleet finds 'mem' by itself; choose another key"),
        ({"labels": {"note": "a|b"}}, "labels: note: 'a|b' is nothing that a selector can name"),
        ({"labels": {"Rack": 3}}, "labels: 'Rack' is no key"),
        ({"labels": {"rack": "a,b"}}, "labels: rack: 'a,b' is nothing that a selector can name"),
        ({"labels": {"rack": [1]}}, "labels: rack: [1] is nothing that a selector can name"),
        ({"labels": {"rack": "x" * 2_000_000}}, "labels: rack: a value of 2000000 characters, at most 256"),
        ({"labels": {"r" * 65: 1}}, "is a key of 65 characters, at most 64"),
        ({"labels": {f"r{n}": n for n in range(3_000)}}, "labels: 3000 labels, at most 64"),
        ({"labels": 3}, "labels: expected a mapping, found 3"),
        ({"facts": {"a": object()}}, "facts: cannot be written as JSON"),
        ({"facts": {"a": "x" * 5000}}, "facts: 5009 bytes as JSON, at most 4096"),
        ({"lables": {}}, "unknown key 'lables'"),
    ],
)
def test_invalid_labels_are_refused_with_entry_and_key(said: dict[str, object], message: str) -> None:
    """It is refused at the start, and the message names entry and key."""
    with pytest.raises(ConfigError, match=re.escape("devices[0]: ") + ".*" + re.escape(message)):
        make_drivers(parse_config({"devices": [{"driver": "cpu", **said}]}))


def test_a_simulated_device_may_have_any_label() -> None:
    """A simulated device may claim any label."""
    (driver,) = make_drivers(parse_config({"devices": [{"driver": "simulated", "labels": {"arch": "armv8"}}]}))

    assert driver.kind == "simulated"


@pytest.mark.parametrize("text", ['{"fins": 24}', "no json", "[" * 100_000])
def test_facts_survive_the_wire_whatever_an_agent_sends(text: str) -> None:
    """Facts are for people: a text that is no JSON stays a text."""
    message = measurement_pb2.Provenance(owner_facts_json=text)

    facts = provenance_from_proto(message)["facts"]

    assert facts == ({"fins": 24} if text.startswith("{") else text)
    assert provenance_from_proto(provenance_to_proto({"facts": facts}))["facts"] == facts
