"""The agent's end of a worker's socket, whatever the other end writes; and waiting that a session's end cuts off."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from device_agents.drivers.simulated import SimulatedDriver
from device_agents.machine.frames import HEADER, BrokenFrame, format_frame
from device_agents.serving.admission import Claims
from device_agents.serving.device import ServedDevice
from device_agents.serving.session import Session
from device_agents.serving.store import ArtifactStore
from device_agents.workers.limits import WorkerLimits
from device_agents.workers.link import WorkerLink
from device_agents.workers.pool import WorkerPool
from fleet.errors import LeaseRevoked
from fleet.testing import eventually


@asynccontextmanager
async def linked() -> AsyncIterator[tuple[WorkerLink, socket.socket]]:
    ours, worker = socket.socketpair()
    link = await WorkerLink.connect(ours)
    with worker:
        yield link, worker
        link.close()


async def test_an_answer_may_come_in_pieces() -> None:
    """Each request gets its own, also when it is cut within the header."""
    async with linked() as (link, worker):
        for content in (b"", b"short", bytes(300_000)):
            answer = link.ask(b"request")
            frame = format_frame(content)
            worker.sendall(frame[:2])
            await asyncio.wait((answer,), timeout=0.01)
            await asyncio.to_thread(worker.sendall, frame[2:])
            assert await answer == content
        assert link.is_open


async def test_more_than_one_answer_is_none() -> None:
    """A candidate that writes to the socket cannot answer for the next one."""
    async with linked() as (link, worker):
        answer = link.ask(b"request")
        worker.sendall(format_frame(b"mine") + format_frame(b"for the next"))

        with pytest.raises(BrokenFrame):
            await answer
        assert not link.is_open


async def test_an_unsolicited_answer_closes_the_link() -> None:
    """An answer between two requests closes it; the next request fails at once."""
    async with linked() as (link, worker):
        first = link.ask(b"request")
        worker.sendall(format_frame(b"mine"))
        await first
        worker.sendall(format_frame(b"for the next"))

        await eventually(lambda: not link.is_open)
        with pytest.raises(ConnectionError):
            await link.ask(b"next")


@pytest.mark.parametrize("junk", [HEADER.pack(2**31), b"\x10\x00\x00\x00cut"])
async def test_junk_and_a_closed_socket_end_the_wait(junk: bytes) -> None:
    """An absurd length at once, a short frame with the socket."""
    async with linked() as (link, worker):
        answer = link.ask(b"request")
        worker.sendall(junk)
        worker.shutdown(socket.SHUT_WR)

        with pytest.raises((BrokenFrame, ConnectionError)):
            await answer


@pytest.fixture
async def session(tmp_path: Path) -> Session:
    """A session that was not used yet."""
    (driver,) = SimulatedDriver.from_config({"name": "sim"}, where="test", host_name="here")
    claims = Claims(lease_name="leases/1", device_name="devices/sim", epoch=1, holder="me", expires_at_sec=1e12)
    pool = WorkerPool(tmp_path / "workers", [], WorkerLimits(memory_bytes=2**30, disk_bytes=2**30))
    return Session(claims, ServedDevice(driver, asyncio.Lock()), pool, ArtifactStore(tmp_path / "artifacts", 1000))


async def test_session_end_cancels_running_work(session: Session) -> None:
    """The session's end cancels its work in every task; each gets the reason after it has cleaned up."""
    cleaned: list[int] = []

    async def work(number: int) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            cleaned.append(number)

    async def outlive(number: int) -> int:
        with pytest.raises(LeaseRevoked, match="no more"):
            await session.life.until_ended(work(number))
        await asyncio.sleep(0)  # a cancellation that was not taken back would end the task here
        return number

    tasks = [asyncio.create_task(outlive(number)) for number in range(3)]
    await asyncio.wait(tasks, timeout=0.01)
    await session.end(LeaseRevoked("no more"))

    assert await asyncio.gather(*tasks) == [0, 1, 2]
    assert sorted(cleaned) == [0, 1, 2]


async def test_no_call_begins_in_an_ended_session(session: Session) -> None:
    """The work is not even started."""
    started: list[bool] = []

    async def work() -> None:
        started.append(True)

    await session.end(LeaseRevoked("no more"))
    with pytest.raises(LeaseRevoked, match="no more"):
        await session.life.until_ended(work())

    assert not started


async def test_a_result_in_the_moment_of_the_end_counts_as_cut_off(session: Session) -> None:
    """Its worker is dead, even if the work swallows its cancellation."""

    async def work() -> str:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        return "forged"

    waiting = asyncio.create_task(session.life.until_ended(work()))
    await asyncio.wait((waiting,), timeout=0.01)
    await session.end(LeaseRevoked("no more"))

    with pytest.raises(LeaseRevoked, match="no more"):
        await waiting


async def test_a_cancelled_caller_is_cancelled(session: Session) -> None:
    """The caller is cancelled while the session lives on, and also when both end at the same moment."""
    for is_both in (False, True):
        waiting = asyncio.create_task(session.life.until_ended(asyncio.Event().wait()))
        await asyncio.wait((waiting,), timeout=0.01)
        waiting.cancel()
        if is_both:
            await session.end(LeaseRevoked("no more"))

        with pytest.raises(asyncio.CancelledError):
            await waiting
