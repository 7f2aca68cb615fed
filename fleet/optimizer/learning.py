"""Background work of an optimizer: training the shared model and backfilling features.

Once for a process, however many jobs it runs: they share its build workers.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fleet.building.pool import Pool
from fleet.building.turns import Turns
from fleet.library import Library
from fleet.optimizer.backfill import fill_in_background
from fleet.optimizer.trainer import Trainer


@asynccontextmanager
async def learning(library: Library, pool: Pool, turns: Turns) -> AsyncIterator[None]:
    """Learn from the library while the block runs."""
    tasks = [
        asyncio.create_task(Trainer(memory=library.memory, pool=pool, turns=turns).run(), name="train"),
        asyncio.create_task(fill_in_background(library, pool, turns), name="fill features in"),
    ]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
