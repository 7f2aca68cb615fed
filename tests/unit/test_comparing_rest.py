"""Rests between blocks of different programs, which end once the cores are idle."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterable

import pytest

from fleet.optimizer.comparing.rest import LOOK_SEC, MOST_SEC, busy_ticks, rest


async def rested_sec(busy: Iterable[int | None]) -> float:
    """Return the length of a rest, given the busy time at each look."""
    slept: list[float] = []
    looks = iter(busy)

    async def sleep(sec: float) -> None:
        slept.append(sec)

    await rest(lambda: next(looks), sleep)
    return sum(slept)


async def test_rest_ends_at_the_first_look_at_idle_cores() -> None:
    """It grows with the time for which threads spin."""
    assert await rested_sec([100, 100]) == pytest.approx(LOOK_SEC)
    assert await rested_sec([100, 102, 103, 103]) == pytest.approx(3 * LOOK_SEC)


@pytest.mark.parametrize("busy", [itertools.count(), itertools.repeat(None)], ids=["busy", "unknown"])
async def test_rest_is_bounded_on_cores_that_never_seem_idle(busy: Iterable[int | None]) -> None:
    """Other programs may use them, or the system does not report their use."""
    assert MOST_SEC <= await rested_sec(busy) < MOST_SEC + LOOK_SEC


def test_busy_time_grows_while_a_program_runs() -> None:
    """Read from the system itself: of all cores, and of the cores of this process."""
    cores = os.sched_getaffinity(0)
    before, until = (busy_ticks(), busy_ticks(cores)), time.process_time() + 0.05
    while time.process_time() < until:
        pass
    after = busy_ticks(), busy_ticks(cores)

    for earlier, later in zip(before, after, strict=True):
        assert earlier is not None
        assert later is not None
        assert later > earlier


def test_busy_time_of_a_missing_core_is_unknown() -> None:
    """It must not look idle."""
    assert busy_ticks([10**6]) is None
