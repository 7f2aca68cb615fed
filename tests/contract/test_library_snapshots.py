"""Training of the shared cost model, and delivery of its snapshots to readers, on SQLite and on PostgreSQL."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import ParamSpec, TypeVar

import numpy as np
import pytest
import sqlalchemy as sa

from fleet.base.digests import digest_of
from fleet.building.turns import Turns
from fleet.cost_model.feature_codec import FEATURE_VERSION, NO_PROGRAM, TARGET_KINDS, pack_program
from fleet.cost_model.snapshot import Snapshot
from fleet.domain.observation import Observation
from fleet.domain.scope import RecordScope
from fleet.errors import BuildError, LibraryError
from fleet.library import Library, NewSnapshot, Record, StoredSnapshot, StoredWorkload, Term
from fleet.optimizer.tasks.train import Trained
from fleet.optimizer.trainer import Trainer, follow
from fleet.testing.waiting import eventually, eventually_sync
from tests.programs import here

SCOPE = RecordScope(target_json='{"kind":"llvm"}', device_model="m", tvm_version="0.27")
T = TypeVar("T")
P = ParamSpec("P")


class Threads(ThreadPoolExecutor):
    """A pool for tasks that neither crash nor hang."""

    def submit_within(self, timeout_sec: float, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        return self.submit(fn, *args, **kwargs)

    def submit_near(
        self, key: str, timeout_sec: float, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs
    ) -> Future[T]:
        return self.submit(fn, *args, **kwargs)


@pytest.fixture
def library(url: str) -> Iterator[Library]:
    with Library.open(url) as library:
        yield library


@pytest.fixture
def pool() -> Iterator[Threads]:
    with Threads(1) as pool:
        yield pool


def snapshot(content: bytes, **facts: object) -> NewSnapshot:
    given: dict[str, object] = {
        "content": content,
        "feature_version": FEATURE_VERSION,
        "record_count": 10,
        "workloads": {"1": 10},
        "last_record_id": 7,
        "metrics": {"pairs": 0.6},
    }
    return NewSnapshot(**(given | facts))  # type: ignore[arg-type]


def elected(library: Library, holder: str, lease_sec: float = 60.0) -> Term:
    term = library.memory.stand(holder, lease_sec=lease_sec)
    assert term is not None
    return term


def publish(library: Library, content: bytes, **facts: object) -> StoredSnapshot:
    term = elected(library, "test")
    try:
        return term.publish(snapshot(content, **facts))
    finally:
        term.close()


def fill(library: Library, *, workloads: int, first: int = 0, count: int = 16, scope: RecordScope = SCOPE) -> None:
    """Store `count` candidates of each workload; their times follow from their features."""
    rng = np.random.default_rng(first)
    for shash in map(str, range(workloads)):
        library.add_workload(StoredWorkload(shash=shash, name="w", mod_json="{}", flop=1e6))
        new = []
        for number in range(first, first + count):
            rows = rng.random((2, 164)).astype(np.float32)
            new.append(
                Record(
                    workload=shash,
                    scope=scope,
                    trace_json=f"[[{number}],[]]",
                    run_secs=(1e-3 * (1 + float(rows[:, 0].sum())),),
                    program=pack_program(number, rows),
                )
            )
        library.add_records(new)


def hanging_trainer(url: str) -> subprocess.Popen[str]:
    """Start a process that is elected, reports that it trains, and never ends."""
    code = f"""
import asyncio, sys, threading
from tests.contract.test_library_snapshots import Threads
from fleet.library import Library
from fleet.optimizer.trainer import Trainer
from fleet.building.turns import Turns

def never(samples, current):
    print("training", flush=True)
    threading.Event().wait()

