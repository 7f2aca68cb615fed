"""An optimizer while its library is away, and after its return."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from pathlib import Path

import pytest

import fleet.aio
from cross.pool.build_pool import BuildPool
from fleet.base.plain import to_object
from fleet.building.machine_turns import Side
from fleet.building.turns import Cores
from fleet.domain.jobs import OptimizerStatus
from fleet.jobs.options import TuneOptions
from fleet.jobs.spec import JobOrder
from fleet.library import JobState, Library
from fleet.optimizer.serving.daemon import OptimizerDaemon
from fleet.optimizer.workshop import Workshop
from fleet.testing import SimulatedAgent, eventually, serve_tracker
from fleet.workloads.programs import matmul

OPTIONS = TuneOptions(model=Path("product.json"), selector="kind=simulated")
UNREADABLE = {"format": 99}
"""The order of a job that fails as soon as it is taken."""


def order(library: Library, folder: Path) -> dict[str, object]:
    """Return the order of a job that searches for a small matrix product."""
    (folder / "product.json").write_text(matmul(8).mod_json)
    files = {"product.json": library.model_files.add(folder / "product.json")}
    return to_object(JobOrder(options=OPTIONS, files=files))


@asynccontextmanager
async def serving(library: Library, folder: Path, *, jobs: int) -> AsyncIterator[asyncio.Task[None]]:
    """Run an optimizer; its jobs find a device, and then wait for the cores."""
    pool, cores = BuildPool(1), Cores()
    async with (
        serve_tracker() as tracker,
        SimulatedAgent(tracker.address, ["devices/sim-0"]),
        fleet.aio.connect(tracker.address) as client,
        cores.turn(Side.MEASURING_ALONE),
    ):
        shop = Workshop(library=library, pool=pool, builders=pool, artifact_dir=folder, cores=cores, client=client)
        task = asyncio.create_task(OptimizerDaemon(shop, tracker=tracker.address, most_jobs=jobs).run())
        yield task
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_an_optimizer_outlasts_its_library(
    library: Library, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """An optimizer retries its writes while the database restarts or its disk is full."""
    pool = BuildPool(1)
    shop = Workshop(library=library, pool=pool, builders=pool, artifact_dir=tmp_path, cores=Cores())
    with closing(sqlite3.connect(tmp_path / "library.sqlite", isolation_level=None)) as database:
        database.execute(
            "CREATE TRIGGER away BEFORE UPDATE ON optimizers BEGIN SELECT RAISE(ABORT, 'the disk is full'); END"
        )
        serving = asyncio.create_task(OptimizerDaemon(shop, tracker="here:1", most_jobs=1).run())
        await eventually(lambda: "the library is unavailable, retrying" in caplog.text or serving.done())
        database.execute("DROP TRIGGER away")
    job = library.queue.submit(title="m", spec=UNREADABLE)

    await eventually(lambda: library.queue.get(job.name).state is JobState.FAILED or serving.done())
    serving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await serving

    assert not library.queue.optimizers()
    assert library.queue.get(job.name).state is JobState.FAILED


async def test_an_idle_optimizer_is_shown_while_it_is_connected(library: Library, tmp_path: Path) -> None:
    """Everybody sees its process, its holder and its builders; it vanishes with its stream."""
    pool = BuildPool(3)
    async with serve_tracker() as tracker, fleet.aio.connect(tracker.address) as anybody:

        async def shown_optimizers() -> tuple[OptimizerStatus, ...]:
            return (await anybody.snapshot()).optimizers

        async def has_vanished() -> bool:
            return not await shown_optimizers()

        async with fleet.aio.connect(tracker.address) as client:
            shop = Workshop(
                library=library, pool=pool, builders=pool, artifact_dir=tmp_path, cores=Cores(), client=client
            )
            serving = asyncio.create_task(OptimizerDaemon(shop, tracker=tracker.address, most_jobs=1).run())
            (shown,) = await eventually(shown_optimizers)
            serving.cancel()
            with pytest.raises(asyncio.CancelledError):
                await serving
        await eventually(has_vanished)

    assert shown.name.endswith(f":{os.getpid()}")
    assert shown.holder
    assert shown.builder_count == 3


@pytest.mark.slow
async def test_a_running_job_with_an_expired_claim_is_not_started_twice(library: Library, tmp_path: Path) -> None:
    """After a machine's sleep, an optimizer with free capacity finds its own running job unclaimed, and must not start
    it again.
    """
    running = library.queue.submit(title="m", spec=order(library, tmp_path))
    async with serving(library, tmp_path, jobs=2) as optimizer:
        await eventually(lambda: library.queue.get(running.name).state is JobState.RUNNING or optimizer.done())
        with closing(sqlite3.connect(tmp_path / "library.sqlite", isolation_level=None)) as database:
            database.executescript(  # renewals come too late, claims do not
                """
                CREATE TRIGGER late AFTER UPDATE OF claimed_until ON job_orders WHEN NEW.optimizer = OLD.optimizer
                BEGIN UPDATE job_orders SET claimed_until = '2000-01-01 00:00:00.000000' WHERE job_id = NEW.job_id; END;
                UPDATE job_orders SET claimed_until = claimed_until;
                """
            )
        next_one = library.queue.submit(title="n", spec=UNREADABLE)  # taken after the older one
        await eventually(lambda: library.queue.get(next_one.name).state is JobState.FAILED or optimizer.done())

        assert [task.get_name() for task in asyncio.all_tasks()].count(running.name) == 1


@pytest.mark.slow
async def test_a_claim_that_expires_within_a_round_frees_its_slot(library: Library, tmp_path: Path) -> None:
    """The claim expires between two queries of one round; the job was once started again if there was room for
    another.
    """
    running = library.queue.submit(title="m", spec=order(library, tmp_path))
    next_one = library.queue.submit(title="n", spec=UNREADABLE)
    with closing(sqlite3.connect(tmp_path / "library.sqlite", isolation_level=None)) as database:
        database.executescript(  # the first claim is over when it is made, and its renewals come too late
            """
            CREATE TABLE claimed (once INTEGER);
            CREATE TRIGGER slept AFTER UPDATE OF claimed_until ON job_orders
            WHEN NEW.optimizer = OLD.optimizer OR NOT EXISTS (SELECT * FROM claimed)
            BEGIN
                INSERT INTO claimed VALUES (1);
                UPDATE job_orders SET claimed_until = '2000-01-01 00:00:00.000000' WHERE job_id = NEW.job_id;
            END;
            """
        )
        async with serving(library, tmp_path, jobs=2) as optimizer:
            await eventually(lambda: library.queue.get(next_one.name).state is JobState.FAILED or optimizer.done())

            assert [task.get_name() for task in asyncio.all_tasks()].count(running.name) == 1


@pytest.mark.slow
async def test_how_a_job_ended_is_written_once_the_library_takes_it(
    library: Library, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The end is written late, and the job is neither lost nor run again."""
    with closing(sqlite3.connect(tmp_path / "library.sqlite", isolation_level=None)) as database:
        database.execute(
            "CREATE TRIGGER full BEFORE UPDATE ON jobs WHEN NEW.state = 'FAILED' "
            "BEGIN SELECT RAISE(ABORT, 'the disk is full'); END"
        )
        async with serving(library, tmp_path, jobs=1) as optimizer:
            job = library.queue.submit(title="m", spec=UNREADABLE)
            await eventually(lambda: "end of job not written" in caplog.text or optimizer.done())
            assert library.queue.get(job.name).state is JobState.RUNNING
            database.execute("DROP TRIGGER full")

            await eventually(lambda: library.queue.get(job.name).state is JobState.FAILED or optimizer.done())

    assert "another version of tvm-fleet" in library.queue.get(job.name).message


