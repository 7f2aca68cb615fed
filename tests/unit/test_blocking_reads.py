"""Reads that may hang do not block the event loop."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from device_agents.machine.blocking_reads import BlockingReads, Source
from fleet.errors import DeviceClosed, DeviceUnreachable
from fleet.testing import eventually

PATIENT = Source(name="the gauge", remedy="tap it", limit_sec=60.0)
"""A source that has to answer, also on a machine that stalls for a moment."""

SOURCE = replace(PATIENT, limit_sec=0.1)
"""A source that hangs."""


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """An event that blocks a read until it is set."""
    gate = threading.Event()
    yield gate
    gate.set()


async def test_reads_are_done_in_turn_in_one_thread() -> None:
    """Each read gets its own answer or error."""
    reads = BlockingReads(PATIENT)

    def fail() -> None:
        raise ValueError("no number")

    idents = await asyncio.gather(*(reads.ask(threading.get_ident) for _ in range(3)))

    with pytest.raises(ValueError, match="no number"):
        await reads.ask(fail)
    assert len(set(idents)) == 1
    assert threading.get_ident() not in idents
    await reads.close()


async def test_a_read_that_hangs_is_waited_for_once_and_never_asked_again(
    gate: threading.Event, caplog: pytest.LogCaptureFixture
) -> None:
    """Later ones are refused at once while it hangs, each with the same words; one warning is logged."""
    reads, asked = BlockingReads(SOURCE), []
    with caplog.at_level(logging.WARNING, logger="device_agents.machine.blocking_reads"):
        with pytest.raises(DeviceUnreachable, match=r"the gauge has not answered since .* UTC; tap it") as first:
            await reads.ask(gate.wait)
        for _ in range(20):
            with pytest.raises(DeviceUnreachable, match=str(first.value)):
                await reads.ask(lambda: asked.append("again"))

    assert asked == []
    assert len(caplog.records) == 1
    gate.set()

    async def answers() -> bool:
        try:
            return await reads.ask(lambda: True)
        except DeviceUnreachable:
            return False

    await eventually(answers)
    await reads.close()


async def test_an_answer_that_a_busy_loop_hears_of_late_is_one() -> None:
    """A driver that answered in time does not count as hung if this process was too busy to notice."""
    reads, is_read = BlockingReads(SOURCE), threading.Event()

    def read() -> str:
        is_read.set()
        return "answer"

    asking = asyncio.create_task(reads.ask(read))
    await asyncio.sleep(0)
    is_read.wait(30)
    time.sleep(3 * SOURCE.limit_sec)  # noqa: ASYNC251 - what makes the loop busy

    assert "answer" == await asking
    await reads.close()


async def test_the_last_read_is_done_before_the_end(gate: threading.Event) -> None:
    """After a hang, the last read is done once the hung read returns; closing does not wait for it."""
    done: list[str] = []
    healthy, hung = BlockingReads(PATIENT), BlockingReads(SOURCE)
    await healthy.ask(lambda: None)
    with pytest.raises(DeviceUnreachable):
        await hung.ask(gate.wait)

    await healthy.close(lambda: done.append("healthy"))
    async with asyncio.timeout(60):
        await hung.close(lambda: done.append("hung"))
    await hung.close(lambda: done.append("twice"))

    assert done == ["healthy"]
    gate.set()
    await eventually(lambda: done == ["healthy", "hung"])
    with pytest.raises(DeviceClosed):
        await healthy.ask(lambda: None)


async def test_closing_an_unused_reader_starts_no_thread() -> None:
    """A device that was not opened has nothing to close."""
    before = threading.active_count()

    await BlockingReads(SOURCE).close(lambda: pytest.fail("nothing was opened"))

    assert threading.active_count() <= before
