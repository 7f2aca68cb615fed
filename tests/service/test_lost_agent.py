"""A program during which its agent is lost is refused at the second time. Real agent processes, ended by signals."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import fleet.aio
from device_agents.serving import run_notes
from fleet.domain.measuring import ErrorKind
from fleet.errors import FleetError
from fleet.testing import eventually, serve_tracker
from tests.service.agent_bench import Holder, StubTracker, kind_of, request_for
from tests.service.test_agent_process import running
from tests.service.test_poison import agent_of, error_of, program

pytestmark = pytest.mark.slow


@pytest.fixture
async def tracker() -> AsyncIterator[StubTracker]:
    stub = StubTracker()
    await stub.start()
    yield stub
    await stub.stop()


def notes_of(folder: Path) -> Path:
    return folder / "state/private/running"


def is_noted(folder: Path, digest: str) -> bool:
    return digest.encode() in notes_of(folder).read_bytes()


async def end_in_a_program(folder: Path, tracker: StubTracker, epoch: int, number: signal.Signals) -> str:
    """End an agent by a signal while a program hangs on its device; return the program's digest."""
    with running(folder, tracker.address) as agent:
        holder = Holder(await asyncio.to_thread(agent.port), tracker.token(epoch))
        digest = await holder.put(b"hang")
        measuring = asyncio.create_task(holder.measure([request_for(digest, timeout_sec=60.0)]))
        await eventually(lambda: is_noted(folder, digest))
        agent.process.send_signal(number)
        await asyncio.to_thread(agent.process.wait, 60)
        await asyncio.gather(measuring, return_exceptions=True)
        await holder.close()
    return digest


async def kind_after(folder: Path, tracker: StubTracker, epoch: int) -> str:
    """Start an agent anew, run the program, and return the kind of its error."""
    with running(folder, tracker.address) as agent:
        holder = Holder(await asyncio.to_thread(agent.port), tracker.token(epoch))
        digest = await holder.put(b"hang")
        (found,) = await holder.measure([request_for(digest, timeout_sec=0.2)])
        assert not is_noted(folder, digest)
        await holder.close()
    return kind_of(found)


async def test_a_program_that_took_its_agent_down_twice_is_refused_by_all_agents(tmp_path: Path) -> None:
    """The tracker passes it on."""
    bad = program(tmp_path, b"hang")
    folder = tmp_path / "a"
    async with serve_tracker() as tracker, fleet.aio.connect(tracker.address) as client:
        for _ in range(2):
            with running(folder, tracker.address) as agent:
                await asyncio.to_thread(agent.port)
                async with client.acquire("name=sim") as device:
                    measuring = asyncio.create_task(error_of(device, bad))
                    await eventually(lambda: is_noted(folder, bad.digest))
                    os.kill(agent.process.pid, signal.SIGKILL)
                    with pytest.raises(FleetError):
                        await measuring
        with running(folder, tracker.address) as agent:
            await asyncio.to_thread(agent.port)
            await eventually(lambda: bad.digest in tracker.tracker.state.poison)
        async with agent_of("b", tracker, tmp_path) as other:
            assert await other.wait_attached(60.0)
            async with client.acquire("name=b") as device:
                assert await error_of(device, bad) is ErrorKind.POISONED


async def test_a_program_that_ran_once_when_its_agent_was_killed_is_not_refused(
    tmp_path: Path, tracker: StubTracker
) -> None:
    """The second time it is, with one start between them."""
    await end_in_a_program(tmp_path, tracker, 1, signal.SIGKILL)
    assert await kind_after(tmp_path, tracker, 2) == "TIMEOUT"
    await end_in_a_program(tmp_path, tracker, 3, signal.SIGKILL)

    assert await kind_after(tmp_path, tracker, 4) == "POISONED"


async def test_a_program_that_ran_when_its_agent_was_stopped_is_not_to_blame(
    tmp_path: Path, tracker: StubTracker
) -> None:
    """As often as that happens."""
    for epoch in (1, 2, 3):
        await end_in_a_program(tmp_path, tracker, epoch, signal.SIGTERM)
        assert not notes_of(tmp_path).exists()

    assert await kind_after(tmp_path, tracker, 4) == "TIMEOUT"


async def test_an_agent_whose_machine_went_down_notes_programs_durably(tmp_path: Path, tracker: StubTracker) -> None:
    """Its notes are those of another boot."""
    await end_in_a_program(tmp_path, tracker, 1, signal.SIGKILL)
    content = notes_of(tmp_path).read_bytes()
    notes_of(tmp_path).write_bytes(run_notes._record("boot", "another") + content[256:])  # noqa: SLF001

    with running(tmp_path, tracker.address) as agent:
        holder = Holder(await asyncio.to_thread(agent.port), tracker.token(2))
        (found,) = await holder.measure([request_for(await holder.put(b"good"))])
        agent.process.send_signal(signal.SIGTERM)
        _, _, err = await asyncio.to_thread(agent.finish)
        await holder.close()

    assert found.run_secs
    assert "the machine went down under the agent" in err


async def test_an_agent_starts_with_damaged_notes(tmp_path: Path, tracker: StubTracker) -> None:
    """It notes programs again."""
    await end_in_a_program(tmp_path, tracker, 1, signal.SIGKILL)
    content = notes_of(tmp_path).read_bytes()
    notes_of(tmp_path).write_bytes(content[:300] + b"\xff" * 1000)
    (notes_of(tmp_path).parent / "doubts.json").write_text("{")

    assert await kind_after(tmp_path, tracker, 2) == "TIMEOUT"