@pytest.mark.slow
async def test_a_job_with_a_damaged_model_fails_at_once(library: Library, tmp_path: Path) -> None:
    """A retry cannot help, unlike with an absent library; it once took two minutes."""
    (tmp_path / "m.onnx").write_bytes(b"model")
    options, files = (
        replace(OPTIONS, model=Path("m.onnx")),
        {"m.onnx": library.model_files.add(tmp_path / "m.onnx")},
    )
    with closing(sqlite3.connect(tmp_path / "library.sqlite", isolation_level=None)) as database:
        database.execute("UPDATE model_parts SET content = x'00'")
    job = library.queue.submit(title="m", spec=to_object(JobOrder(options=options, files=files)))

    async with serving(library, tmp_path, jobs=1) as optimizer:
        await eventually(lambda: library.queue.get(job.name).state is JobState.FAILED or optimizer.done())

    assert "damaged; submit the model again" in library.queue.get(job.name).message


@pytest.mark.slow
async def test_an_optimizer_ends_although_its_library_refuses_records(library: Library, tmp_path: Path) -> None:
    """Its job counts as abandoned afterwards, and waits for another optimizer."""
    job = library.queue.submit(title="m", spec=order(library, tmp_path))
    with closing(sqlite3.connect(tmp_path / "library.sqlite", isolation_level=None)) as database:
        async with serving(library, tmp_path, jobs=1) as optimizer:
            await eventually(lambda: library.queue.get(job.name).state is JobState.RUNNING or optimizer.done())
            database.execute(
                "CREATE TRIGGER full BEFORE UPDATE ON jobs BEGIN SELECT RAISE(ABORT, 'the disk is full'); END"
            )

    assert library.queue.get(job.name).state is JobState.RUNNING


@pytest.mark.slow
async def test_an_order_that_names_a_file_of_the_optimizers_disk_fails(library: Library, tmp_path: Path) -> None:
    """Orders without files, or with a model that was not submitted, fail. No file is read, and nothing runs."""
    mine = tmp_path / "secret.json"
    mine.write_text(matmul(8).mod_json)
    came = {"m.json": library.model_files.add(mine)}
    orders = [
        JobOrder(options=replace(OPTIONS, model=mine)),
        JobOrder(options=replace(OPTIONS, model=mine), files=came),
        JobOrder(options=replace(OPTIONS, model=Path("../secret.json")), files=came),
        JobOrder(options=replace(OPTIONS, model=Path("hf:BertConfig"))),
        JobOrder(options=replace(OPTIONS, model=Path("m.pt2")), files={"m.pt2": came["m.json"]}),
        JobOrder(options=replace(OPTIONS, model=Path("m.keras")), files={"m.keras": came["m.json"]}),
    ]
    names = [library.queue.submit(title="m", spec=to_object(one)).name for one in orders]

    async with serving(library, tmp_path, jobs=1) as optimizer:
        await eventually(
            lambda: {library.queue.get(name).state for name in names} == {JobState.FAILED} or optimizer.done()
        )

    said = [library.queue.get(name).message for name in names]
    assert [text for text in said[:3] if "no file of this machine is taken" not in text] == []
    assert [text for text in said[3:] if "a format that is code" not in text] == []
