"""Signals that stop a long-running command, orderly shutdown, and a race-free way to signal a child process."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable

ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""Signals that stop a service. SIGHUP arrives when its terminal closes."""


def on_signals(numbers: Iterable[signal.Signals], callback: Callable[..., object], *arguments: object) -> None:
    """Register a callback in the running event loop for these signals. SIGHUP stays ignored under `nohup`."""
    loop = asyncio.get_running_loop()
    for number in numbers:
        if number is not signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
            loop.add_signal_handler(number, callback, *arguments)


def stop_on_signals(stopped: asyncio.Event, *, most_sec: float) -> None:
    """Set an event on the first ending signal. Kills the process on the second one, or if the shutdown hangs.

    Args:
        most_sec: grace period of the shutdown [s].
    """

    def stop() -> None:
        if stopped.is_set():
            _end(1)
        stopped.set()
        end_in(most_sec, 1)

    on_signals(ENDING, stop)


def end_in(delay_sec: float, code: int) -> None:
    """Kill the process after a delay, unless it has ended."""
    timer = threading.Timer(delay_sec, _end, (code,))
    timer.daemon = True
    timer.start()


def send(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    """Send a signal to a child unless it has ended.

    Process.send_signal() polls first: it reaps a child that has just ended, and asyncio then reports 255 instead of
    the child's exit code, with "Unknown child process pid".
    """
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, number)


def _end(code: int) -> None:
    sys.stderr.flush()
    os._exit(code)
