"""Results that come within a moment are stored together, and nothing goes on before all are."""

from __future__ import annotations

import asyncio
import math

import pytest

from fleet.domain.measuring import Measurement
from fleet.errors import DeviceUnreachable, DiskFull
from fleet.optimizer.core.candidates import Candidate
from fleet.optimizer.core.events import Store
from fleet.optimizer.group_commit import GroupCommit
from fleet.testing import eventually

_NEVER = math.inf


class Log:
    """A library that takes transactions one at a time; each may be held up, or fail."""

    def __init__(self) -> None:
        self.transactions: list[list[str]] = []
        self.is_open = asyncio.Event()
        self.is_open.set()
        self.is_asked = False
        self.is_full = False

    async def store(self, results: list[Store]) -> None:
        self.is_asked = True
        await self.is_open.wait()
        if self.is_full:
            raise DiskFull("no space left")
        self.transactions.append([result.candidate.digest for result in results])


def result(digest: str) -> Store:
    return Store(
        candidate=Candidate(workload="w", digest=digest, trace_json=digest),
        device_name="",
        measurement=Measurement(candidate_id=digest, run_secs=(1.0,)),
    )


async def test_a_batch_is_stored_in_one_transaction() -> None:
    """Results of one moment share a transaction; `finish` does not wait for the moment to pass."""
    log = Log()

    async with asyncio.timeout(60), GroupCommit(log.store, moment_sec=_NEVER) as results:
        for digest in "abc":
            results.add(result(digest))
        await results.finish()
        assert log.transactions == [["a", "b", "c"]]
        results.add(result("d"))

    assert log.transactions == [["a", "b", "c"], ["d"]]


async def test_a_result_is_stored_while_the_next_takes_long() -> None:
    """A result waits a moment for others, and no longer, without a call of `finish`."""
    log = Log()

    async with asyncio.timeout(60), GroupCommit(log.store, moment_sec=0.0) as results:
        results.add(result("a"))
        await eventually(lambda: log.transactions == [["a"]])


async def test_results_arriving_during_a_commit_are_stored_next() -> None:
    """All results are stored, in order."""
    log = Log()
    log.is_open.clear()

    async with asyncio.timeout(60), GroupCommit(log.store, moment_sec=0.0) as results:
        results.add(result("a"))
        await eventually(lambda: log.is_asked)
        results.add(result("b"))
        results.add(result("c"))
        log.is_open.set()

    assert log.transactions == [["a"], ["b", "c"]]


async def test_a_failed_commit_raises_its_error() -> None:
    """The error comes before any step that relies on the result."""
    log = Log()
    log.is_full = True

    results = GroupCommit(log.store, moment_sec=_NEVER)
    results.add(result("a"))

    with pytest.raises(DiskFull):
        await results.finish()
    with pytest.raises(DiskFull):
        results.add(result("b"))


async def test_results_before_an_error_are_stored() -> None:
    """Results are stored even if the measuring of the next candidate was cancelled."""
    log = Log()

    async def lose_the_device() -> None:
        async with GroupCommit(log.store, moment_sec=_NEVER) as results:
            results.add(result("a"))
            raise DeviceUnreachable("gone")

    with pytest.raises(DeviceUnreachable):
        await asyncio.wait_for(lose_the_device(), 60)

    assert log.transactions == [["a"]]


async def test_a_cancelled_batch_completes_its_commit() -> None:
    """Results are stored even if a user stops the job in that moment."""
    log = Log()
    log.is_open.clear()

    async def measure_a_batch() -> None:
        async with GroupCommit(log.store, moment_sec=_NEVER) as results:
            results.add(result("a"))
            await results.finish()

    batch = asyncio.create_task(measure_a_batch())
    await eventually(lambda: log.is_asked)
    batch.cancel()
    await asyncio.sleep(0)
    log.is_open.set()

    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(batch, 60)
    assert log.transactions == [["a"]]
