"""Python interface to the `adb` program: short commands with a time limit, and the list of phones of its server.

The program handles keys, USB and reconnecting, has clear exit codes, and starts its server whenever there is none.
https://developer.android.com/tools/adb
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from device_agents.machine.terminate import end
from fleet.errors import DeviceError, DeviceUnreachable

logger = logging.getLogger(__name__)

_COMMAND_SEC = 20.0
_PUSH_SEC = 300.0
_CHUNK_BYTES = 65536
_MOST_BYTES = 1024**2
_LISTED = re.compile(r"(?P<serial>.+?)\s+(?P<state>no permissions.*?|\S+)(?P<facts>( [a-z_]+:\S*)*)")
"""A line of `adb devices -l`: a serial may hold spaces, and so may adb's message instead of a state."""

_POLL_SEC = 1.0
"""Polled in addition to the server's own reports: it says nothing when a TCP connection drops (seen with 29.0.6)."""

MISSING = "there is no program {name!r}; install it (Debian: apt-get install adb) or set 'adb' to its path"


@dataclass(frozen=True, slots=True)
class Link:
    """Connection of an adb server to a phone."""

    state: str
    """State as adb reports it: "device", "offline", "unauthorized", ..."""

    transport_id: str = ""
    """Another one with each connection; empty if adb is older than that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Adb:
    """The program and the server that it talks to."""

    program: str = "adb"
    server_port: int | None = None
    """None: $ANDROID_ADB_SERVER_PORT, else 5037."""

    def words(self, *words: str, serial: str = "") -> list[str]:
        """Return the command line of an adb command as words."""
        server = () if self.server_port is None else ("-P", str(self.server_port))
        return [self.program, *server, *(("-s", serial) if serial else ()), *words]

    @property
    def server(self) -> str:
        """Port of the server, for other programs that use the same one."""
        return str(self.server_port or os.environ.get("ANDROID_ADB_SERVER_PORT") or 5037)

    async def start(self, *words: str, serial: str = "") -> asyncio.subprocess.Process:
        """Start a long-running command; `stdout` carries its output, including errors.

        Raises:
            DeviceError: there is no adb.
        """
        try:
            return await asyncio.create_subprocess_exec(
                *self.words(*words, serial=serial),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
            )
        except OSError as error:
            raise DeviceError(f"{MISSING.format(name=self.program)}: {error.strerror}") from error

    async def run(self, *words: str, serial: str = "", timeout_sec: float = _COMMAND_SEC) -> str:
        """Run a command to its end and return its output.

        Raises:
            DeviceUnreachable: it failed, or took too long; the text is adb's.
            DeviceError: there is no adb.
        """
        process = await self.start(*words, serial=serial)
        shown = f"adb {words[0]}"
        try:
            output = await asyncio.wait_for(_read_all(process, shown), timeout_sec)
        except TimeoutError:
            raise DeviceUnreachable(f"{shown} took longer than {timeout_sec:g} s") from None
        finally:
            await end(process)
        text = output.decode(errors="replace").strip()
        if process.returncode:
            raise DeviceUnreachable(f"{shown}: {_complaint(text) or f'exit code {process.returncode}'}")
        return text

    async def shell(self, serial: str, command: str) -> str:
        """Run a command on a phone and return its output.

        Raises:
            DeviceUnreachable: it failed there, or the phone is away.
        """
        return await self.run("shell", command, serial=serial)

    async def push(self, serial: str, files: Sequence[str], folder: str) -> None:
        """Copy files into a folder of a phone.

        Raises:
            DeviceUnreachable: it failed; adb's text says why, to people.
        """
        await self.run("push", *files, f"{folder}/", serial=serial, timeout_sec=_PUSH_SEC)

    async def forward(self, serial: str, port: int) -> int:
        """Forward a local port to a port of the phone, and return it.

        Raises:
            DeviceUnreachable: it could not be forwarded.
        """
        text = await self.run("forward", "tcp:0", f"tcp:{port}", serial=serial)
        found = re.search(r"(\d{1,5})\s*$", text)
        if found is None:
            raise DeviceUnreachable(f"adb forward: reported no port, but {text[-200:]!r}")
        return int(found[1])

    async def unforward(self, serial: str, local_port: int) -> None:
        """Stop forwarding a port; do nothing if it is gone already."""
        with contextlib.suppress(DeviceError):
            await self.run("forward", "--remove", f"tcp:{local_port}", serial=serial, timeout_sec=5.0)


async def _read_all(process: asyncio.subprocess.Process, shown: str) -> bytes:
    """Return a command's whole output, limited in size because the phone decides how much it sends."""
    output = bytearray()
    while process.stdout is not None and (chunk := await process.stdout.read(_CHUNK_BYTES)):
        output += chunk
        if len(output) > _MOST_BYTES:
            raise DeviceUnreachable(f"{shown} wrote more than {_MOST_BYTES // 1024**2} MiB")
    await process.wait()
    return bytes(output)


