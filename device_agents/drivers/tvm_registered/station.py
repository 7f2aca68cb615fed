"""A registered server as its device sees it: whether it offers a session, and the session in progress."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from device_agents.drivers.tvm_registered.config import Address, plain_address
from device_agents.drivers.tvm_registered.offers import Offers, Server
from device_agents.runtimes.tvm_rpc.handshake import KeyRefused, NotServed, open_session
from fleet.base.network import address_of

REGISTERING_SEC = 10.0
"""Longest time between the end of a session and the server's next offer. TVM's Python server takes 10 ms."""

_OPEN_SEC = 4.5
"""Limit for opening a session, below the 5 s of a worker, so that it learns the reason."""

_OFFER_SEC = 3.5
"""Part of it in which the server may still register."""


class Station:
    """One server. The port where servers register calls `offered` and `lost`."""

    def __init__(
        self,
        server: Server,
        offers: Offers,
        admits: Callable[[Address], bool],
        now_sec: Callable[[], float] = time.monotonic,
    ) -> None:
        """Args: admits: tells whether sessions may be opened at an address."""
        self.server = server
        self.address = address_of(server.host, server.port)
        self._offers = offers
        self._admits = admits
        self._now_sec = now_sec
        self._news = asyncio.Event()
        self._turn = asyncio.Lock()
        """Held during a session."""

        self._ended_at_sec = -REGISTERING_SEC
        self._failure = ""
        """Reason of the last failed session, until the next offer."""

        self.noticed: Callable[[], None] = lambda: None
        """Called when `trouble` may have changed."""

    def offered(self) -> None:
        """Note a new offer."""
        was_failed, self._failure = bool(self._failure), ""
        self._news.set()
        if was_failed:
            self.noticed()

    def lost(self) -> None:
        """Note that the connection of the offer has ended."""
        self._failure = "its connection has ended"
        self.noticed()

    @property
    def trouble(self) -> str:
        """Why the server takes no session; empty if it does. It is never probed: an offer counts until it fails."""
        if self._turn.locked() or self._offers.has(self.server):
            return ""
        if not self._failure and self._now_sec() - self._ended_at_sec < REGISTERING_SEC:
            return ""
        reason = (
            self._failure or "it has not registered again since its last session: it ended, or a kernel hangs there"
        )
        return f"the TVM RPC server at {self.address} with key {self.server.key!r} is not registered: {reason}"

    async def ready(self) -> bool:
        """Wait until the server offers a session; return False if it does not within `REGISTERING_SEC`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(REGISTERING_SEC):
                await self._offer()
                return True
        return False

    @asynccontextmanager
    async def session(self, options: str) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        """Open a session for the block.

        Args:
            options: of the session, as clients send them after a key.

        Raises:
            NotServed: the session failed; `trouble` gives the reason from then on.
        """
        try:
            async with asyncio.timeout(_OFFER_SEC):
                await self._turn.acquire()
        except TimeoutError as error:
            raise NotServed(f"{self.address} serves another session of this device") from error
        try:
            reader, writer = await self._opened(options)
            try:
                yield reader, writer
            finally:
                writer.close()
                self._ended_at_sec = self._now_sec()
        finally:
            self._turn.release()

    async def _opened(self, options: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        deadline_sec = asyncio.get_running_loop().time() + _OPEN_SEC
        match_key = await self._offered_key()
        try:
            async with asyncio.timeout_at(deadline_sec):
                host = await self._looked_up()
                return await open_session(host, self.server.port, f"{match_key} {options}".rstrip())
        except KeyRefused as error:
            self._failure = "the last session failed, it does not know the match key that it registered with"
            raise NotServed(self._failure) from error
        except NotServed as error:
            self._failure = f"the last session failed, {error}"
            raise
        except TimeoutError as error:
            self._failure = "the last session failed, no answer in time"
            raise NotServed(self._failure) from error

    async def _offered_key(self) -> str:
        """Wait for an offer, and use it up.

        Raises:
            NotServed: no offer came in time. The server does not count as failed.
        """
        try:
            async with asyncio.timeout(_OFFER_SEC):
                return await self._taken()
        except TimeoutError as error:
            raise NotServed(f"{self.address} has not registered again since its last session") from error

    async def _looked_up(self) -> str:
        """Return the address of the server's host.

        Raises:
            NotServed: the name is unknown, or its address is outside the key's networks.
        """
        host = self.server.host
        try:
            found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
        except OSError as error:
            raise NotServed(f"there is no host {host!r}; correct the server's --custom-addr") from error
        addresses = [plain_address(str(entry[4][0])) for entry in found]
        admitted = next(filter(self._admits, addresses), None)
        if admitted is None:
            raise NotServed(f"{host!r} is outside of the networks of this key in agent.yaml")
        return str(admitted)

    async def _taken(self) -> str:
        await self._offer()
        match_key = self._offers.take(self.server)
        return match_key if match_key is not None else await self._taken()

    async def _offer(self) -> None:
        while not self._offers.has(self.server):
            self._news.clear()
            await self._news.wait()
