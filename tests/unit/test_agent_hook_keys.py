"""Hooks in agent.yaml: the keys, and the messages about bad ones."""

from __future__ import annotations

import re

import pytest

from device_agents.config import make_drivers, parse_config
from device_agents.driver import Driver
from device_agents.hooks import Hook, Hooks
from device_agents.owner_labels import LabellingFinder, split_owner_labels
from fleet.errors import ConfigError

GOOD = {"command": ["/bin/true"]}


def drivers_with(**settings: object) -> list[Driver]:
    return make_drivers(parse_config({"devices": [{"driver": "simulated", "name": "sim", **settings}]}))


def test_each_device_of_an_entry_has_its_hooks() -> None:
    """A time limit has a default, and zero or one of the hooks may be given."""
    drivers = drivers_with(count=2, before_lease=GOOD, power_cycle={"command": ["uhubctl", "-a"], "timeout_sec": 5})

    before, cycle = Hook("before_lease", ("/bin/true",), 30.0), Hook("power_cycle", ("uhubctl", "-a"), 5.0)
    assert [driver.hooks for driver in drivers] == [Hooks(before_lease=before, power_cycle=cycle)] * 2
    assert drivers_with()[0].hooks == Hooks()


async def test_devices_that_appear_later_have_the_hooks_of_their_entry() -> None:
    """Such as phones that are plugged in."""

    class Shelf:
        preload = None

        async def look(self) -> list[Driver]:
            return drivers_with()

        async def wait(self) -> None: ...

        async def close(self) -> None: ...

    given, _ = split_owner_labels({"after_lease": GOOD, "labels": {"rack": 3}}, "devices[0]")

    (driver,) = await LabellingFinder(Shelf(), given).look()

    assert driver.hooks == Hooks(after_lease=Hook("after_lease", ("/bin/true",), 30.0))
    assert driver.given_labels == {"rack": "3"}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"before_leas": GOOD}, "devices[0]: unknown key 'before_leas'; did you mean 'before_lease'?"),
        ({"before_lease": {"comand": []}}, "before_lease: unknown key 'comand'; did you mean 'command'?"),
        ({"before_lease": {"timeout_sec": 3}}, "before_lease: the key 'command' is missing"),
        ({"before_lease": "true"}, "before_lease: expected a mapping, found 'true'"),
        ({"after_lease": {"command": "rm -rf /tmp/x"}}, "after_lease: command: expected a list, found 'rm -rf /tmp/x'"),
        ({"after_lease": {"command": []}}, "after_lease: command: the first word names a program, and there is none"),
        ({"after_lease": {"command": ["a", 3]}}, "expected words of text, found 3; put it in quotes"),
        ({"after_lease": {"command": ["a\0b"]}}, "expected words of text, found 'a\\x00b'"),
        ({"after_lease": {"command": ["bin/x"]}}, "'bin/x' is no absolute path; hooks run in the root directory"),
        ({"after_lease": {"command": ["a"] * 65}}, "more than 64 words or 4096 characters; write a script"),
        ({"after_lease": {"command": ["a" * 5000]}}, "more than 64 words or 4096 characters; write a script"),
        ({"power_cycle": {**GOOD, "timeout_sec": 0}}, "timeout_sec: expected a number above 0, at most 600, found 0"),
        (
            {"power_cycle": {**GOOD, "timeout_sec": 601}},
            "timeout_sec: expected a number above 0, at most 600, found 601",
        ),
        ({"power_cycle": {**GOOD, "timeout_sec": float("nan")}}, "above 0, at most 600, found nan"),
        ({"power_cycle": {**GOOD, "timeout_sec": "5 s"}}, "power_cycle: timeout_sec: expected a number, found '5 s'"),
    ],
)
def test_a_bad_hook_is_refused(settings: dict[str, object], message: str) -> None:
    """The message names the entry, the key, the nearest known one, and the remedy."""
    with pytest.raises(ConfigError, match=re.escape(message)):
        drivers_with(**settings)
