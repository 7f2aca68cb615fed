"""Terminates a program that the agent started, even if it hangs in the kernel or blocks on unread output."""

from __future__ import annotations

import asyncio
import logging
import signal

from fleet.base import signals

logger = logging.getLogger(__name__)

_END_SEC = 5.0
_CHUNK_BYTES = 65536


async def end(process: asyncio.subprocess.Process, limit_sec: float = _END_SEC) -> None:
    """Kill a process unless it has ended, and reap it. No other reader of its output may remain.

    Returns after `limit_sec` in any case: no signal ends a process that waits for a driver inside the kernel.
    """
    signals.send(process, signal.SIGKILL)
    try:
        async with asyncio.timeout(limit_sec):
            # asyncio considers a process ended only when its pipe is closed: unread output would keep it alive.
            while process.stdout is not None and await process.stdout.read(_CHUNK_BYTES):
                pass
            await process.wait()
    except TimeoutError:
        logger.warning("a killed process is still there, or has left its output to another", extra={"pid": process.pid})
        process._transport.close()  # type: ignore[attr-defined]  # noqa: SLF001 - nothing public lets go of the pipe
