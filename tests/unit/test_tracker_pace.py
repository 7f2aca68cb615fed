"""Long work of many tasks, a portion in each turn of the loop."""

from __future__ import annotations

import asyncio
from itertools import pairwise

from fleet.tracker.pace import Pace, portions


async def test_one_portion_in_each_turn_of_the_loop() -> None:
    """Many tasks with long work take turns in the order in which they came."""
    pace, done = Pace(), list[str]()
    seen_by_others: list[int] = []

    async def work(name: str) -> None:
        for _ in range(3):
            await pace.turn()
            done.append(name)

    def look() -> None:
        seen_by_others.append(len(done))
        if len(done) < 30:
            asyncio.get_running_loop().call_soon(look)

    look()
    await asyncio.gather(*(work(f"{number}") for number in range(10)))

    assert max(after - before for before, after in pairwise(seen_by_others)) == 1
    assert [str(number) for number in range(10)] * 3 == done
    assert 30 == pace.portions


async def test_a_closed_stream_gives_up_its_turn() -> None:
    """A stream that ends while it waits leaves its turn to the next."""
    pace = Pace()
    tasks = [asyncio.create_task(pace.turn()) for _ in range(3)]
    await asyncio.sleep(0)
    for task in tasks[:2]:
        task.cancel()

    await tasks[2]

    assert 1 == pace.portions
    await pace.turn()


def test_portions_are_all_in_order() -> None:
    """The last portion is the rest."""
    assert [[0, 1], [2, 3], [4]] == [list(portion) for portion in portions(range(5), 2)]
