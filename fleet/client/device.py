"""A leased device: what its holder does with it, at the agent that serves it.

Every call carries the newest token. When the lease ends, whatever is under way stops at once with the reason, and so
does every later call. After each renewal an open session is extended, so a measurement may last longer than one token.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import grpc
import grpc.aio

from fleet import wire
from fleet.artifacts import Artifact, digest_of
from fleet.client import arrays, upload
from fleet.client.measure import Pipeline
from fleet.elf import HEADER_BYTES
from fleet.errors import DeviceClosed, DeviceUnreachable, FleetError, InvalidRequest, MeasurementError
from fleet.fit import check_fit
from fleet.measuring import ErrorKind, Measurement, Trial
from fleet.pieces import Deflater
from fleet.rpc import Ending, Stub, from_rpc_error, make_channel
from fleet.v1 import device_pb2, lease_pb2, measurement_pb2, session_service_pb2

if TYPE_CHECKING:
    from fleet.client.arrays import Array
    from fleet.client.remote import RemoteModule

logger = logging.getLogger(__name__)

_TOKEN_KEY = "fleet-token-bin"  # noqa: S105 - the name of a header
_CLOSE_TIMEOUT_SEC = 2.0
_EXTEND_TIMEOUT_SEC = 10.0
_GUESSED_BYTES = 256 * 1024
"""Of artifacts uploaded before it is known that they are missing: what a link of 100 Mbit/s carries in 20 ms."""

_GONE = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED, grpc.StatusCode.DEADLINE_EXCEEDED)
"""Without a fleet error in it, these say that nobody served the call to its end."""


class LeaseHolder(Protocol):
    """A lease as a device needs it: held by this process, or borrowed from the one that started it."""

    @property
    def device(self) -> device_pb2.Device: ...
    @property
    def lease(self) -> lease_pb2.Lease: ...
    @property
    def token(self) -> lease_pb2.Token: ...
    @property
    def ended(self) -> FleetError | None: ...
    def watch(self, *, on_end: Callable[[], None], on_renew: Callable[[], None]) -> None: ...


class Device:
    """One device under one lease. Made by `Fleet.acquire`, used on one event loop."""

    def __init__(self, holder: LeaseHolder, give_back: Callable[[], Awaitable[None]] | None = None) -> None:
        self.name = holder.device.name
        self.inventory: device_pb2.Inventory = holder.device.inventory
        self.address = holder.device.address
        self._holder = holder
        self._give_back = give_back
        self._is_closed = False
        self._uses_session = False
        self._calls: set[Any] = set()
        self._extending: asyncio.Task[None] | None = None
        self._put_digests: set[str] = set()
        self._channel = make_channel(self.address)
        self._stub = Stub(self._channel, session_service_pb2.DESCRIPTOR.services_by_name["SessionService"])
        holder.watch(on_end=self._lease_ended, on_renew=self._lease_renewed)

    def __repr__(self) -> str:
        return f"<Device {self.name} under {self.lease.name}>"

    @property
    def lease(self) -> lease_pb2.Lease:
        """The lease as the tracker told it last."""
        return self._holder.lease

    @property
    def token(self) -> lease_pb2.Token:
        """The newest token."""
        return self._holder.token

    @property
    def ended(self) -> FleetError | None:
        """Why the lease is over; None while it lives."""
        return self._holder.ended

    def watch(self, *, on_end: Callable[[], None], on_renew: Callable[[], None]) -> None:
        """Have these called, on the event loop, when the lease ends and after each renewal."""
        self._holder.watch(on_end=on_end, on_renew=on_renew)

    async def open(self) -> None:
        """Open the session now, so that the first measurement finds its worker warm. Optional.

        Raises:
            DeviceUnreachable: its agent does not answer.
        """
        await self.rpc("open_session", session_service_pb2.OpenSessionRequest())

    async def ensure(self, artifacts: Iterable[Artifact]) -> None:
        """Upload those of the artifacts that the agent has not got.

        Raises:
            ArtifactRefused: built for another machine, or changed since it was named.
            DiskFull: the agent has no room.
        """
        wanted = {a.digest: a for a in artifacts if a.digest not in self._put_digests}
        if not wanted:
            return
        if self.inventory.kind != "simulated":
            await asyncio.to_thread(self._check_fits, list(wanted.values()))
        asking = asyncio.create_task(self._find_missing(list(wanted)), name=f"fleet find missing {self.name}")
        try:
            # Most artifacts are new: over a network, the first ones leave before the answer comes.
            is_far = upload.is_far(self.address)
            guessed = upload.pick_first(wanted.values(), _GUESSED_BYTES) if is_far else []
            if guessed or await asking:
                await self._put(_missing_messages(wanted, guessed, asking, Deflater() if is_far else None))
        finally:
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
        self._put_digests.update(wanted)

    async def measure(self, trials: Iterable[Trial] | AsyncIterable[Trial]) -> AsyncGenerator[Measurement, None]:
        """Time candidates one after the other and yield what came of each, in order. Trials are sent ahead.

        Raises:
            LeaseExpired, LeaseRevoked: the lease ended; trials without a result did not run to their end.
            DeviceUnreachable: the agent is gone; the same.
        """
        requests = _mapped(wire.trial_to_proto, trials)
        async with contextlib.aclosing(self.measure_requests(requests)) as messages:
            async for message in messages:
                yield wire.measurement_from_proto(message)

    async def measure_requests(
        self,
        requests: Iterable[measurement_pb2.MeasureRequest] | AsyncIterable[measurement_pb2.MeasureRequest],
    ) -> AsyncGenerator[measurement_pb2.Measurement, None]:
        """Like `measure`, in messages."""
        self._check_open()
        call = self._stub.measure(metadata=self._metadata())
        pipeline = Pipeline(call, requests)
        with self._under_way(call):
            try:
                async with contextlib.aclosing(pipeline.results()) as results:
                    async for measurement in results:
                        if measurement.error == measurement_pb2.ERROR_KIND_ARTIFACT_MISSING:
                            self._put_digests.clear()
                        yield measurement
            finally:
                call.cancel()
                await pipeline.close()

    async def call(
        self, artifact: Artifact, args: Sequence[Any], *, function: str | None = None, timeout_sec: float = 60.0
    ) -> list[Array]:
        """Run a function once and return its outputs: those arguments marked as outputs, or all arrays when none is.

        Args:
            args: arrays, TensorSpecs, (shape, dtype) pairs or numbers, as the function takes them.

        Raises:
            MeasurementError: the function failed there; `kind` says how.
            InvalidRequest: an argument that cannot be sent.
        """
        request = session_service_pb2.CallRequest(
            artifact_digest=artifact.digest,
            function=function or artifact.function,
            args=arrays.arguments_to_proto([arrays.as_argument(arg) for arg in args]),
            timeout=wire.duration(timeout_sec),
            module_kind=wire.module_kind_to_proto(artifact.module_kind),
        )
        await self.ensure([artifact])
        answer: session_service_pb2.CallResponse = await self.rpc("call", request)
        kind = wire.error_kind_from_proto(answer.error)
        if kind is ErrorKind.ARTIFACT_MISSING:
            self._put_digests.clear()
        if kind is not None:
            raise failure(kind, answer.error_message, answer.signal, self.name)
        return [arrays.tensor_from_proto(tensor) for tensor in answer.outputs]

    async def program(
        self,
        bitstream: Path | str,
        *,
        registers: Path | str | None = None,
        partial: bool = False,
        force: bool = False,
        timeout_sec: float = 30.0,
    ) -> bool:
        """Program the device's fabric, and return when it runs the bitstream. It outlives the lease.

        Args:
            bitstream: a .bit or .bin file.
            registers: file that describes what artifacts can call of it.
            partial: it reconfigures only a part of the fabric.
            force: load it even when the fabric holds it.

        Returns:
            False when the fabric held it already.

        Raises:
            InvalidRequest: no bitstream, or one for another chip.
            NotProgrammable: the device has no fabric.
            ProgrammingFailed: the fabric did not come up; the message says what it holds now.
        """
        try:
            artifact = Artifact(path=Path(bitstream), digest=await asyncio.to_thread(digest_of, Path(bitstream)))
            described = await asyncio.to_thread(Path(registers).read_text) if registers is not None else ""
        except (OSError, UnicodeDecodeError) as error:
            named = getattr(error, "filename", None) or registers or bitstream
            raise InvalidRequest(f"cannot read {named}: {getattr(error, 'strerror', None) or error}") from error
        request = session_service_pb2.ProgramRequest(
            bitstream_digest=artifact.digest,
            registers_yaml=described,
            is_partial=partial,
            force=force,
            timeout=wire.duration(timeout_sec),
        )
        if await self._find_missing([artifact.digest]):
            deflater = Deflater() if upload.is_far(self.address) else None
            await self._put(upload.messages([artifact], deflater, session_service_pb2.ARTIFACT_KIND_BITSTREAM))
        answer: session_service_pb2.ProgramResponse = await self.rpc("program", request)
        return answer.was_loaded

    def load(self, artifact: Artifact | Path | str) -> RemoteModule:
        """Return a built artifact, or a shared library by its path, as a module that runs on this device.

        Raises:
            InvalidRequest: there is no such file.
        """
        from fleet.client.remote import RemoteModule

        if not isinstance(artifact, Artifact):
            try:
                artifact = Artifact.of_file(artifact)
            except OSError as error:
                raise InvalidRequest(f"cannot read {artifact}: {error.strerror}") from error
        return RemoteModule(self, artifact)

    async def logs(self) -> AsyncGenerator[str, None]:
        """Yield what the worker writes to stdout and stderr, from now until the session ends."""
        self._check_open()
        call = self._stub.watch_logs(session_service_pb2.WatchLogsRequest(), metadata=self._metadata())
        with self._under_way(call):
            try:
                async for response in call:
                    yield response.text
            finally:
                call.cancel()

    async def release(self) -> None:
        """End the session and give the device back. Idempotent; never fails, since the lease ends by itself anyway."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._extending is not None:
            self._extending.cancel()
        try:
            if self._uses_session and self.ended is None and self._give_back is not None:
                await self._close_session()
        finally:
            for call in list(self._calls):
                call.cancel()
            try:
                if self._give_back is not None:
                    await self._give_back()
            finally:
                await self._channel.close(None)

    async def rpc(self, name: str, request: Any, *, timeout_sec: float | None = None) -> Any:
        """Make one call of the session service with the newest token, and return its answer."""
        self._check_open()
        call = getattr(self._stub, name)(request, metadata=self._metadata(), timeout=timeout_sec)
        with self._under_way(call):
            return await call

    async def _find_missing(self, digests: list[str]) -> set[str]:
        request = session_service_pb2.FindMissingRequest(digests=digests)
        answer: session_service_pb2.FindMissingResponse = await self.rpc("find_missing", request)
        return set(answer.digests)

    async def _put(self, messages: AsyncGenerator[session_service_pb2.PutArtifactRequest, None]) -> None:
        self._check_open()
        call = self._stub.put_artifact(metadata=self._metadata())
        with self._under_way(call):
            try:
                async with contextlib.aclosing(messages):
                    async for message in messages:
                        await call.write(message)
                await call.done_writing()
            except asyncio.InvalidStateError:
                pass  # the agent ended the call before it had all; what it says comes below
            except BaseException:
                call.cancel()
                raise
            await call

    def _check_fits(self, artifacts: list[Artifact]) -> None:
        for artifact in artifacts:
            check_fit(artifact, upload.read_head(artifact, HEADER_BYTES), self.inventory, device_name=self.name)

    async def _close_session(self) -> None:
        call = self._stub.close_session(
            session_service_pb2.CloseSessionRequest(), metadata=self._metadata(), timeout=_CLOSE_TIMEOUT_SEC
        )
        with contextlib.suppress(grpc.aio.AioRpcError):  # best effort: the tracker's fence ends the session too
            await call

    def _check_open(self) -> None:
        if self.ended is not None:
            raise self.ended
        if self._is_closed:
            raise DeviceClosed(f"{self.name} was given back ({self.lease.name}); acquire it again to go on")

    def _metadata(self) -> tuple[tuple[str, bytes], ...]:
        self._uses_session = True
        return ((_TOKEN_KEY, self.token.SerializeToString()),)

    @contextlib.contextmanager
    def _under_way(self, call: Any) -> Iterator[None]:
        """Have `call` cancelled when the lease ends, and turn what it raises into fleet errors."""
        self._calls.add(call)
        ending = Ending(call)
        try:
            yield
        except grpc.aio.AioRpcError as error:
            raise self.ended or self._translated(ending.error(error)) from error
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if self.ended is not None and not (task and task.cancelling()):
                raise self.ended from None
            raise
        finally:
            self._calls.discard(call)

    def _translated(self, error: grpc.aio.AioRpcError) -> FleetError:
        found = from_rpc_error(error, DeviceUnreachable)
        if (type(found) is FleetError and error.code() in _GONE) or isinstance(found, DeviceUnreachable):
            return DeviceUnreachable(
                f"{self.name} at {self.address} does not answer: {error.details() or error.code().name}; "
                "its agent may be restarting, try again or take another device"
            )
        return found

    def _lease_ended(self) -> None:
        for call in list(self._calls):
            call.cancel()

    def _lease_renewed(self) -> None:
        is_busy = self._extending is not None and not self._extending.done()
        if self._uses_session and not self._is_closed and not is_busy:
            self._extending = asyncio.create_task(self._extend(), name=f"fleet extend {self.name}")

    async def _extend(self) -> None:
        try:
            await self.rpc("open_session", session_service_pb2.OpenSessionRequest(), timeout_sec=_EXTEND_TIMEOUT_SEC)
        except FleetError as error:  # the calls under way hear of it themselves
            logger.warning("could not extend the session", extra={"device": self.name, "cause": str(error)})


def failure(kind: ErrorKind, message: str, signal: int, device_name: str) -> MeasurementError:
    """Return the error that tells how a function failed on a device."""
    by = f" by signal {signal}" if signal else ""
    return MeasurementError(f"{kind.value}{by} on {device_name}: {message or 'no message'}", kind.value)


async def _missing_messages(
    wanted: Mapping[str, Artifact],
    guessed: Collection[Artifact],
    asking: asyncio.Task[set[str]],
    deflater: Deflater | None,
) -> AsyncGenerator[session_service_pb2.PutArtifactRequest, None]:
    """Yield the upload of the guessed artifacts, then that of the others that turn out to be missing."""
    async for message in upload.messages(guessed, deflater):
        yield message
    missing = await asking
    others = [artifact for artifact in wanted.values() if artifact.digest in missing and artifact not in guessed]
    async for message in upload.messages(others, deflater):
        yield message


async def _mapped(
    function: Callable[[Trial], measurement_pb2.MeasureRequest], trials: Iterable[Trial] | AsyncIterable[Trial]
) -> AsyncIterator[measurement_pb2.MeasureRequest]:
    if isinstance(trials, AsyncIterable):
        async for trial in trials:
            yield function(trial)
        return
    for trial in trials:
        yield function(trial)
