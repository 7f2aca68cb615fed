"""`fleet status` as a process on a terminal of its own."""

from __future__ import annotations

import asyncio
import fcntl
import os
import pty
import re
import signal
import struct
import sys
import termios
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from fleet.testing import SimulatedAgent, eventually, serve_tracker

pytestmark = pytest.mark.slow

_COLOUR = re.compile(rb"\x1b\[(?:[0-9;]*;)?(?:3[0-8]|4[0-8]|9[0-7]|10[0-7])[0-9;]*m")
_LEAVES_THE_SCREEN = b"\x1b[?1049l"


class Terminal:
    """A terminal of 80 x 50 that records its output."""

    def __init__(self) -> None:
        self.master, self.slave = pty.openpty()
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 80, 0, 0))
        self.before = termios.tcgetattr(self.slave)
        self.written = b""

    def read(self) -> None:
        self.written += os.read(self.master, 65536)

    def type(self, keys: bytes) -> None:
        os.write(self.master, keys)

    async def shows(self, text: bytes) -> None:
        """Wait until something was written."""
        await eventually(lambda: text in self.written, 30.0)


@pytest.fixture
async def address() -> AsyncIterator[str]:
    async with serve_tracker() as served, SimulatedAgent(served.address, ["devices/pi-1", "devices/pi-2"]) as agent:
        agent.report("devices/pi-1", is_healthy=True, temp_c=47.0)
        yield served.address


@pytest.fixture
async def terminal() -> AsyncIterator[Terminal]:
    terminal = Terminal()
    asyncio.get_running_loop().add_reader(terminal.master, terminal.read)
    yield terminal
    asyncio.get_running_loop().remove_reader(terminal.master)
    os.close(terminal.master)
    os.close(terminal.slave)


@asynccontextmanager
async def status(
    address: str, terminal: Terminal, *, stderr: int | None = None, **variables: str
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run `fleet status` until the end of the block."""
    named = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS", "LINES")}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "fleet", "status", "--tracker", address),
        stdin=terminal.slave,
        stdout=terminal.slave,
        stderr=terminal.slave if stderr is None else stderr,
        env={**named, "TERM": "xterm-256color", **variables},
        start_new_session=True,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


@pytest.mark.parametrize(("key", "exit_code"), [(b"q", 0), (b"", 143)], ids=["q", "SIGTERM"])
async def test_the_terminal_is_left_as_it_was(address: str, terminal: Terminal, key: bytes, exit_code: int) -> None:
    """However it ends: cooked, and with the text from before."""
    async with status(address, terminal) as process:
        await terminal.shows(b"pi-2")
        assert _COLOUR.search(terminal.written)
        if key:
            terminal.type(key)
        else:
            process.send_signal(signal.SIGTERM)
        assert exit_code == await process.wait()
        await terminal.shows(_LEAVES_THE_SCREEN)

    assert terminal.before == termios.tcgetattr(terminal.slave)


async def test_input_that_is_not_utf8_is_dropped(address: str, terminal: Terminal) -> None:
    """Before, a Latin-1 key or a pasted binary ended the application with a traceback."""
    async with status(address, terminal) as process:
        await terminal.shows(b"pi-2")
        terminal.type(b"\xff\xe9")
        terminal.type(b"?")
        await terminal.shows(b"zoom")
        terminal.type(b"\x1b")
        terminal.type(b"\xc3")  # begins a character: it takes the next key, or two if they arrive together with Esc
        while process.returncode is None:
            terminal.type(b"q")
            await asyncio.sleep(0.2)
        assert process.returncode == 0

    assert b"Traceback" not in terminal.written


async def test_no_colour_and_no_sign_but_ascii(address: str, terminal: Terminal) -> None:
    """Output, charts included, has neither colours nor other signs than ASCII if the environment asks for it. Ctrl-C
    quits.
    """
    async with status(address, terminal, NO_COLOR="1", PYTHONIOENCODING="ascii") as process:
        await terminal.shows(b"pi-2")
        terminal.type(b"\r")
        await terminal.shows(b"60 min ago")
        terminal.type(b"\x03")
        assert await process.wait() == 130

    assert terminal.written.isascii()
    assert not _COLOUR.search(terminal.written)


@pytest.mark.parametrize("is_dumb", [True, False], ids=["dumb terminal", "stderr is a pipe"])
async def test_it_prints_once_without_a_terminal(address: str, terminal: Terminal, is_dumb: bool) -> None:
    """On a dumb terminal, or with stderr redirected, since the application draws on stderr."""
    variables = {"TERM": "dumb"} if is_dumb else {}
    async with status(address, terminal, stderr=None if is_dumb else asyncio.subprocess.PIPE, **variables) as process:
        await terminal.shows(b"pi-2")
        assert await process.wait() == 0

    assert b"\x1b[?" not in terminal.written
