"""Signals that stop a long-running command, and a race-free way to send one to a child process."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Iterable

ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""Signals that stop a service. SIGHUP arrives when its terminal closes."""


def on_signals(numbers: Iterable[signal.Signals], callback: Callable[..., object], *arguments: object) -> None:
    """Register a callback in the running event loop for these signals. SIGHUP stays ignored under `nohup`."""
    loop = asyncio.get_running_loop()
    for number in numbers:
        if number is not signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
            loop.add_signal_handler(number, callback, *arguments)


def send(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    """Send a signal to a child unless it has ended.

    Process.send_signal() polls first: it reaps a child that has just ended, and asyncio then reports 255 instead of
    the child's exit code, with "Unknown child process pid".
    """
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, number)
