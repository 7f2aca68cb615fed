"""What an optimizer does when its library is away."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from cross.pool.build_pool import BuildPool
from fleet.library import JobState, Library
from fleet.optimizer.service import Workshop
from fleet.optimizer.serving import Optimizer
from fleet.optimizer.turns import Cores
from fleet.testing import eventually


async def test_an_optimizer_outlasts_its_library(
    library: Library, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A database that restarts, or whose disk is full for a while, refuses what is written, and takes it later."""
    pool = BuildPool(1)
    shop = Workshop(library=library, pool=pool, builders=pool, artifact_dir=tmp_path, cores=Cores())
    with closing(sqlite3.connect(tmp_path / "library.sqlite", isolation_level=None)) as database:
        database.execute(
            "CREATE TRIGGER away BEFORE UPDATE ON optimizers BEGIN SELECT RAISE(ABORT, 'the disk is full'); END"
        )
        serving = asyncio.create_task(Optimizer(shop, tracker="here:1", most_jobs=1).run())
        await eventually(lambda: "the library is asked again" in caplog.text or serving.done())
        database.execute("DROP TRIGGER away")
    job = library.queue.submit(title="m", spec={"format": 99})

    await eventually(lambda: library.queue.get(job.name).state is JobState.FAILED or serving.done())
    serving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await serving

    assert not library.queue.optimizers()
    assert library.queue.get(job.name).state is JobState.FAILED
