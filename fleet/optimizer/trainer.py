"""Keeps the shared cost model up to date: trains it on enough new records, and follows snapshots of other processes.

Every process that runs jobs trains, and passes snapshots to each of its jobs. The trainer is elected for one training:
see `fleet.library.election`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace

from fleet.building.pool import Pool, run_within
from fleet.building.turns import Turns
from fleet.client.snapshot_calls import watch_snapshots
from fleet.cost_model.feature_codec import FEATURE_VERSION, target_kinds
from fleet.domain.model_snapshots import ModelSnapshot
from fleet.domain.observation import Observation
from fleet.errors import BuildError, FleetError
from fleet.library import Memory, StoredSnapshot, Term
from fleet.optimizer.tasks.train import Trained, train

logger = logging.getLogger(__name__)

_LOOK_SEC = 10.0
"""Interval of checks for enough new samples."""

_FEWEST_NEW = 8
"""Enough to condition the packaged model on a device that it does not know."""

_MOST_FEWEST_NEW = 64
_SHARE_NEW = 0.1
"""Share by which the samples of a large library grow before the next training: a library of any size is trained a few
dozen times. A small one grows by half, up to 64 samples at a time."""

_MOST_SAMPLES = 50_000
_TRAINING_TIMEOUT_SEC = 300.0
_LISTEN_SEC = 0.25
"""Wait of a job's end for its listener."""

_AGAIN_SEC = 1.0
"""Interval of attempts to reach a library that is away."""

Learner = Callable[[list[Observation], bytes | None], Trained | None]
"""Trains on samples, and compares with the snapshot in use or packaged. A module's function: it runs in a worker."""


@dataclass(kw_only=True)
class Trainer:
    """Trains on a library's records."""

    memory: Memory
    pool: Pool
    turns: Turns
    learner: Learner = train
    lease_sec: float = 15.0
    """SQLite: another process may train so long after this one was killed."""

    holder: str = field(default_factory=lambda: f"{os.getpid()}-{uuid.uuid4().hex}")
    _looked_at: int = 0
    """Number of samples at the last training, including unusable ones, whatever its result."""

    async def run(self) -> None:
        """Train whenever there is enough new, until cancelled. A training that fails costs a warning."""
        while True:
            await asyncio.sleep(_LOOK_SEC)  # no training during the first seconds of a job
            try:
                await self.train_once()
            except FleetError as error:
                logger.warning("cost model not trained", extra={"error": str(error)})

    async def train_once(self) -> StoredSnapshot | None:
        """Train if there is enough new, and no other process does.

        Raises:
            LibraryError, DiskFull: the library cannot be read, or no snapshot be stored.
            BuildError: the worker crashed, or took too long.
        """
        if not await asyncio.to_thread(self._is_due):
            return None
        term = await asyncio.to_thread(lambda: self.memory.stand(self.holder, lease_sec=self.lease_sec))
        if term is None:
            return None
        try:
            return await self._train(term) if await asyncio.to_thread(self._is_due) else None
        finally:
            with suppress(FleetError):  # lost, or gone with the library: it ends by itself
                term.close()

    async def _train(self, term: Term) -> StoredSnapshot | None:
        count = await asyncio.to_thread(self.memory.count_samples, FEATURE_VERSION)
        newest = await asyncio.to_thread(self.memory.newest_sample, FEATURE_VERSION)
        samples = await asyncio.to_thread(lambda: self.memory.samples(FEATURE_VERSION, limit=_MOST_SAMPLES))
        current = await asyncio.to_thread(self.memory.newest_snapshot, FEATURE_VERSION)
        renewing = asyncio.create_task(self._renew(term), name="renew training term")
        try:
            async with self.turns.building():
                content = None if current is None else current.content
                trained = await run_within(self.pool, _TRAINING_TIMEOUT_SEC, self.learner, samples, content)
        except BuildError:
            self._looked_at = count  # it would crash or time out again and again
            raise
        finally:
            renewing.cancel()
        stored = None
        if trained is not None:
            # Excluded records count as seen, too, such as times of emulated boards: they cause no further training.
            snapshot = replace(trained.snapshot, last_record_id=newest)
            stored = await asyncio.to_thread(lambda: term.publish(snapshot, publishes=trained.is_not_worse))
        self._looked_at = count
        return stored

    async def _renew(self, term: Term) -> None:
        with suppress(FleetError):  # `publish` reports it
            while True:
                await asyncio.sleep(self.lease_sec / 3)
                if not await asyncio.to_thread(term.renew):
                    return

    def _is_due(self) -> bool:
        count = self.memory.count_samples(FEATURE_VERSION)
        if count < self._looked_at + _needed_new(self._looked_at):
            return False
        last = self.memory.newest_snapshot(FEATURE_VERSION, published_only=False)
        if last is None:
            return True
        new = self.memory.count_samples(FEATURE_VERSION, after=last.last_record_id)
        return new >= _needed_new(last.record_count)


def _needed_new(known: int) -> float:
    """Return the number of new samples for which another training is worthwhile."""
    return max(_FEWEST_NEW, min(_MOST_FEWEST_NEW, known / 2), _SHARE_NEW * known)


async def follow(memory: Memory, on_snapshot: Callable[[ModelSnapshot], None]) -> None:
    """Call with the snapshot in use, and with each that is published later, within a second, until cancelled.
    Reconnects to the library; the one in use may be reported again then.
    """
    loop, stopping = asyncio.get_running_loop(), threading.Event()

    def tell(snapshot: StoredSnapshot) -> None:
        if not stopping.is_set():
            loop.call_soon_threadsafe(on_snapshot, _sent(snapshot))

    # A separate thread: listeners never end, and would fill the loop's own executor.
    with ThreadPoolExecutor(1, thread_name_prefix="follow snapshots") as thread:
        while True:
            listening = loop.run_in_executor(thread, _listen, memory, tell, stopping)
            try:
                await asyncio.shield(listening)
            except FleetError as error:
                logger.warning("listening for snapshots again", extra={"error": str(error)})
            except asyncio.CancelledError:
                stopping.set()
                await asyncio.wait([listening])
                raise
            await asyncio.sleep(_AGAIN_SEC)


async def follow_service(address: str, on_snapshot: Callable[[ModelSnapshot], None]) -> None:
    """Follow the snapshots that another optimizer serves. An unusable one only logs a warning."""
    try:
        async with aclosing(watch_snapshots(address, FEATURE_VERSION)) as snapshots:
            async for snapshot in snapshots:
                on_snapshot(snapshot)
    except FleetError as error:
        logger.warning("no snapshots from there", extra={"address": address, "error": str(error)})


def _sent(snapshot: StoredSnapshot) -> ModelSnapshot:
    return ModelSnapshot(
        digest=snapshot.digest,
        content=snapshot.content,
        feature_version=snapshot.feature_version,
        target_kinds=target_kinds(snapshot),
        record_count=snapshot.record_count,
        made_at_sec=snapshot.made_at.timestamp(),
    )


def _listen(memory: Memory, tell: Callable[[StoredSnapshot], None], stopping: threading.Event) -> None:
    known = ""
    with memory.watch() as watch:
        has_news = True
        while not stopping.is_set():
            found = memory.newest_snapshot(FEATURE_VERSION) if has_news else None
            if found is not None and found.digest != known:
                known = found.digest
                tell(found)
            has_news = watch.wait(_LISTEN_SEC)
