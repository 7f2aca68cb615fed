"""The client, on asyncio: one `Fleet` per tracker, one stream behind it.

    async with fleet.aio.connect("127.0.0.1:9290") as client:
        async with client.acquire("cpu") as device:
            await device.ensure([artifact])
            async for measurement in device.measure(trials):
                ...

Outages of the tracker after the first contact are survived in silence: leases live on by their tokens, waiting
requests are repeated when it is back.
"""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import importlib.metadata
import logging
import math
import os
import re
import secrets
import socket
from collections.abc import AsyncGenerator, Generator
from types import TracebackType
from typing import Any

import grpc
import grpc.aio

from fleet import wire
from fleet.client.device import Device
from fleet.client.leases import HeldLease, OnQueued, Waiting, make_acquire
from fleet.client.stream import TrackerStream
from fleet.clock import Clock, SystemClock
from fleet.config import TRACKER_PORT
from fleet.errors import ConfigError, FleetError, InvalidRequest, TrackerUnavailable, WaitTimeout
from fleet.rpc import Stub, from_rpc_error, make_channel
from fleet.selectors import parse_selector
from fleet.v1 import device_pb2, fleet_service_pb2, job_pb2, lease_pb2, lease_service_pb2

logger = logging.getLogger(__name__)

_ADDRESS = re.compile(r"(\[[0-9a-fA-F:]+\]|[^:\s/]+):(\d{1,5})")
_RELEASE_TIMEOUT_SEC = 2.0
_LOCAL_SLACK_SEC = 1.0
"""The tracker ends a wait at its timeout; the client does when no word has come this much later."""

_RPC_TIMEOUT_SEC = 10.0
_PAUSE_SEC = 0.5


def default_address() -> str:
    """$FLEET_TRACKER, else this machine's usual port."""
    return os.environ.get("FLEET_TRACKER") or f"127.0.0.1:{TRACKER_PORT}"


