"""The certain end of a program that the agent started: one that hangs in the kernel, or that nobody listens to."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal

logger = logging.getLogger(__name__)

_END_SEC = 5.0
_PIECE_BYTES = 65536


async def end(process: asyncio.subprocess.Process) -> None:
    """Kill a process unless it ended, and reap it. Nobody else reads what it wrote any more.

    Returns after a while in any case: no signal ends what waits for a driver that does not answer.
    """
    if process.returncode is None:
        # Not process.kill(): it reaps a process that has just ended, and asyncio then misses its exit code.
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
    try:
        async with asyncio.timeout(_END_SEC):
            # asyncio takes a process for ended once its pipe is, too: what nobody reads would keep it for ever.
            while process.stdout is not None and await process.stdout.read(_PIECE_BYTES):
                pass
            await process.wait()
    except TimeoutError:
        logger.warning("a killed process is still there, or has left its output to another", extra={"pid": process.pid})
        process._transport.close()  # type: ignore[attr-defined]  # noqa: SLF001 - nothing public lets go of the pipe
