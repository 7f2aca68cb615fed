"""Builds and measurements never run at the same time on shared cores."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.base.machine import machine_fingerprint
from fleet.building.turns import Cores, Turns, stepped_aside
from fleet.domain.devices import Inventory

HERE = machine_fingerprint()
PROCESSOR = Inventory(kind="cpu", target_json='{"kind": "llvm"}', host_fingerprint=HERE)
GPU = Inventory(kind="cuda", target_json='{"kind": "cuda"}', host_fingerprint=HERE)
ELSEWHERE = Inventory(kind="cpu", target_json='{"kind": "llvm"}', host_fingerprint="another machine")


async def _use(turns: Turns, side: str, log: list[str], pauses: int) -> None:
    async with getattr(turns, side)():
        log.append(f"+{side}")
        for _ in range(pauses):
            await asyncio.sleep(0)
        log.append(f"-{side}")


@given(plan=st.lists(st.tuples(st.sampled_from(["building", "measuring"]), st.integers(0, 3)), max_size=12))
def test_sides_never_overlap_and_all_get_their_turn(plan: list[tuple[str, int]]) -> None:
    """Only one side holds the cores at any moment, and all tasks finish."""
    log: list[str] = []

    async def run() -> None:
        turns = Turns(shares_cores=True)
        async with asyncio.timeout(30), asyncio.TaskGroup() as group:
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

    async with turns.building(), asyncio.timeout(30), turns.building():
        pass


async def test_a_waiting_measurement_is_not_overtaken_by_new_builds() -> None:
    """Turns are first come, first served, so a stream of builds cannot starve the device."""
    turns, log = Turns(shares_cores=True), []
    async with asyncio.TaskGroup() as group, turns.building():
        group.create_task(_use(turns, "measuring", log, 0))
        await asyncio.sleep(0)
        group.create_task(_use(turns, "building", log, 0))
        await asyncio.sleep(0)

    assert log == ["+measuring", "-measuring", "+building", "-building"]


async def test_a_cancelled_waiter_does_not_block_others() -> None:
    """Ctrl-C while waiting for the cores leaves them usable."""
    turns = Turns(shares_cores=True)
    async with turns.building():
        waiter = asyncio.create_task(_use(turns, "measuring", [], 0))
        await asyncio.sleep(0)
        waiter.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiter

    async with asyncio.timeout(30), turns.measuring():
        pass


async def test_a_remote_device_needs_no_turn() -> None:
    """If the device is on another machine, both sides run at once, unless that machine builds for us."""
    turns = Turns(shares_cores=False)

    async with turns.building(), asyncio.timeout(30), turns.measuring(ELSEWHERE):
        pass
    with pytest.raises(TimeoutError):
        async with (
            turns.building(),
            asyncio.timeout(0),
            Turns(shares_cores=True, cores=turns.cores, hosts={"another machine"}).measuring(ELSEWHERE),
        ):
            pass


@pytest.mark.parametrize(
    ("first", "second", "overlap"),
    [(PROCESSOR, PROCESSOR, False), (PROCESSOR, GPU, False), (GPU, GPU, True), (PROCESSOR, ELSEWHERE, True)],
)
async def test_a_processor_measures_alone(first: Inventory, second: Inventory, overlap: bool) -> None:
    """Two processors of one machine are the same cores; accelerators are not, and other machines are their own."""
    turns, entered = Turns(shares_cores=True), asyncio.Event()

    async def measure() -> None:
        async with turns.measuring(second):
            entered.set()

    async with turns.measuring(first):
        other = asyncio.create_task(measure())
        for _ in range(5):
            await asyncio.sleep(0)
        assert entered.is_set() is overlap
    await other


async def test_builds_for_a_board_elsewhere_wait_while_a_device_here_measures() -> None:
    """The jobs of a process share its cores, also for devices on other machines."""
    cores, log = Cores(), []
    here, there = Turns(shares_cores=True, cores=cores), Turns(shares_cores=False, cores=cores)
    async with asyncio.TaskGroup() as group, here.measuring(PROCESSOR):
        group.create_task(_use(there, "building", log, 0))
        await asyncio.sleep(0)
        assert log == []

    assert log == ["+building", "-building"]


async def test_waiting_for_a_lease_yields_the_cores() -> None:
    """One holds a lease and wants the cores, another has the cores and wants that lease: neither waits for ever."""
    turns, lease = Turns(shares_cores=True), asyncio.Lock()
    await lease.acquire()

    async def measure() -> None:
        async with turns.measuring():
            async with stepped_aside():
                await lease.acquire()
            assert not builds

    builds = [1]
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        group.create_task(measure())
        await asyncio.sleep(0)
        async with turns.building():
            builds.clear()
            lease.release()


async def test_an_error_while_yielding_releases_the_cores_once() -> None:
    """After the error the cores are released exactly once."""
    turns = Turns(shares_cores=True)
    with pytest.raises(ValueError, match="no lease"):
        async with turns.measuring(), stepped_aside():
            raise ValueError("no lease")

    async with asyncio.timeout(30), turns.building():
        pass
    async with asyncio.timeout(30), turns.measuring():
        pass