class PhoneList:
    """The phones that an adb server sees, and the state of each, kept up to date."""

    def __init__(self, adb: Adb) -> None:
        self.adb = adb
        self.links: Mapping[str, Link] = {}
        """Connections by serial number."""

        self.arrivals: dict[str, int] = {}
        """Number of times that each phone became "device": a changed number means a new connection."""

        self.trouble = "adb was not asked yet"
        """Why the list is unknown; empty if it is known."""

        self.claimed: set[str] = set()
        """Serials that have an entry of their own in agent.yaml."""

        self._users = 0
        self._task: asyncio.Task[None] | None = None
        self._news = asyncio.Event()
        self._first = asyncio.Event()
        self._called = asyncio.Event()

    async def open(self, first_sec: float) -> None:
        """Start following adb, unless another user has; wait for its first list."""
        self._users += 1
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="list-phones")
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._first.wait(), first_sec)

    async def close(self) -> None:
        """Stop following adb once the last user closes."""
        self._users -= 1
        if self._users > 0 or self._task is None:
            return
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._task = None
        _lists.pop(self.adb.server, None)

    async def news(self, timeout_sec: float | None) -> None:
        """Wait until the list changes, or until the time limit."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._news.wait(), timeout_sec)

    async def _run(self) -> None:
        following = asyncio.create_task(self._follow(), name="follow-adb")
        try:
            while True:
                try:
                    # `devices` starts the server if there is none.
                    self._learn(parse_links(await self.adb.run("devices", "-l")), "")
                except DeviceError as error:
                    self._learn({}, str(error))
                except Exception as error:  # outermost loop: if it ended, phones would no longer be noticed
                    logger.exception("listing phones failed")
                    self._learn({}, f"listing phones failed: {error or type(error).__name__}")
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._called.wait(), _POLL_SEC)
                self._called.clear()
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)

    async def _follow(self) -> None:
        """List the phones whenever the server reports a change: its own reports may be incomplete or stale."""
        while True:
            try:
                await self._hear()
            except (DeviceError, OSError, ValueError) as error:
                logger.debug("cannot follow adb", extra={"error": str(error)})
            await asyncio.sleep(_POLL_SEC)

    async def _hear(self) -> None:
        process = await self.adb.start("track-devices")
        try:
            while process.stdout is not None and await process.stdout.read(4096):
                self._called.set()
        finally:
            self._called.set()
            await end(process)

    def state(self, serial: str) -> str | None:
        """Return a phone's state, None if adb does not see it."""
        link = self.links.get(serial)
        return link.state if link else None

    def _learn(self, links: Mapping[str, Link], trouble: str) -> None:
        if trouble and trouble != self.trouble:
            logger.warning("phones are not seen", extra={"reason": trouble})
        is_news = (links, trouble) != (self.links, self.trouble)
        self.trouble = trouble
        for serial, link in links.items():
            # Includes a phone that reconnected between two polls: its connection is another one.
            if link.state == "device" and self.links.get(serial) != link:
                self.arrivals[serial] = self.arrivals.get(serial, 0) + 1
        self.links = links
        self._first.set()
        if not is_news:
            return
        # Wake the current waiters; later ones wait for the next change.
        news, self._news = self._news, asyncio.Event()
        news.set()


def parse_links(text: str) -> dict[str, Link]:
    """Parse the output of `adb devices -l` into phones by serial; messages of the daemon's start may precede them."""
    lines = iter(text.splitlines())
    for line in lines:
        if line.startswith("List of devices"):
            break
    matches = filter(None, map(_LISTED.fullmatch, map(str.rstrip, lines)))
    return {found["serial"]: Link(found["state"], _transport_id(found["facts"])) for found in matches}


def _transport_id(facts: str) -> str:
    return dict(fact.split(":", 1) for fact in facts.split()).get("transport_id", "")


def phones_of(adb: Adb) -> PhoneList:
    """Return the phone list that all users of one adb server share."""
    return _lists.setdefault(adb.server, PhoneList(adb))


def _complaint(text: str) -> str:
    """Return the line with the error. The output of a push ends with a line that counts files."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return next((line for line in lines if "error" in line or "failed" in line), lines[-1] if lines else "")


_lists: dict[str, PhoneList] = {}
"""Phone lists by the server's port: two entries may name one server differently."""
