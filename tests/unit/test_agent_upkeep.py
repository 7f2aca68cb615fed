"""Power cycles of a faulted device: three within 24 hours, whatever the clock does."""

from __future__ import annotations

import asyncio
import time

import pytest

from device_agents.driver import Health
from device_agents.hooks import Hook, Hooks
from device_agents.serving.hook_notes import HookNotes
from device_agents.serving.hook_run import LeaseNames
from device_agents.serving.timing import Timing
from device_agents.serving.upkeep import Upkeep
from fleet.testing import eventually

DEVICE = "devices/a"
HOUR_SEC = 3_600.0


@pytest.mark.parametrize(
    ("ages_sec", "cycles"),
    [
        ([], 3),
        ([23 * HOUR_SEC, HOUR_SEC], 1),
        ([25 * HOUR_SEC, 23 * HOUR_SEC, HOUR_SEC], 1),
        ([25 * HOUR_SEC] * 3, 3),
        ([23 * HOUR_SEC] * 3, 0),
        ([-24 * HOUR_SEC] * 2, 1),
    ],
    ids=["first", "recent", "one-is-old", "yesterday", "used-up", "clock-set-back"],
)
async def test_a_faulted_device_is_power_cycled_three_times_in_24_hours(ages_sec: list[float], cycles: int) -> None:
    """After the clock was set back, power cycles with future times count as recent and expire like others."""
    notes, cycled, checks = HookNotes(), [], [0]
    note = notes.of(DEVICE)
    note.cycled_at_sec = [time.time() - age_sec for age_sec in ages_sec]

    async def run(_hook: Hook, name: str, _lease: LeaseNames) -> str:
        cycled.append(name)
        return "the relay hangs"

    async def health() -> Health:
        checks[0] += 1
        return Health(is_healthy=False)

    hooks = Hooks(power_cycle=Hook("power_cycle", ("uhubctl",), 5.0))
    upkeep = Upkeep(DEVICE, hooks, notes, timing=Timing(health_sec=0.001, settle_sec=0.001), run=run)
    upkeep.watch(health, asyncio.Lock)
    await eventually(lambda: checks[0] > 20)
    await upkeep.close()

    assert cycled == [DEVICE] * cycles
    assert all(at_sec <= time.time() for at_sec in note.cycled_at_sec) or not cycles
