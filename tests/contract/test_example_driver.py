"""The driver of docs/how-to/write-a-driver.md, found by its entry point and held to the contract of all."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from device_agents.config import known_keys, make_drivers, parse_config
from device_agents.driver import Driver
from device_agents.registry import find_devices, known_drivers
from fleet.errors import ConfigError, DeviceMissing
from tests.contract.installed import install
from tests.contract.test_driver import (
    NoStrays,
    open_driver,
    test_a_healthy_device_is_reported_as_healthy,
    test_closing_is_idempotent_and_final,
    test_its_runtime_answers_in_a_real_worker,
    test_no_method_works_before_open,
    test_opening_twice_fails,
    test_reset_kills_leftover_processes,
    test_telemetry_is_cheap,
    test_the_inventory_is_complete_and_stays,
)

__all__ = [
    "open_driver",
    "test_a_healthy_device_is_reported_as_healthy",
    "test_closing_is_idempotent_and_final",
    "test_its_runtime_answers_in_a_real_worker",
    "test_no_method_works_before_open",
    "test_opening_twice_fails",
    "test_reset_kills_leftover_processes",
    "test_telemetry_is_cheap",
    "test_the_inventory_is_complete_and_stays",
]

EXAMPLE = Path(__file__).parents[2] / "examples/driver"


@pytest.fixture(autouse=True)
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    install(EXAMPLE, tmp_path / "site", monkeypatch)
    yield
    sys.modules.pop("fan_box", None)


@pytest.fixture
def state_file(tmp_path: Path) -> Path:
    path = tmp_path / "state"
    write(path, "41.5 1200\n")
    return path


@pytest.fixture
def driver(state_file: Path) -> Driver:
    return make(state_file)


def write(state_file: Path, state: str) -> None:
    state_file.write_text(state)


def make(state_file: Path) -> Driver:
    entry = {"driver": "fan_box", "name": "bench-7", "state_file": str(state_file)}
    return make_drivers(parse_config({"devices": [entry]}))[0]


def test_it_is_known_like_our_own() -> None:
    """Installed is enough: agent.yaml may name it, and its keys have their sentences."""
    assert "fan_box" in known_drivers()
    assert {"name", "state_file", "max_temp_c"} == {key.name for key in known_keys()["fan_box"]}
    assert all(key.doc for key in known_keys()["fan_box"])


def test_it_is_found_in_the_place_of_the_processor_that_it_is(tmp_path: Path) -> None:
    """A machine with a fan controller serves a fan_box and no cpu beside it; any other serves a cpu."""
    (tmp_path / "run/fan-box").mkdir(parents=True)
    (tmp_path / "run/fan-box/state").write_text("41.5 1200\n")

    assert "fan_box" in {entry["driver"] for entry in find_devices(tmp_path)}
    assert "cpu" not in {entry["driver"] for entry in find_devices(tmp_path)}
    assert "cpu" in {entry["driver"] for entry in find_devices(tmp_path / "run")}


def test_a_typo_names_the_key() -> None:
    """A wrong key is an error, not a default."""
    with pytest.raises(ConfigError, match="did you mean 'max_temp_c'"):
        make_drivers(parse_config({"devices": [{"driver": "fan_box", "max_temp": 50}]}))


@pytest.mark.parametrize(
    ("state", "reason"),
    [("41.5 0", "fan stands still"), ("80 1200", "80 C, above 70 C"), ("what", "probing failed")],
)
async def test_probe_of_a_faulty_box_returns_the_reason(
    open_driver: Driver, state_file: Path, state: str, reason: str
) -> None:
    """A probe returns; it does not raise."""
    write(state_file, state)

    health = await open_driver.probe()

    assert not health.is_healthy
    assert reason in health.reason


async def test_a_box_without_its_controller_is_missing(tmp_path: Path) -> None:
    """The agent then lists it as faulted with this sentence, and looks again."""
    with pytest.raises(DeviceMissing, match="no fan controller: cannot read"):
        await make(tmp_path / "nothing").open(NoStrays())
