"""The client without asyncio: the same names and arguments, each call waiting for its answer.

An event loop on a thread of its own does the work, so leases are renewed while the caller computes. An interrupt of the
caller's thread cancels what it waits for, properly: a request leaves the queue, a measurement stops.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import threading
from collections.abc import AsyncIterable, AsyncIterator, Callable, Coroutine, Generator, Iterable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from fleet.artifacts import Artifact
from fleet.client import aio, held
from fleet.client import device as aio_device
from fleet.client import remote as aio_remote
from fleet.client.leases import OnQueued
from fleet.errors import FleetError
from fleet.measuring import Measurement, Trial
from fleet.v1 import device_pb2, fleet_service_pb2, job_pb2, lease_pb2

if TYPE_CHECKING:
    from fleet.client.arrays import Array

T = TypeVar("T")

_CANCEL_TIMEOUT_SEC = 10.0
"""After an interrupt: how long the interrupted call may take to give back what it holds."""

_LOOK_SEC = 1.0
_CLOSED = "the client is closed; connect again"


def connect(address: str | None = None, *, connect_timeout_sec: float = 10.0, holder: str | None = None) -> Fleet:
    """Return an open client; use it in a `with` block, or close it.

    Args:
        address: "host:port" of the tracker; $FLEET_TRACKER, else 127.0.0.1:9290, when None.
        connect_timeout_sec: how long to try.
        holder: shown to others, "user@host" when None.

    Raises:
        ConfigError: `address` is not host:port.
        TrackerUnavailable: no tracker answered in time.
    """
    client = aio.connect(address, connect_timeout_sec=connect_timeout_sec, holder=holder)
    thread = EventThread()
    try:
        thread.run(_awaited(client))
    except BaseException:
        thread.stop()
        raise
    return Fleet(client, thread)


@contextlib.contextmanager
def held_device() -> Iterator[Device]:
    """Use the device whose lease `fleet acquire` put into the environment, without asking for another.

    Raises:
        ConfigError: this process was not started by `fleet acquire`.
    """
    thread = EventThread()
    context = held.held_device()
    try:
        device = thread.run(context.__aenter__())
        try:
            yield Device(device, thread)
        finally:
            thread.run(context.__aexit__(None, None, None))
    finally:
        thread.stop()


class EventThread:
    """An event loop on a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(_on_loop_error)
        self._thread = threading.Thread(target=self._loop.run_forever, name="fleet client", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine there and wait for it. An interrupt here cancels it and waits for it to clean up."""
        if threading.current_thread() is self._thread:
            work.close()
            raise FleetError("a callback of the client cannot call the client; hand the work to another thread")
        if self._loop.is_closed():
            work.close()
            raise FleetError(_CLOSED)
        finished = threading.Event()
        tasks: list[asyncio.Task[T]] = []

        def start() -> None:
            tasks.append(self._loop.create_task(work))
            tasks[0].add_done_callback(lambda _: finished.set())

        self._loop.call_soon_threadsafe(start)
        try:
            while not finished.wait(_LOOK_SEC):
                if self._loop.is_closed():
                    raise FleetError(_CLOSED)
        except BaseException:
            if not self._loop.is_closed():
                self._loop.call_soon_threadsafe(lambda: tasks[0].cancel())
                finished.wait(_CANCEL_TIMEOUT_SEC)
            raise
        if tasks[0].cancelled():
            raise FleetError(_CLOSED)
        return tasks[0].result()

    def call(self, function: Callable[[], object]) -> None:
        """Have a plain function called there."""
        self._loop.call_soon_threadsafe(function)

    def stop(self) -> None:
        """End the thread. Idempotent."""
        if self._loop.is_closed():
            return
        # Other threads may wait for what still runs there.
        with contextlib.suppress(TimeoutError):
            asyncio.run_coroutine_threadsafe(_cancel_others(), self._loop).result(_CANCEL_TIMEOUT_SEC)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class Fleet:
    """A client of one tracker; see `fleet.client.aio.Fleet`."""

    def __init__(self, client: aio.Fleet, thread: EventThread) -> None:
        self._client = client
        self._thread = thread
        self._is_closed = False
        atexit.register(self.close)

    def __enter__(self) -> Fleet:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @property
    def address(self) -> str:
        """ "host:port" of the tracker."""
        return self._client.address

    def close(self) -> None:
        """Give all leases back and hang up. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        atexit.unregister(self.close)
        try:
            self._thread.run(self._client.close())
        finally:
            self._thread.stop()

    @contextlib.contextmanager
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
    ) -> Iterator[Device]:
        """Wait for a device and hold it for the time of the `with` block; see `fleet.client.aio.Fleet.acquire`.

        `on_queued` is called on the client's thread and must return soon.
        """
        device = self.acquire_device(
            selector,
            priority=priority,
            ttl_sec=ttl_sec,
            max_sec=max_sec,
            wait_timeout_sec=wait_timeout_sec,
            purpose=purpose,
            prefer=prefer,
            on_queued=on_queued,
        )
        try:
            yield device
        finally:
            device.release()

    def acquire_device(
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
        """Like `acquire`, for those who cannot use `with`: give the device back with `device.release()`."""
        request = self._client.acquire_device(
            selector,
            priority=priority,
            ttl_sec=ttl_sec,
            max_sec=max_sec,
            wait_timeout_sec=wait_timeout_sec,
            purpose=purpose,
            prefer=prefer,
            on_queued=on_queued,
        )
        return Device(self._thread.run(request), self._thread)

    def snapshot(self) -> fleet_service_pb2.Snapshot:
        """Return the fleet as it is now."""
        return self._thread.run(self._client.snapshot())

    def watch(self, min_interval_sec: float = 1.0) -> Generator[fleet_service_pb2.Snapshot, None, None]:
        """Yield the fleet now and whenever it has changed, for ever."""
        return _pulled(self._thread, self._client.watch(min_interval_sec))

    def publish(self, job: job_pb2.Job) -> None:
        """Show a job in `fleet status`. Best effort."""
        self._thread.call(lambda: self._client.publish(job))

    def revoke(self, lease_name: str, reason: str = "") -> lease_pb2.Lease:
        """End a lease against its holder's will."""
        return self._thread.run(self._client.revoke(lease_name, reason))


class Device:
    """A leased device; see `fleet.client.device.Device`."""

    def __init__(self, device: aio_device.Device, thread: EventThread) -> None:
        self._device = device
        self._thread = thread

    def __repr__(self) -> str:
        return repr(self._device)

    @property
    def name(self) -> str:
        """ "devices/<id>"."""
        return self._device.name

    @property
    def address(self) -> str:
        """ "host:port" of its agent."""
        return self._device.address

    @property
    def inventory(self) -> device_pb2.Inventory:
        """What the hardware is."""
        return self._device.inventory

    @property
    def lease(self) -> lease_pb2.Lease:
        """The lease as the tracker told it last."""
        return self._device.lease

    @property
    def token(self) -> lease_pb2.Token:
        """The newest token."""
        return self._device.token

    @property
    def ended(self) -> FleetError | None:
        """Why the lease is over; None while it lives."""
        return self._device.ended

    def open(self) -> None:
        """Open the session now, so that the first measurement finds its worker warm. Optional."""
        self._thread.run(self._device.open())

    def ensure(self, artifacts: Iterable[Artifact]) -> None:
        """Upload those of the artifacts that the agent has not got."""
        self._thread.run(self._device.ensure(list(artifacts)))

    def measure(self, trials: Iterable[Trial]) -> Generator[Measurement, None, None]:
        """Time candidates one after the other and yield what came of each, in order. Trials are sent ahead.

        A source that is no list is read on a thread, so it may take its time.
        """
        source: Iterable[Trial] | AsyncIterable[Trial] = trials
        if not isinstance(trials, list | tuple):
            source = _read_on_thread(trials)
        return _pulled(self._thread, self._device.measure(source))

    def call(
        self, artifact: Artifact, args: Sequence[Any], *, function: str | None = None, timeout_sec: float = 60.0
    ) -> list[Array]:
        """Run a function once and return its outputs."""
        return self._thread.run(self._device.call(artifact, args, function=function, timeout_sec=timeout_sec))

    def program(
        self,
        bitstream: Path | str,
        *,
        registers: Path | str | None = None,
        partial: bool = False,
        force: bool = False,
        timeout_sec: float = 30.0,
    ) -> bool:
        """Program the device's fabric; False when it held the bitstream already."""
        return self._thread.run(
            self._device.program(bitstream, registers=registers, partial=partial, force=force, timeout_sec=timeout_sec)
        )

    def load(self, artifact: Artifact | Path | str) -> RemoteModule:
        """Return a built artifact, or a shared library by its path, as a module that runs on this device."""
        return RemoteModule(self._device.load(artifact), self._thread)

    def logs(self) -> Generator[str, None, None]:
        """Yield what the worker writes to stdout and stderr, from now until the session ends."""
        return _pulled(self._thread, self._device.logs())

    def release(self) -> None:
        """End the session and give the device back. Idempotent."""
        self._thread.run(self._device.release())


class RemoteModule:
    """One artifact on one leased device; see `fleet.client.remote.RemoteModule`."""

    def __init__(self, module: aio_remote.RemoteModule, thread: EventThread) -> None:
        self._module = module
        self._thread = thread

    @property
    def artifact(self) -> Artifact:
        """What runs."""
        return self._module.artifact

    def __call__(self, *args: Any, function: str | None = None, timeout_sec: float = 60.0) -> Array | tuple[Array, ...]:
        """Run once on these arrays and return the outputs: one array, or a tuple of several."""
        return self._thread.run(self._module(*args, function=function, timeout_sec=timeout_sec))

    def time(
        self,
        function: str | None = None,
        args: Sequence[Any] | None = None,
        *,
        timeout_sec: float = 60.0,
        **evaluator: Any,
    ) -> Measurement:
        """Time a function on the device."""
        return self._thread.run(self._module.time(function, args, timeout_sec=timeout_sec, **evaluator))


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


async def _awaited(client: aio.Fleet) -> aio.Fleet:
    return await client


def _pulled(thread: EventThread, source: Any) -> Generator[Any, None, None]:
    """Yield from an asynchronous generator that lives on the thread."""

    async def pull() -> Any:
        return await anext(source, pull)

    try:
        while (item := thread.run(pull())) is not pull:
            yield item
    finally:
        thread.run(source.aclose())


async def _read_on_thread(source: Iterable[Trial]) -> AsyncIterator[Trial]:
    items = iter(source)
    while (item := await asyncio.to_thread(next, items, None)) is not None:
        yield item


def _on_loop_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    # grpc.aio shares one completion queue between event loops: where several loops live in a process, one of them wakes
    # for an event that another has taken, which is harmless and not worth a traceback.
    if not isinstance(context.get("exception"), BlockingIOError):
        loop.default_exception_handler(context)