library = Library.open({url!r})
trainer = Trainer(memory=library.memory, pool=Threads(1), turns=Turns(shares_cores=False), learner=never, lease_sec=2)
asyncio.run(trainer.train_once())
"""
    return subprocess.Popen([sys.executable, "-c", code], env=here(), stdout=subprocess.PIPE, text=True)


def constant(samples: list[Observation], current: bytes | None) -> Trained | None:
    """A learner that is done at once."""
    last = max(sample.record_id for sample in samples)
    made = snapshot(f"{len(samples)} samples".encode(), record_count=len(samples), last_record_id=last)
    return Trained(snapshot=made, is_not_worse=current is None)


def test_one_process_trains_at_a_time(library: Library) -> None:
    """The next process is elected when the first is done."""
    first = elected(library, "a")

    assert library.memory.stand("b", lease_sec=60) is None
    assert first.renew()
    first.close()
    elected(library, "b").close()


def test_a_snapshot_comes_back_as_it_was_trained(library: Library) -> None:
    """Content, training set and metrics survive; the name is the digest of the content."""
    stored = publish(library, b"trees")

    assert stored == library.memory.newest_snapshot(FEATURE_VERSION)
    assert (stored.content, stored.workloads, stored.last_record_id, stored.metrics) == (
        b"trees",
        {"1": 10},
        7,
        {"pairs": 0.6},
    )
    assert stored.digest == digest_of(b"trees")


def test_a_worse_snapshot_is_kept_but_not_used(library: Library) -> None:
    """Readers go on with the one before."""
    publish(library, b"good")
    term = elected(library, "a")
    worse = term.publish(snapshot(b"worse"), publishes=False)
    term.close()

    used = library.memory.newest_snapshot(FEATURE_VERSION)
    assert used is not None
    assert used.content == b"good"
    assert worse.published_at is None
    assert [entry.content for entry in library.memory.snapshots()] == [b"good", b"worse"]


def test_an_unchanged_model_makes_no_second_snapshot(library: Library) -> None:
    """It covers the newer records, so they are not trained on again."""
    first = publish(library, b"same")
    again = publish(library, b"same", last_record_id=9)

    assert again == replace(first, last_record_id=9)
    assert library.memory.snapshots() == [again]


def test_a_snapshot_of_other_features_is_not_used(library: Library) -> None:
    """Its columns would be taken for others."""
    publish(library, b"old", feature_version="per-store-0")

    assert library.memory.newest_snapshot(FEATURE_VERSION) is None


def test_a_trainer_with_an_expired_lease_publishes_no_snapshot(tmp_path_factory: pytest.TempPathFactory) -> None:
    """A trainer that slept through its lease finds another one elected, and stores nothing."""
    with Library.open(tmp_path_factory.mktemp("library") / "library.sqlite") as library:
        late = elected(library, "late", lease_sec=0.001)
        other = eventually_sync(lambda: library.memory.stand("other", lease_sec=60))

        assert other is not None
        assert not late.renew()
        with pytest.raises(LibraryError, match="gone to another process"):
            late.publish(snapshot(b"late"))
        late.close()
        assert other.renew()
        assert library.memory.snapshots() == []


def test_a_reader_hears_of_a_snapshot(library: Library, url: str) -> None:
    """It waits on a connection of its own, and finds the snapshot that another one published."""
    with Library.open(url) as reader, reader.memory.watch() as watch, ThreadPoolExecutor() as threads:
        assert reader.memory.newest_snapshot(FEATURE_VERSION) is None
        hearing = threads.submit(watch.wait, 60.0)
        published = publish(library, b"news")

        assert hearing.result()
        eventually_sync(lambda: reader.memory.newest_snapshot(FEATURE_VERSION) == published)


async def test_a_job_follows_the_snapshots(library: Library, url: str) -> None:
    """First the one in use, then each that is published; after that it listens no more."""
    publish(library, b"first")
    heard: list[bytes] = []
    with Library.open(url) as reader:
        following = asyncio.create_task(follow(reader.memory, lambda found: heard.append(found.content)))
        await eventually(lambda: heard == [b"first"])
        await asyncio.to_thread(publish, library, b"second")
        await eventually(lambda: heard == [b"first", b"second"])
        following.cancel()
        await asyncio.wait([following])

    assert following.cancelled()


async def test_jobs_that_follow_leave_the_threads_to_others(library: Library, url: str) -> None:
    """However many jobs run, the optimizer's own calls of the library find a thread."""
    heard: list[int] = []
    publish(library, b"first")
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(2))
    with Library.open(url) as reader:
        jobs = [
            asyncio.create_task(follow(reader.memory, lambda _, job=job: heard.append(job)))  # type: ignore[misc]
            for job in range(2)
        ]
        await eventually(lambda: sorted(heard) == [0, 1])
        asking = asyncio.create_task(asyncio.to_thread(library.memory.snapshots))
        try:
            await eventually(asking.done)
        finally:
            for job in jobs:
                job.cancel()
            await asyncio.wait(jobs)


