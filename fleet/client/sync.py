"""The client without asyncio: the same names and arguments, each call waiting for its answer.

An event loop on a thread of its own does the work, so leases are renewed while the caller computes. An interrupt of the
caller's thread cancels what it waits for, properly: a request leaves the queue, a measurement stops.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import functools
import threading
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Callable,
    Coroutine,
    Generator,
    Iterable,
    Iterator,
)
from pathlib import Path
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, Unpack

from fleet.artifacts.artifact import Artifact
from fleet.client import aio, held
from fleet.client import device as aio_device
from fleet.client import remote as aio_remote
from fleet.client.leases import OnQueued
from fleet.domain.devices import Inventory
from fleet.domain.jobs import JobStatus
from fleet.domain.leases import Lease, LeaseTerms, LeaseWish
from fleet.domain.measuring import Measurement, Trial
from fleet.errors import FleetError

A = TypeVar("A")
P = ParamSpec("P")
T = TypeVar("T")

_CANCEL_TIMEOUT_SEC = 10.0
"""How long an interrupted call may take to give back what it holds."""

_LOOK_SEC = 1.0
_CLOSED = "the client is closed; connect again"


def connect(address: str | None = None, *, connect_timeout_sec: float = 10.0, holder: str | None = None) -> Fleet:
    """Return an open client; use it in a `with` block, or close it.

    Args:
        address: "host:port" of the tracker; as configured, else 127.0.0.1:9290, when None.
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

    def run(self, work: Coroutine[object, object, T]) -> T:
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
        # Other threads may be waiting for tasks that still run there.
        with contextlib.suppress(TimeoutError):
            asyncio.run_coroutine_threadsafe(_cancel_others(), self._loop).result(_CANCEL_TIMEOUT_SEC)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class _Facade(Protocol[A]):
    """Wraps an object of the asynchronous client, together with the thread it lives on."""

    _inner: A
    _thread: EventThread


