"""Registered agents, and the clients that wait for one of their connections."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

from fleet.errors import LimitReached
from fleet.relay.refusal import Refusal, Refused
from fleet.wire.relay_preface import SECRET_BYTES

_MOST_AGENTS = 10_000
_MOST_NOTICES = 32
"""Clients of one agent that it has not been notified of: each has up to 16 KiB in memory."""

_ANSWER_SEC = 5.0
"""Time limit for an agent's connection for a client."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingClient:
    """A client that waits for an agent's connection."""

    secret: bytes
    first_bytes: bytes


class Registration:
    """One agent's stream."""

    def __init__(self) -> None:
        self._notices: asyncio.Queue[WaitingClient | None] = asyncio.Queue()

    def notify(self, client: WaitingClient) -> None:
        """Queue a client for the agent.

        Raises:
            Refused: too many wait.
        """
        if self._notices.qsize() >= _MOST_NOTICES:
            raise Refused(Refusal.BUSY_AGENT)
        self._notices.put_nowait(client)

    def end(self) -> None:
        """End the stream: a newer one has replaced it."""
        self._notices.put_nowait(None)

    async def clients(self) -> AsyncIterator[WaitingClient]:
        """Yield the waiting clients until the stream ends."""
        while (client := await self._notices.get()) is not None:
            yield client


class Agents:
    """All registered agents, by key id. Used on one event loop."""

    def __init__(self, *, most: int = _MOST_AGENTS, answer_sec: float = _ANSWER_SEC) -> None:
        self._most = most
        self._answer_sec = answer_sec
        self._registrations: dict[str, Registration] = {}
        self._waiting: dict[bytes, asyncio.Future[socket.socket]] = {}

    def __len__(self) -> int:
        return len(self._registrations)

    @contextlib.contextmanager
    def registered(self, key_id: str) -> Iterator[Registration]:
        """Register an agent for the duration of the block. An older registration of its key ends.

        Raises:
            LimitReached: there are too many agents.
        """
        former = self._registrations.get(key_id)
        if former is None and len(self) >= self._most:
            raise LimitReached(f"this relay serves {self._most} agents, and no more may register; use another relay")
        if former is not None:
            former.end()
        registration = self._registrations[key_id] = Registration()
        try:
            yield registration
        finally:
            if self._registrations.get(key_id) is registration:
                del self._registrations[key_id]

    async def connection_to(self, key_id: str, first_bytes: bytes) -> socket.socket:
        """Return an agent's connection for a client.

        Raises:
            Refused: the agent is not registered, has too many waiting clients, or did not connect in time.
        """
        registration = self._registrations.get(key_id)
        if registration is None:
            raise Refused(Refusal.UNKNOWN_AGENT)
        client = WaitingClient(secret=secrets.token_bytes(SECRET_BYTES), first_bytes=first_bytes)
        registration.notify(client)
        arrival: asyncio.Future[socket.socket] = asyncio.get_running_loop().create_future()
        self._waiting[client.secret] = arrival
        try:
            await asyncio.wait([arrival], timeout=self._answer_sec)
        except BaseException:  # also if cancelled or interrupted; raised again
            if arrival.done():
                arrival.result().close()
            raise
        finally:
            self._waiting.pop(client.secret, None)
        if not arrival.done():
            raise Refused(Refusal.SILENT_AGENT)
        return arrival.result()

    def deliver(self, secret: bytes, connection: socket.socket) -> None:
        """Hand an agent's connection to the client with this secret, which then owns it.

        Raises:
            Refused: no client with this secret waits.
        """
        arrival = self._waiting.pop(secret, None)
        if arrival is None:
            raise Refused(Refusal.UNKNOWN_SECRET)
        arrival.set_result(connection)