@pytest.mark.slow
async def test_a_connection_that_was_cut_keeps_no_reader_from_news(url_of_postgres: str) -> None:
    """The reader reconnects: an optimizer lives for months, and the database's server restarts meanwhile."""
    heard: list[bytes] = []
    with Library.open(url_of_postgres) as first, Library.open(url_of_postgres) as reader:
        publish(first, b"first")
        following = asyncio.create_task(follow(reader.memory, lambda found: heard.append(found.content)))
        await eventually(lambda: heard == [b"first"])
        await asyncio.to_thread(cut_all_connections, url_of_postgres)
        with Library.open(url_of_postgres) as other:
            await asyncio.to_thread(publish, other, b"second")
        await eventually(lambda: heard[-1] == b"second")
        following.cancel()
        await asyncio.wait([following])

    assert following.cancelled()


@pytest.mark.slow
def test_a_disconnected_trainer_publishes_no_snapshot(url_of_postgres: str) -> None:
    """Its lock is lost with the connection, and another trainer may hold it; a new connection does not belong to the
    term.
    """
    with Library.open(url_of_postgres) as library:
        term = elected(library, "a")
        cut_all_connections(url_of_postgres)

        assert not term.renew()
        assert not term.renew()
        with pytest.raises(LibraryError, match="lost with the connection"):
            term.publish(snapshot(b"late"))
        term.close()
        elected(library, "b").close()
        assert library.memory.snapshots() == []


def cut_all_connections(url: str) -> None:
    """End the sessions of a PostgreSQL server, but for our own."""
    engine = sa.create_engine(sa.make_url(url).set(drivername="postgresql+psycopg"), poolclass=sa.NullPool)
    with engine.connect() as connection:
        connection.execute(
            sa.text(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
            )
        )


async def test_training_waits_until_there_is_enough_new(library: Library, pool: Threads) -> None:
    """The first training takes 8 samples, the next half as many as are known; a model worse than the one in use is not
    published.
    """
    trainer = Trainer(memory=library.memory, pool=pool, turns=Turns(shares_cores=True), learner=constant)
    fill(library, workloads=1, count=7)
    assert await trainer.train_once() is None

    fill(library, workloads=1, first=7, count=57)
    first = await trainer.train_once()
    assert first is not None
    assert (first.content, first.published_at is None) == (b"64 samples", False)
    fill(library, workloads=1, first=64, count=31)
    assert await trainer.train_once() is None

    fill(library, workloads=1, first=95, count=1)
    second = await trainer.train_once()
    assert second is not None
    assert second.published_at is None
    assert library.memory.newest_snapshot(FEATURE_VERSION) == first


async def test_unusable_records_trigger_only_one_training_attempt(library: Library, pool: Threads) -> None:
    """Many records of emulated boards are no reason to train the same model again and again, in any process."""

    def trainer() -> Trainer:
        return Trainer(memory=library.memory, pool=pool, turns=Turns(shares_cores=True), learner=constant)

    ours = trainer()
    fill(library, workloads=4)
    trained = await ours.train_once()
    fill(library, workloads=4, first=16, scope=replace(SCOPE, device_model="emulated pi"))
    again = await ours.train_once()

    assert trained is not None
    assert again is not None
    assert again.digest == trained.digest
    assert await ours.train_once() is None
    assert await trainer().train_once() is None


async def test_too_little_to_learn_from_is_looked_at_once(library: Library, pool: Threads) -> None:
    """Many records, such as those of reverted jobs, may teach nothing: no worker is busy with them until there are
    more.
    """
    looks: list[int] = []

    def learner(samples: list[Observation], current: bytes | None) -> Trained | None:
        looks.append(len(samples))
        return None

    trainer = Trainer(memory=library.memory, pool=pool, turns=Turns(shares_cores=True), learner=learner)
    publish(library, b"before", last_record_id=0)
    fill(library, workloads=4)
    await trainer.train_once()
    await trainer.train_once()

    assert looks == [64]


