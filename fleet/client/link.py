"""Connection of a client to its tracker: the stream of leases, single calls, and the certificate's renewal."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator

from fleet.base.clock import Clock
from fleet.base.network import addresses_of, host_of, is_answered, is_loopback
from fleet.client.connection import no_tracker
from fleet.client.stream import TrackerStream
from fleet.client.tracker_calls import TrackerCalls
from fleet.errors import ConfigError, FleetError, NotAllowed, NotJoined, TrackerUnavailable, Unauthenticated
from fleet.identity.credentials import Credentials
from fleet.identity.store import CredentialStore

_FLUSH_TIMEOUT_SEC = 2.0

_FRESH_SEC = 20 * 24 * 3600.0
"""Age of credentials below which their expiry is not checked."""

_RENEW_EACH_SEC = 24 * 3600.0

_NOT_OPEN = "the client is not open; use it inside 'async with fleet.aio.connect(...)'"


class TrackerLink:
    """Opened once, closed once, and connected again by itself after each outage."""

    def __init__(self, address: str, holder: str, clock: Clock) -> None:
        self._address = address
        self._holder = holder
        self._clock = clock
        self._calls: TrackerCalls | None = None
        self._stream: TrackerStream | None = None
        self._running: asyncio.Task[None] | None = None
        self._renewing: asyncio.Task[None] | None = None

    @property
    def is_open(self) -> bool:
        """True between `open` and `closing`."""
        return self._calls is not None

    @property
    def is_up(self) -> bool:
        """True if the tracker answers now."""
        return self._stream is not None and self._stream.is_up

    @property
    def stream(self) -> TrackerStream:
        """Stream of the open client.

        Raises:
            FleetError: it is not open.
        """
        if self._stream is None or self._calls is None:
            raise FleetError(_NOT_OPEN)
        return self._stream

    @property
    def calls(self) -> TrackerCalls:
        """Calls of the open client.

        Raises:
            FleetError: it is not open.
        """
        if self._calls is None:
            raise FleetError(_NOT_OPEN)
        return self._calls

    async def open(self, timeout_sec: float) -> None:
        """Connect to the tracker. Idempotent.

        Raises:
            TrackerUnavailable: it does not answer in time, or is no tracker of tvm-fleet.
            NotJoined: it is another account's, or another fleet's.
            ConfigError, NotAllowed, Unauthenticated: it refuses this client.
        """
        if self._calls is not None:
            return
        calls = TrackerCalls(self._address)
        if not all(is_loopback(host_of(address)) for address in addresses_of(self._address)):
            with contextlib.suppress(TrackerUnavailable):  # the tracker may still start
                await calls.connection.channel()  # a tracker of this machine may still be writing the credentials
        self._calls = calls
        self._stream = TrackerStream(
            calls.leases,
            self._holder,
            self._clock,
            on_failure=calls.connection.choose_again,
            on_other=calls.connection.learn_other,
            await_successor=calls.connection.await_successor,
        )
        self._running = asyncio.create_task(self._stream.run(), name="fleet tracker stream")
        try:
            async with asyncio.timeout(timeout_sec):
                await self._stream.was_up.wait()
            if isinstance(self._stream.fatal, ConfigError | Unauthenticated | NotAllowed):
                raise self._stream.fatal
            if self._stream.fatal is not None:
                raise TrackerUnavailable(
                    f"the server at {self._address} is no tracker of tvm-fleet: {self._stream.fatal}"
                )
        except BaseException as error:  # also if cancelled or interrupted; raised again
            self._calls = None
            await self._end(calls)
            if isinstance(error, TimeoutError):
                for address in addresses_of(self._address):
                    await self._explain(address, self._stream)
                raise no_tracker(self._address, f" (tried for {timeout_sec:g} s)") from None
            raise
        self._renewing = asyncio.create_task(self._renew(calls), name="renew certificate")

    @contextlib.asynccontextmanager
    async def closing(self) -> AsyncGenerator[None, None]:
        """Accept no new work, then send what the block has to send, and disconnect."""
        calls, stream = self.calls, self.stream
        self._calls = None
        try:
            yield
            stream.table.close()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_FLUSH_TIMEOUT_SEC):
                    await stream.flush()
        finally:
            await self._end(calls)

    async def _end(self, calls: TrackerCalls) -> None:
        tasks = [task for task in (self._running, self._renewing) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await calls.close()

    async def _renew(self, calls: TrackerCalls) -> None:
        """Renew this account's certificate for the tracker whenever it is due, while the client is open."""
        store = CredentialStore()
        while True:
            address = calls.connection.address
            if store.age_sec(address) > _FRESH_SEC:
                from fleet.wire.joining import renew_account  # takes 20 ms to import

                await renew_account(address, calls.connection.proof, store)
            await asyncio.sleep(_RENEW_EACH_SEC)

    async def _explain(self, address: str, stream: TrackerStream) -> None:
        """Explain why the tracker cannot be reached, if the reason can be determined.

        Raises:
            NotJoined: it is another account's, or another fleet's.
        """
        if not await asyncio.to_thread(is_answered, address):
            return
        if stream.not_joined is not None:
            raise stream.not_joined from None
        from fleet.wire.joining import why_no_tracker

        proof = CredentialStore().find(address)
        reason = await asyncio.to_thread(why_no_tracker, address, proof) if isinstance(proof, Credentials) else ""
        if reason:
            raise NotJoined(reason) from None
