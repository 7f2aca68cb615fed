"""A coroutine that a thread without an event loop waits for, and interrupts."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from fleet.client.event_thread import EventThread


def test_work_that_an_interrupt_meets_at_its_first_step_is_cancelled() -> None:
    """An interrupt while the caller submits the work cancels it, too."""
    ended = 0

    async def work() -> None:
        nonlocal ended
        os.kill(os.getpid(), signal.SIGINT)
        try:
            await asyncio.Event().wait()
        finally:
            ended += 1

    thread = EventThread()
    try:
        for began in range(1, 3001):
            with pytest.raises(KeyboardInterrupt):
                thread.run(work())
            assert ended == began
    finally:
        thread.stop()
