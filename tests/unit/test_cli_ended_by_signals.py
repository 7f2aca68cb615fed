"""Commands and services ended by a signal."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest
import typer

from fleet.cli import options


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_command_cleans_up_and_exits_with_the_signal(number: signal.Signals, code: int) -> None:
    """The command releases its lease first."""
    released = []

    async def hold() -> None:
        try:
            os.kill(os.getpid(), number)
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            released.append(number)

    with pytest.raises(typer.Exit) as ended:
        options.run_until_signal(hold())

    assert (ended.value.exit_code, released) == (code, [number])


def test_a_command_that_is_cancelled_otherwise_is_no_signal() -> None:
    """The error of another cancellation is not hidden behind an exit code."""

    async def give_up() -> None:
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        options.run_until_signal(give_up())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_service_stops_in_order(number: signal.Signals, capsys: pytest.CaptureFixture[str]) -> None:
    """The service prints "stopped" and returns normally."""

    async def serve() -> None:
        os.kill(os.getpid(), number)
        await asyncio.Event().wait()

    options.run_service(serve())

    assert capsys.readouterr().err == "stopped\n"