def _blocking(
    method: Callable[Concatenate[A, P], Coroutine[object, object, T]],
) -> Callable[Concatenate[_Facade[A], P], T]:
    """Return the same method for callers without an event loop: it waits for the answer."""

    def call(self: _Facade[A], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._thread.run(method(self._inner, *args, **kwargs))

    functools.update_wrapper(call, method)
    return call


def _pulling(
    method: Callable[Concatenate[A, P], AsyncGenerator[T, None]],
) -> Callable[Concatenate[_Facade[A], P], Generator[T, None, None]]:
    """Return the same method as a plain generator."""

    def pull(self: _Facade[A], /, *args: P.args, **kwargs: P.kwargs) -> Generator[T, None, None]:
        return _pulled(self._thread, method(self._inner, *args, **kwargs))

    functools.update_wrapper(pull, method)
    return pull


def _pulled(thread: EventThread, source: AsyncGenerator[T, None]) -> Generator[T, None, None]:
    """Yield from an asynchronous generator that lives on the thread."""

    async def pull() -> tuple[T, ...]:
        async for item in source:
            return (item,)
        return ()

    try:
        while item := thread.run(pull()):
            yield item[0]
    finally:
        thread.run(source.aclose())


class Fleet:
    """A client of one tracker; see `fleet.client.aio.Fleet`."""

    def __init__(self, client: aio.Fleet, thread: EventThread) -> None:
        self._inner = client
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
        return self._inner.address

    def close(self) -> None:
        """Give all leases back and hang up. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        atexit.unregister(self.close)
        try:
            self._thread.run(self._inner.close())
        finally:
            self._thread.stop()

    @contextlib.contextmanager
    def acquire(
        self, selector: str | LeaseWish, *, on_queued: OnQueued | None = None, **terms: Unpack[LeaseTerms]
    ) -> Iterator[Device]:
        """Wait for a device and hold it for the time of the `with` block; see `fleet.client.aio.Fleet.acquire`.

        `on_queued` is called on the client's thread and must return soon.
        """
        device = self.acquire_device(selector, on_queued=on_queued, **terms)
        try:
            yield device
        finally:
            device.release()

    def acquire_device(
        self, selector: str | LeaseWish, *, on_queued: OnQueued | None = None, **terms: Unpack[LeaseTerms]
    ) -> Device:
        """Like `acquire`, for those who cannot use `with`: give the device back with `device.release()`."""
        request = self._inner.acquire_device(selector, on_queued=on_queued, **terms)
        return Device(self._thread.run(request), self._thread)

    snapshot = _blocking(aio.Fleet.snapshot)
    """Return the fleet as it is now."""

    history = _blocking(aio.Fleet.history)
    """Return the last hour of a device's readings, oldest first."""

    revoke = _blocking(aio.Fleet.revoke)
    """End a lease against its holder's will."""

    cancel_request = _blocking(aio.Fleet.cancel_request)
    """Take a waiting request out of the queue."""

    reset_epochs = _blocking(aio.Fleet.reset_epochs)
    """Have a device's epochs counted anew. Ends its lease."""

    watch = _pulling(aio.Fleet.watch)
    """Yield the fleet now and whenever it has changed, for ever."""

    def publish(self, job: JobStatus) -> None:
        """Show a job in `fleet status`. Best effort."""
        self._thread.call(lambda: self._inner.publish(job))


class Device:
    """A leased device; see `fleet.client.device.Device`."""

    def __init__(self, device: aio_device.Device, thread: EventThread) -> None:
        self._inner = device
        self._thread = thread

    def __repr__(self) -> str:
        return repr(self._inner)

    @property
    def name(self) -> str:
        """ "devices/<id>"."""
        return self._inner.name

    @property
    def address(self) -> str:
        """ "host:port" of its agent."""
        return self._inner.address

    @property
    def inventory(self) -> Inventory:
        """What the hardware is."""
        return self._inner.inventory

    @property
    def lease(self) -> Lease:
        """The lease as the tracker last reported it."""
        return self._inner.lease

    @property
    def token(self) -> bytes:
        """The newest token, as it travels."""
        return self._inner.token

    @property
    def ended(self) -> FleetError | None:
        """Why the lease is over; None while it lives."""
        return self._inner.ended

    open = _blocking(aio_device.Device.open)
    """Open the session now, so that the first measurement finds its worker warm. Optional."""

    ensure = _blocking(aio_device.Device.ensure)
    """Upload those artifacts that the agent does not have yet."""

    call = _blocking(aio_device.Device.call)
    """Run a function once and return its outputs."""

    time = _blocking(aio_device.Device.time)
    """Time one function."""

    program = _blocking(aio_device.Device.program)
    """Program the device's fabric; False when it held the bitstream already."""

    release = _blocking(aio_device.Device.release)
    """End the session and give the device back. Idempotent."""

    logs = _pulling(aio_device.Device.logs)
    """Yield what the worker writes to stdout and stderr, from now until the session ends."""

    def measure(self, trials: Iterable[Trial]) -> Generator[Measurement, None, None]:
        """Time candidates one after the other and yield the result of each, in order. Trials are sent ahead.

        A source that is not a list is read on a thread, so it may take its time.
        """
        source: Iterable[Trial] | AsyncIterable[Trial] = trials
        if not isinstance(trials, list | tuple):
            source = _read_on_thread(trials)
        return _pulled(self._thread, self._inner.measure(source))

    def load(self, artifact: Artifact | Path | str) -> RemoteModule:
        """Return a built artifact, or a shared library by its path, as a module that runs on this device."""
        return RemoteModule(self._inner.load(artifact), self._thread)


class RemoteModule:
    """One artifact on one leased device; see `fleet.client.remote.RemoteModule`."""

    def __init__(self, module: aio_remote.RemoteModule, thread: EventThread) -> None:
        self._inner = module
        self._thread = thread

    @property
    def artifact(self) -> Artifact:
        """What runs."""
        return self._inner.artifact

    __call__ = _blocking(aio_remote.RemoteModule.__call__)
    """Run once on these arrays and return the outputs: one array, or a tuple of several."""

    time = _blocking(aio_remote.RemoteModule.time)
    """Time a function on the device."""


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


async def _awaited(client: aio.Fleet) -> aio.Fleet:
    return await client


async def _read_on_thread(source: Iterable[Trial]) -> AsyncIterator[Trial]:
    items = iter(source)
    while (item := await asyncio.to_thread(next, items, None)) is not None:
        yield item


def _on_loop_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    # grpc.aio shares one completion queue between event loops: where several loops live in a process, one of them wakes
    # for an event that another has taken, which is harmless and not worth a traceback.
    if not isinstance(context.get("exception"), BlockingIOError):
        loop.default_exception_handler(context)
