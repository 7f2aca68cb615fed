"""Signals by which a long-running command is asked to end, and a safe way to send one to a child."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Iterable

ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""All that ask a service to end. SIGHUP comes when its terminal closes."""


def on_signals(numbers: Iterable[signal.Signals], callback: Callable[..., object], *arguments: object) -> None:
    """Call back in the running loop when one of these signals comes. SIGHUP stays ignored under `nohup`."""
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