async def test_a_training_that_kills_its_worker_is_not_tried_at_once_again(library: Library, pool: Threads) -> None:
    """A training too large for the machine would otherwise repeat every ten seconds; it is retried with more
    samples.
    """
    looks: list[int] = []

    def learner(samples: list[Observation], current: bytes | None) -> Trained | None:
        looks.append(len(samples))
        raise BuildError("crashed: SIGKILL")

    trainer = Trainer(memory=library.memory, pool=pool, turns=Turns(shares_cores=True), learner=learner)
    fill(library, workloads=4)
    with pytest.raises(BuildError):
        await trainer.train_once()
    assert await trainer.train_once() is None
    fill(library, workloads=4, first=16)
    with pytest.raises(BuildError):
        await trainer.train_once()

    assert looks == [64, 128]


@pytest.mark.slow
async def test_a_published_snapshot_predicts_after_reading_it_back(library: Library, pool: Threads) -> None:
    """The snapshot of a real training is published, read from the library and used for predictions."""
    fill(library, workloads=20)
    trained = await Trainer(memory=library.memory, pool=pool, turns=Turns(shares_cores=False)).train_once()

    found = library.memory.newest_snapshot(FEATURE_VERSION)
    assert trained is not None
    assert found == trained
    assert Snapshot.of(found.content).digest == found.digest
    assert 0 < found.record_count < 320  # some workloads are held out
    assert sum(found.workloads.values()) == found.record_count


@pytest.mark.slow
async def test_a_model_that_cannot_be_judged_is_not_used(library: Library, pool: Threads) -> None:
    """There are too few workloads to compare on; the snapshot is stored, and the one in use stays."""
    fill(library, workloads=4, scope=replace(SCOPE, target_json='{"kind":"cuda"}'))
    trained = await Trainer(memory=library.memory, pool=pool, turns=Turns(shares_cores=False)).train_once()

    assert trained is not None
    assert library.memory.snapshots() == [trained]
    assert library.memory.newest_snapshot(FEATURE_VERSION) is None


async def test_services_follow_the_model_conditioned_on_eight_records(library: Library, pool: Threads) -> None:
    """A small lab's first batch is enough: another service gets the snapshot, and predicts with the device's level."""
    told: list[bytes] = []
    fill(library, workloads=1, count=8)
    following = asyncio.create_task(follow(library.memory, lambda found: told.append(found.content)))
    try:
        trained = await Trainer(memory=library.memory, pool=pool, turns=Turns(shares_cores=False)).train_once()
        await eventually(lambda: len(told) == 1)
    finally:
        following.cancel()
        await asyncio.wait([following])

    assert trained is not None
    assert told == [trained.content]
    assert {device for device, _ in Snapshot.of(told[0]).model.corrections} == {SCOPE.device_model}


@pytest.mark.slow
async def test_a_record_without_a_target_keeps_no_model_from_being_trained(library: Library, pool: Threads) -> None:
    """Imported records without a target are not learned from, and the model is for the others' targets."""
    fill(library, workloads=4)
    nowhere = replace(SCOPE, target_json="")
    imported = Record(workload="1", scope=nowhere, trace_json="[[99],[]]", run_secs=(1e-3,), program=NO_PROGRAM)
    library.add_record(imported)

    trained = await Trainer(memory=library.memory, pool=pool, turns=Turns(shares_cores=False)).train_once()

    assert trained is not None
    assert trained.metrics[TARGET_KINDS] == ["llvm"]


@pytest.mark.slow
async def test_a_trainer_killed_in_the_middle_is_succeeded(library: Library, pool: Threads, url: str) -> None:
    """No part of its snapshot is stored, and another process trains soon after."""
    fill(library, workloads=4)
    trainer = Trainer(memory=library.memory, pool=pool, turns=Turns(shares_cores=False), learner=constant, lease_sec=2)
    with hanging_trainer(url) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "training\n"
        assert await trainer.train_once() is None
        assert library.memory.snapshots() == []
        other.kill()

    trained = await eventually(trainer.train_once, timeout_sec=60.0)

    assert library.memory.snapshots() == [trained]
