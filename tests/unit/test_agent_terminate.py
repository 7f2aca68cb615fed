"""Ending a program for certain."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys

import pytest

from device_agents.machine.terminate import end
from device_agents.runtimes.check import why_not

FLOOD = "import sys; sys.stdout.write('x' * 1_000_000)"


async def start(code: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(sys.executable, "-I", "-S", "-c", code, stdout=asyncio.subprocess.PIPE)


async def test_a_full_pipe_does_not_delay_termination() -> None:
    """A program with more unread output than its pipe holds is ended and reaped."""
    process = await start(FLOOD)
    assert process.stdout is not None
    await process.stdout.read(1)

    await end(process, limit_sec=60.0)

    assert process.returncode == -signal.SIGKILL


async def test_an_inherited_pipe_does_not_delay_termination() -> None:
    """A program may leave a child behind that holds its output: asyncio would wait for that one, too."""
    process = await start("import os, time\nif child := os.fork():\n    print(child, flush=True)\ntime.sleep(600)")
    assert process.stdout is not None
    child = int(await process.stdout.readline())
    try:
        await asyncio.wait_for(end(process, limit_sec=0.2), 60)
    finally:
        os.kill(child, signal.SIGKILL)


async def test_one_that_ended_is_fine() -> None:
    """Ending an ended process is idempotent."""
    process = await start("")
    await process.wait()

    await end(process)
    await end(process)

    assert process.returncode == 0


async def test_an_end_in_the_moment_of_the_answer_is_not_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cancellation in the moment in which a library check returns is kept; otherwise a closing agent would hang."""
    communicate = asyncio.subprocess.Process.communicate

    async def end_with_the_answer(process: asyncio.subprocess.Process) -> tuple[bytes, bytes]:
        answer = await communicate(process)
        asyncio.get_running_loop().call_soon(looking.cancel)
        return answer

    async def look() -> None:
        await why_not([], {})
        await asyncio.sleep(0)

    monkeypatch.setattr(asyncio.subprocess.Process, "communicate", end_with_the_answer)
    monkeypatch.setattr(sys, "executable", shutil.which("true"))
    looking = asyncio.create_task(look())
    await asyncio.wait((looking,))

    assert looking.cancelled()