def default_holder() -> str:
    """ "user@host" of this process."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a user id without a name, as in containers
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"


def connect(
    address: str | None = None,
    *,
    connect_timeout_sec: float = 10.0,
    holder: str | None = None,
    clock: Clock | None = None,
) -> Fleet:
    """Return a client to be opened by `async with` or `await`.

    Args:
        address: "host:port" of the tracker; $FLEET_TRACKER, else 127.0.0.1:9290, when None.
        connect_timeout_sec: how long to try before TrackerUnavailable.
        holder: shown to others, "user@host" when None.

    Raises:
        ConfigError: `address` is not host:port.
    """
    return Fleet(address or default_address(), connect_timeout_sec, holder or default_holder(), clock or SystemClock())


class Fleet:
    """A client of one tracker. Used on one event loop."""

    def __init__(self, address: str, connect_timeout_sec: float, holder: str, clock: Clock) -> None:
        match = _ADDRESS.fullmatch(address)
        if match is None or int(match[2]) > 65535:
            raise ConfigError(f"cannot read the tracker's address {address!r}; write it like 127.0.0.1:{TRACKER_PORT}")
        self.address = address
        self.holder = holder
        self._connect_timeout_sec = connect_timeout_sec
        self._clock = clock
        self._channel: grpc.aio.Channel | None = None
        self._stream: TrackerStream | None = None
        self._running: asyncio.Task[None] | None = None
        self._keepers: dict[str, asyncio.Task[None]] = {}
        self._devices: set[Device] = set()

    def __await__(self) -> Generator[Any, None, Fleet]:
        return self._opened().__await__()

    async def __aenter__(self) -> Fleet:
        return await self._opened()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def is_connected(self) -> bool:
        """Whether the tracker answers at this moment."""
        return self._stream is not None and self._stream.is_up

    async def close(self) -> None:
        """Give all leases back and hang up. Idempotent."""
        if self._channel is None or self._stream is None or self._running is None:
            return
        channel, self._channel = self._channel, None
        try:
            await asyncio.gather(*(device.release() for device in list(self._devices)))
            self._stream.book.close()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_RELEASE_TIMEOUT_SEC):
                    await self._stream.flush()
        finally:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)
            await channel.close(None)

    def acquire(
        self,
        selector: str,
        *,
        priority: int = 0,
        ttl_sec: float = 30.0,
        max_sec: float | None = None,
        wait_timeout_sec: float | None = None,
        purpose: str = "",
        prefer: str = "",
        on_queued: OnQueued | None = None,
    ) -> contextlib.AbstractAsyncContextManager[Device]:
        """Wait for a device and hold it for the time of the `async with` block.

        Args:
            selector: which devices will do: "cpu", "kind=cpu,arch=x86_64", "name=pi4-03"; see `fleet.selectors`.
            priority: larger goes first.
            ttl_sec: the lease ends this long after this process was last heard of.
            max_sec: the lease ends after this, renewed or not; None: the tracker's maximum.
            wait_timeout_sec: give up after this wait; None: wait for ever.
            purpose: why, for people.
            prefer: of the free devices that will do, rather one that this selector matches, too:
                "bitstream=sha256:..."; it never makes anybody wait.
            on_queued: called with a `PendingRequest` (position, reason) when the request waits and when it moves.

        Raises:
            InvalidRequest: no selector.
            NoMatchingDevice: no device of the fleet can ever satisfy it; the message lists what there is.
            WaitTimeout: none came free in time.
        """
        return self._acquired(
            selector,
            priority=priority,
            ttl_sec=ttl_sec,
            max_sec=max_sec,
            wait_timeout_sec=wait_timeout_sec,
            purpose=purpose,
            prefer=prefer,
            on_queued=on_queued,
        )

    async def acquire_device(
        self,
        selector: str,
        *,
        priority: int = 0,
        ttl_sec: float = 30.0,
        max_sec: float | None = None,
        wait_timeout_sec: float | None = None,
        purpose: str = "",
        prefer: str = "",
        on_queued: OnQueued | None = None,
    ) -> Device:
        """Like `acquire`, for those who cannot use `async with`: give the device back with `await device.release()`."""
        stream = self._open_stream()
        parse_selector(selector)
        if prefer:
            parse_selector(prefer)
        if ttl_sec <= 0 or (max_sec is not None and max_sec <= 0):
            raise InvalidRequest("the lengths of a lease, ttl_sec and max_sec, must be above zero")
        acquire = make_acquire(
            selector,
            priority=priority,
            ttl_sec=ttl_sec,
            max_sec=max_sec,
            wait_timeout_sec=wait_timeout_sec,
            purpose=purpose,
            prefer=prefer,
        )
        waiting = stream.book.ask(acquire, on_queued)
        held = await self._answer(waiting, wait_timeout_sec)
        self._keepers[held.name] = asyncio.create_task(self._keep(held), name=f"fleet keep {held.name}")
        device = Device(held, lambda: self._give_back(held, device))
        self._devices.add(device)
        return device

    async def snapshot(self) -> fleet_service_pb2.Snapshot:
        """Return the fleet as it is now.

        Raises:
            TrackerUnavailable: the tracker does not answer at this moment.
        """
        answer = await self._rpc("FleetService", "get_fleet", fleet_service_pb2.GetFleetRequest())
        snapshot: fleet_service_pb2.Snapshot = answer.snapshot
        return snapshot

    async def history(self, device_name: str) -> list[device_pb2.Telemetry]:
        """Return the last hour of a device's readings, oldest first, as the tracker remembers it.

        Raises:
            NotFound: there is no such device.
            TrackerUnavailable: the tracker does not answer at this moment.
        """
        request = fleet_service_pb2.GetHistoryRequest(device_name=device_name)
        return list((await self._rpc("FleetService", "get_history", request)).samples)

    async def watch(self, min_interval_sec: float = 1.0) -> AsyncGenerator[fleet_service_pb2.Snapshot, None]:
        """Yield the fleet now and whenever it has changed, for ever; over an outage it waits for the tracker."""
        request = fleet_service_pb2.WatchFleetRequest(min_interval=wire.duration(min_interval_sec))
        while True:
            call = self._stub("FleetService").watch_fleet(request)
            try:
                async for response in call:
                    yield response.snapshot
            except grpc.aio.AioRpcError as error:
                found = from_rpc_error(error, TrackerUnavailable)
                if not found.is_retryable and error.code() is not grpc.StatusCode.CANCELLED:
                    raise found from error
            finally:
                call.cancel()
            await asyncio.sleep(_PAUSE_SEC)

    def publish(self, job: job_pb2.Job) -> None:
        """Show a job in `fleet status`. Best effort: only the newest state of each job travels."""
        self._open_stream().publish(job)

    async def revoke(self, lease_name: str, reason: str = "") -> lease_pb2.Lease:
        """End a lease against its holder's will.

        Raises:
            NotFound: no such live lease.
            TrackerUnavailable: the tracker does not answer at this moment.
        """
        request = lease_service_pb2.RevokeLeaseRequest(lease_name=lease_name, reason=reason)
        answer = await self._rpc("LeaseService", "revoke_lease", request)
        lease: lease_pb2.Lease = answer.lease
        return lease

    async def _opened(self) -> Fleet:
        if self._channel is not None:
            return self
        self._channel = make_channel(self.address)
        hello = lease_service_pb2.ClientHello(
            client_id=secrets.token_hex(16), holder=self.holder, version=importlib.metadata.version("tvm-fleet")
        )
        self._stream = TrackerStream(self._stub("LeaseService"), hello, self._clock)
        self._running = asyncio.create_task(self._stream.run(), name="fleet tracker stream")
        try:
            async with asyncio.timeout(self._connect_timeout_sec):
                await self._stream.was_up.wait()
            if self._stream.fatal is not None:
                raise TrackerUnavailable(f"what answers at {self.address} is no tracker of ours: {self._stream.fatal}")
        except BaseException as error:
            await self._abandon()
            if isinstance(error, TimeoutError):
                raise TrackerUnavailable(
                    f"no tracker answers at {self.address} (tried for {self._connect_timeout_sec:g} s): "
                    "is it running? start one with: fleet up"
                ) from None
            raise
        return self

    async def _abandon(self) -> None:
        if self._running is not None and self._channel is not None:
            channel, self._channel = self._channel, None
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)
            await channel.close(None)

    @contextlib.asynccontextmanager
    async def _acquired(self, selector: str, **options: Any) -> AsyncGenerator[Device, None]:
        device = await self.acquire_device(selector, **options)
        try:
            yield device
        finally:
            await device.release()

    async def _answer(self, waiting: Waiting, wait_timeout_sec: float | None) -> HeldLease:
        """Wait for the tracker's answer. Whatever else ends the wait, nothing stays queued or held."""
        book = self._open_stream().book
        local_timeout_sec = None if wait_timeout_sec is None else wait_timeout_sec + _LOCAL_SLACK_SEC
        held: HeldLease | None = None
        try:
            async with asyncio.timeout(local_timeout_sec):
                held = await asyncio.shield(waiting.answer)
        except TimeoutError:
            where = waiting.last.reason if waiting.last is not None else "the tracker is away"
            raise WaitTimeout(
                f"no device for {waiting.acquire.selector!r} within {wait_timeout_sec:g} s; {where}"
            ) from None
        finally:
            book.leave(waiting.acquire.request_id)
            if held is None and waiting.answer.done() and waiting.answer.exception() is None:
                book.release(waiting.answer.result().name)  # granted in the very moment in which the wait was given up
        return held

    async def _keep(self, held: HeldLease) -> None:
        """Renew a lease at a third of its life until it ends."""
        book = self._open_stream().book
        while held.ended is None:
            renewal_sec = math.inf if held.is_at_its_longest else held.ttl_sec / 3
            await asyncio.sleep(max(0.0, min(renewal_sec, held.remaining_sec())))
            if held.remaining_sec() <= 0:
                book.expire(held)
            elif held.ended is None and not held.is_at_its_longest:
                book.send(lease_service_pb2.ClientEvent(renew=lease_service_pb2.Renew(lease_name=held.name)))

    async def _give_back(self, held: HeldLease, device: Device) -> None:
        self._devices.discard(device)
        self._keepers.pop(held.name).cancel()
        stream = self._stream
        if stream is None or held.ended is not None:
            return
        confirmed = stream.book.release(held.name)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_RELEASE_TIMEOUT_SEC if stream.is_up else 0):
                await asyncio.shield(confirmed)

    def _open_stream(self) -> TrackerStream:
        if self._stream is None or self._channel is None:
            raise FleetError("the client is not open; use it inside 'async with fleet.aio.connect(...)'")
        return self._stream

    def _stub(self, service: str) -> Stub:
        if self._channel is None:
            raise FleetError("the client is not open; use it inside 'async with fleet.aio.connect(...)'")
        module = fleet_service_pb2 if service == "FleetService" else lease_service_pb2
        return Stub(self._channel, module.DESCRIPTOR.services_by_name[service])

    async def _rpc(self, service: str, name: str, request: Any) -> Any:
        try:
            return await getattr(self._stub(service), name)(request, timeout=_RPC_TIMEOUT_SEC)
        except grpc.aio.AioRpcError as error:
            found = from_rpc_error(error, TrackerUnavailable)
            if isinstance(found, TrackerUnavailable) or error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                found = TrackerUnavailable(f"the tracker at {self.address} does not answer: {error.details()}")
            raise found from error
