"""Ends a program that the agent started, even one that hangs in the kernel or whose output nobody reads."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal

logger = logging.getLogger(__name__)

_END_SEC = 5.0
_PIECE_BYTES = 65536


async def end(process: asyncio.subprocess.Process, limit_sec: float = _END_SEC) -> None:
    """Kill a process unless it has ended, and reap it. Nobody else may still read its output.

    Returns after `limit_sec` in any case: no signal ends a process that waits for a driver inside the kernel.
    """
    if process.returncode is None:
        # Not process.kill(): it would reap a process that has just ended, and asyncio would miss its exit code.
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
    try:
        async with asyncio.timeout(limit_sec):
            # To asyncio a process has ended only once its pipe is closed, so unread output would keep it for ever.
            while process.stdout is not None and await process.stdout.read(_PIECE_BYTES):
                pass
            await process.wait()
    except TimeoutError:
        logger.warning("a killed process is still there, or has left its output to another", extra={"pid": process.pid})
        process._transport.close()  # type: ignore[attr-defined]  # noqa: SLF001 - nothing public lets go of the pipe
