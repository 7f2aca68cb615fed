"""Connections of an agent for the clients of its relay, on a thread with an event loop of its own.

A sender may have 256 KiB under way, so each wait for the agent's loop would cost such a connection throughput.
"""

from __future__ import annotations

import asyncio
import logging
import threading

from fleet.base.network import host_and_port
from fleet.base.sockets import Joiner, connect_socket
from fleet.wire.relay_preface import make_preface

logger = logging.getLogger(__name__)

_MOST_CLIENTS = 64
"""Further clients are not answered."""

_STOP_SEC = 5.0


class RelayClients:
    """Joins connections from the relay to the agent's own port."""

    def __init__(self, relay: str, own: tuple[str, int]) -> None:
        """Args: relay: "host:port". own: host and port of the agent's data path on this machine."""
        self._relay = relay
        self._own = own
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run, name="clients by relay", daemon=True)
        self._stopped = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._joiner = Joiner()

    def start(self) -> None:
        """Start the thread."""
        self._own_loop()
        self._thread.start()

    def take(self, secret: bytes, first_bytes: bytes) -> None:
        """Connect to the relay for a waiting client; returns at once."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._begin, secret, first_bytes)

    async def close(self) -> None:
        """End all connections, and the thread."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._stopped.set)
            await asyncio.to_thread(self._thread.join, _STOP_SEC)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=self._own_loop) as runner:
            runner.run(self._work())

    def _own_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
        return self._loop

    async def _work(self) -> None:
        await self._stopped.wait()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _begin(self, secret: bytes, first_bytes: bytes) -> None:
        if len(self._tasks) < _MOST_CLIENTS:
            task = asyncio.create_task(self._serve(secret, first_bytes), name="client by relay")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _serve(self, secret: bytes, first_bytes: bytes) -> None:
        send = asyncio.get_running_loop().sock_sendall
        try:
            with await connect_socket(*self._own) as own:
                await send(own, first_bytes)
                with await connect_socket(*host_and_port(self._relay)) as outward:
                    await send(outward, make_preface(secret))
                    await self._joiner.join(outward, own)
        except OSError as error:
            logger.info("connection by the relay ended", extra={"relay": self._relay, "reason": str(error)})
        except Exception:  # outermost edge of a connection: it must not end the others
            logger.exception("connection by the relay failed")
