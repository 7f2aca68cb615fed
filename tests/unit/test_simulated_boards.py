"""Simulated devices that are taken for boards, by the boards' data files."""

from __future__ import annotations

import json

import pytest

from cross.targets.boards import find_board, load_boards
from device_agents.config import make_drivers, parse_config
from device_agents.driver import Driver, NoStrays
from fleet.domain.selectors import device_labels, parse_selector
from fleet.errors import ConfigError


def drivers(**settings: object) -> list[Driver]:
    return make_drivers(parse_config({"devices": [{"driver": "simulated", **settings}]}), host_name="lab")


async def test_a_fleet_of_boards_is_one_entry() -> None:
    """Eight Pis: architecture, target, cores and memory of the board, each plainly a simulation."""
    made = drivers(board="rpi4-32", count=8)
    assert [f"lab-rpi4-32-{index}" for index in range(8)] == [driver.device_id for driver in made]

    await made[0].open(NoStrays())
    inventory = made[0].inventory()

    assert inventory.is_simulated
    assert "(simulated)" in inventory.device_model
    assert json.loads(inventory.target_json) == find_board("rpi4-32").target
    assert (inventory.core_count, inventory.memory_bytes) == (4, 1024**3)
    labels = device_labels(made[0].name, inventory.kind, dict(inventory.labels))
    for selector in ("arch=armv7l", "board=rpi4-32", "board_kind=raspberry_pi,kind=simulated", "emulated=true"):
        assert parse_selector(selector).matches(labels)
    assert not parse_selector("kind=raspberry_pi").matches(labels)


@pytest.mark.parametrize("name", load_boards())
async def test_any_board_can_be_simulated(name: str) -> None:
    """Selectors match every label of its inventory."""
    (driver,) = drivers(board=name)
    await driver.open(NoStrays())
    inventory = driver.inventory()

    labels = device_labels(driver.name, inventory.kind, dict(inventory.labels))
    for key, value in labels.items():
        assert parse_selector(f"{key}={value}").matches(labels)
    assert inventory.core_count >= 1
    assert inventory.memory_bytes > 0


def test_an_unknown_board_names_the_nearest() -> None:
    """The message has the entry of agent.yaml and an existing board."""
    with pytest.raises(ConfigError, match=r"devices\[0\]: board: unknown board 'rpi6-64'; did you mean 'rpi5-64'"):
        drivers(board="rpi6-64")
