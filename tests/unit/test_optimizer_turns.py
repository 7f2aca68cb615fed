"""Builds and measurements never run at the same time on shared cores."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.optimizer.turns import Turns


async def _use(turns: Turns, side: str, log: list[str], pauses: int) -> None:
    async with getattr(turns, side)():
        log.append(f"+{side}")
        for _ in range(pauses):
            await asyncio.sleep(0)
        log.append(f"-{side}")


@given(plan=st.lists(st.tuples(st.sampled_from(["building", "measuring"]), st.integers(0, 3)), max_size=12))
def test_sides_never_overlap_and_all_get_their_turn(plan: list[tuple[str, int]]) -> None:
    """At any moment only one side holds the cores, and nobody waits for ever."""
    log: list[str] = []

    async def run() -> None:
        turns = Turns(shares_cores=True)
        async with asyncio.timeout(5), asyncio.TaskGroup() as group:
            for side, pauses in plan:
                group.create_task(_use(turns, side, log, pauses))

    asyncio.run(run())

    inside = {"building": 0, "measuring": 0}
    for entry in log:
        inside[entry[1:]] += 1 if entry[0] == "+" else -1
        assert not (inside["building"] and inside["measuring"])
    assert len(log) == 2 * len(plan)


async def test_builds_share_the_cores() -> None:
    """Two builds run side by side."""
    turns = Turns(shares_cores=True)

    async with turns.building(), asyncio.timeout(1), turns.building():
        pass


async def test_a_waiting_measurement_is_not_overtaken_by_new_builds() -> None:
    """Who asked first goes first, so a stream of builds cannot starve the device."""
    turns, log = Turns(shares_cores=True), []
    async with asyncio.TaskGroup() as group, turns.building():
        group.create_task(_use(turns, "measuring", log, 0))
        await asyncio.sleep(0)
        group.create_task(_use(turns, "building", log, 0))
        await asyncio.sleep(0)

    assert log == ["+measuring", "-measuring", "+building", "-building"]


async def test_a_cancelled_waiter_blocks_nobody() -> None:
    """Ctrl-C while waiting for the cores leaves them usable."""
    turns = Turns(shares_cores=True)
    async with turns.building():
        waiter = asyncio.create_task(_use(turns, "measuring", [], 0))
        await asyncio.sleep(0)
        waiter.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiter

    async with asyncio.timeout(1), turns.measuring():
        pass


async def test_nobody_waits_when_the_device_is_elsewhere() -> None:
    """With the device on another machine both sides run at once."""
    turns = Turns(shares_cores=False)

    async with turns.building(), asyncio.timeout(1), turns.measuring():
        pass
