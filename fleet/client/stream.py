"""The one stream between a client and its tracker: kept open for ever, whatever happens to the tracker.

`TrackerStream.run` is one task. It opens the stream, says what the lease book wants said, feeds the book with what
comes back, and when the stream breaks opens another after a jittered pause. Nothing that happens here ends a lease:
leases live by their tokens, and end when those run out or the tracker says so.
"""

from __future__ import annotations

import asyncio
import logging
import random
from typing import Any

import grpc
import grpc.aio

from fleet.client.leases import ClientEvent, LeaseBook
from fleet.clock import Clock
from fleet.errors import FleetError, TrackerUnavailable
from fleet.rpc import EOF, Stub, from_rpc_error
from fleet.v1 import job_pb2, lease_service_pb2

logger = logging.getLogger(__name__)

_FIRST_PAUSE_SEC = 0.1
_LONGEST_PAUSE_SEC = 2.0
_STRAY_GRACE_SEC = 1.0
"""A lease listed at the welcome may belong to a request whose repeated answer is still on its way."""

_FATAL = (grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.UNAUTHENTICATED)
"""Before the first welcome these end the attempt: whatever answers there is no tracker for us."""


class TrackerStream:
    """Owns the stream and the lease book behind it."""

    def __init__(self, stub: Stub, hello: lease_service_pb2.ClientHello, clock: Clock) -> None:
        self.book = LeaseBook(send=self.send, clock=clock)
        self.is_up = False
        self.was_up = asyncio.Event()
        """Set at the first welcome, or when there can never be one: see `fatal`."""

        self.fatal: FleetError | None = None
        self.last_error = ""
        self._stub = stub
        self._hello = hello
        self._outgoing: list[ClientEvent] = []
        self._jobs: dict[str, job_pb2.Job] = {}
        self._unsent_jobs: dict[str, job_pb2.Job] = {}
        self._has_outgoing = asyncio.Event()
        self._flushed = asyncio.Event()
        self._flushed.set()

    def send(self, event: ClientEvent) -> None:
        """Say something if a stream is open; after a reconnect the book repeats what still matters."""
        if self.is_up:
            self._outgoing.append(event)
            self._wake()

    def publish(self, job: job_pb2.Job) -> None:
        """Tell how a job is doing; only the newest state of each job travels."""
        self._jobs[job.name] = job
        if self.is_up:
            self._unsent_jobs[job.name] = job
            self._wake()

    async def flush(self) -> None:
        """Wait until everything said so far has been handed to the network, or the stream broke."""
        await self._flushed.wait()

    async def run(self) -> None:
        """Keep a stream open until cancelled."""
        pause_sec = _FIRST_PAUSE_SEC
        while True:
            try:
                await self._run_once()
                self.last_error = "the tracker closed the stream"
            except grpc.aio.AioRpcError as error:
                self.last_error = error.details() or error.code().name
                if not self.was_up.is_set() and error.code() in _FATAL:
                    self.fatal = from_rpc_error(error, TrackerUnavailable)
                    self.was_up.set()
                    return
            except Exception as error:  # the outermost loop of a task: without it no lease would be renewed any more
                self.last_error = str(error)
                logger.exception("tracker stream failed")
            if self.is_up:
                self._went_down()
                pause_sec = _FIRST_PAUSE_SEC
            await asyncio.sleep(pause_sec * random.uniform(0.5, 1.0))
            pause_sec = min(2 * pause_sec, _LONGEST_PAUSE_SEC)

    async def _run_once(self) -> None:
        call = self._stub.open_leases()
        writer: asyncio.Task[None] | None = None
        try:
            await call.write(lease_service_pb2.OpenLeasesRequest(hello=self._hello))
            while (response := await call.read()) is not EOF:
                for event in response.events:
                    if event.WhichOneof("kind") == "welcome":
                        self._welcome(event.welcome)
                        writer = writer or asyncio.create_task(self._write(call), name="fleet tracker writer")
                    else:
                        self._handle(event)
        finally:
            call.cancel()
            if writer is not None:
                writer.cancel()
                await asyncio.gather(writer, return_exceptions=True)

    def _handle(self, event: lease_service_pb2.TrackerEvent) -> None:
        try:
            self.book.handle(event)
        except Exception:  # a caller's callback, or what a newer tracker invented: no reason to miss what follows
            logger.exception("event of the tracker failed", extra={"kind": event.WhichOneof("kind")})

    async def _write(self, call: grpc.aio.StreamStreamCall[Any, Any]) -> None:
        while True:
            await self._has_outgoing.wait()
            self._has_outgoing.clear()
            events, self._outgoing = self._outgoing, []
            jobs, self._unsent_jobs = self._unsent_jobs, {}
            events.extend(ClientEvent(job=job) for job in jobs.values())
            if events:
                await call.write(lease_service_pb2.OpenLeasesRequest(events=events))
            if not self._has_outgoing.is_set():
                self._flushed.set()

    def _welcome(self, welcome: lease_service_pb2.Welcome) -> None:
        self.is_up = True
        if self.was_up.is_set():
            logger.warning("the tracker is back", extra={"tracker_id": welcome.tracker_id})
        self.was_up.set()
        self._outgoing = self.book.reopen()
        self._unsent_jobs = dict(self._jobs)
        self._wake()
        known = self.book.held.keys() | self.book.releasing.keys()
        strays = [lease.name for lease in welcome.leases if lease.name not in known]
        if strays:
            asyncio.get_running_loop().call_later(_STRAY_GRACE_SEC, self.book.release_strays, strays)

    def _went_down(self) -> None:
        self.is_up = False
        self._outgoing.clear()
        self._unsent_jobs.clear()
        self._flushed.set()
        logger.warning("lost the tracker, trying again for ever", extra={"cause": self.last_error})

    def _wake(self) -> None:
        self._flushed.clear()
        self._has_outgoing.set()
