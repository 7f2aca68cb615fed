"""The RPCs of a session, sent to the agent of a leased device. Keeps messages and gRPC internal.

Every call carries the newest token. When the lease ends, whatever is under way stops at once with the reason.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import Message

from fleet.base.text import printable
from fleet.client.chunks import exchange
from fleet.client.measure_stream import MeasureStream
from fleet.client.reach import AgentWay
from fleet.domain.devices import DeviceStatus
from fleet.domain.leases import Lease, YieldWanted
from fleet.domain.measuring import Call, ErrorKind, Measurement, Tensor, Trial
from fleet.domain.proving import Proof, ProofOrder, ProofVerdict
from fleet.errors import DeviceClosed, DeviceUnreachable, FleetError, MeasurementError
from fleet.identity.credentials import Proof as IdentityProof
from fleet.v1 import session_service_pb2
from fleet.wire.measurements import call_to_proto, error_kind_from_proto, tensor_from_proto
from fleet.wire.proofs import proof_from_proto, proof_order_to_proto
from fleet.wire.rpc import from_rpc_error, read_next
from fleet.wire.stubs import SessionServiceStub, session_service_stub
from fleet.wire.times import duration
from fleet.wire.tokens import TOKEN_HEADER

P = TypeVar("P")
S = TypeVar("S")
T = TypeVar("T")

_CLOSE_TIMEOUT_SEC = 2.0
_MOST_DIGESTS = 1_000
"""Digests per request: an agent accepts 256 KiB."""

_GONE = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED, grpc.StatusCode.DEADLINE_EXCEEDED)
"""Statuses that, without a fleet error inside, mean that the call was cut off."""


class LeaseHolder(Protocol):
    """A lease from a device's point of view: held by this process, or borrowed from the parent process."""

    @property
    def device(self) -> DeviceStatus: ...
    @property
    def lease(self) -> Lease: ...
    @property
    def token(self) -> bytes: ...
    @property
    def ended(self) -> FleetError | None: ...
    @property
    def yield_wanted(self) -> YieldWanted | None: ...
    @property
    def outbid(self) -> float: ...
    def watch_yield(self, on_yield: Callable[[], None]) -> None: ...
    def watch(self, *, on_end: Callable[[], None], on_renew: Callable[[], None]) -> None: ...


class SessionCalls:
    """One session under one lease. The first call opens it."""

    def __init__(self, holder: LeaseHolder, proof: IdentityProof, *, header: str = TOKEN_HEADER) -> None:
        """Store the arguments. The first call connects.

        Args:
            header: metadata key of the holder's token.
        """
        self._header_name = header
        self.is_open = False
        """True if anything has been called yet."""

        self.is_closed = False
        """Set when the device is given back: nothing more may be called."""

        self._holder = holder
        self._name = holder.device.name
        self._under_way: set[grpc.aio.Call] = set()
        self._takes_chunks = True
        """False once the agent has refused calls in chunks as unknown."""

        self._way = AgentWay(holder.device, proof)
        self._known_stub: SessionServiceStub | None = None

    @property
    def is_busy(self) -> bool:
        """True if a call is in progress."""
        return bool(self._under_way)

    def cancel(self) -> None:
        """Cancel all calls in progress."""
        for call in list(self._under_way):
            call.cancel()

    async def close(self) -> None:
        """Close the channel."""
        await self._way.close()

    async def open(self, *, timeout_sec: float | None = None) -> None:
        """Open the session, or extend it with the newest token."""
        request = session_service_pb2.OpenSessionRequest()
        await self._answer((await self._stub()).open_session(request, metadata=self._metadata(), timeout=timeout_sec))

    async def end(self) -> None:
        """End the session. Best effort: the tracker's fence ends it, too."""
        request = session_service_pb2.CloseSessionRequest()
        with contextlib.suppress(grpc.aio.AioRpcError):
            await (await self._stub()).close_session(request, metadata=self._header(), timeout=_CLOSE_TIMEOUT_SEC)

    async def find_missing(self, digests: Sequence[str]) -> set[str]:
        """Return the artifacts that the agent lacks."""
        missing: set[str] = set()
        for start in range(0, len(digests), _MOST_DIGESTS) or (0,):
            request = session_service_pb2.FindMissingRequest(digests=digests[start : start + _MOST_DIGESTS])
            missing.update(
                (await self._answer((await self._stub()).find_missing(request, metadata=self._metadata()))).digests
            )
        return missing

    async def make_upload_ticket(self) -> bytes:
        """Return a ticket for uploads by others.

        Raises:
            FleetError: the agent is too old for it.
        """
        request = session_service_pb2.MakeUploadTicketRequest()
        return (await self._answer((await self._stub()).make_upload_ticket(request, metadata=self._metadata()))).ticket

    async def put(self, messages: AsyncGenerator[session_service_pb2.PutArtifactRequest, None]) -> None:
        """Upload artifacts, see `fleet.client.upload`."""
        call = (await self._stub()).put_artifact(None, metadata=self._metadata())
        with self._watched(call):
            try:
                async with contextlib.aclosing(messages):
                    async for message in messages:
                        await call.write(message)
                await call.done_writing()
            except asyncio.InvalidStateError:
                pass  # the agent ended the call early; its error is read below
            except BaseException:  # also if cancelled or interrupted; raised again
                call.cancel()
                raise
            await call

    async def measure(self, trials: Iterable[Trial] | AsyncIterable[Trial]) -> AsyncGenerator[Measurement, None]:
        """Yield one measurement per trial, in order. Trials are sent ahead."""
        call = (await self._stub()).measure(None, metadata=self._metadata())
        stream = MeasureStream(call, trials, self._takes_trials_in_chunks)
        with self._watched(call):
            try:
                async with contextlib.aclosing(stream.results()) as results:
                    async for measurement in results:
                        yield measurement
            finally:
                call.cancel()
                await stream.close()

    async def tunnel(self, contents: AsyncIterable[bytes]) -> AsyncGenerator[bytes, None]:
        """Carry a session of TVM's RPC protocol: yield the device's bytes, first nothing once it is ready.

        Args:
            contents: the client's bytes, in pieces of at most `TUNNEL_BYTES`.
        """
        call = (await self._stub()).tunnel(None, metadata=self._metadata())
        sending = asyncio.create_task(_send_through(call, contents), name=f"fleet tunnel {self._name}")
        with self._watched(call):
            try:
                while (response := await read_next(call)) is not None:
                    yield response.content
            finally:
                call.cancel()
                sending.cancel()
                await asyncio.gather(sending, return_exceptions=True)

    async def call(self, call: Call) -> list[Tensor]:
        """Run a function once and return its outputs.

        Raises:
            MeasurementError: it failed there.
        """
        request = call_to_proto(call)
        stub = await self._stub()
        content = await self._in_chunks(stub.call_in_pieces, session_service_pb2.CallInPiecesRequest, request)
        if content is None:
            answer = await self._answer(stub.call(request, metadata=self._metadata()))
        else:
            answer = session_service_pb2.CallResponse.FromString(content)
            del content
        kind = error_kind_from_proto(answer.error)
        if kind is not None:
            raise failure(kind, printable(answer.error_message), answer.signal, self._name)
        return list(map(tensor_from_proto, answer.outputs))

    async def prove(self, order: ProofOrder) -> Proof:
        """Let the agent prove a time. The verdict is IMPOSSIBLE if the agent is too old for that."""
        request = proof_order_to_proto(order)
        stub = await self._stub()
        content = await self._in_chunks(stub.prove_in_pieces, session_service_pb2.ProveInPiecesRequest, request)
        if content is not None:
            return proof_from_proto(session_service_pb2.ProveResponse.FromString(content), order.claimed_sec)
        call = stub.prove(request, metadata=self._metadata())
        with self._watched(call):
            try:
                return proof_from_proto(await call, order.claimed_sec)
            except grpc.aio.AioRpcError as error:
                if error.code() is not grpc.StatusCode.UNIMPLEMENTED:
                    raise
        return Proof(verdict=ProofVerdict.IMPOSSIBLE, message=f"the agent of {self._name} is too old to prove times")

    async def program(
        self, digest: str, registers_yaml: str, *, partial: bool, force: bool, timeout_sec: float
    ) -> bool:
        """Program the fabric with an uploaded bitstream; return False if the fabric held it already."""
        request = session_service_pb2.ProgramRequest(
            bitstream_digest=digest,
            registers_yaml=registers_yaml,
            is_partial=partial,
            force=force,
            timeout=duration(timeout_sec),
        )
        answer = await self._answer((await self._stub()).program(request, metadata=self._metadata()))
        return answer.was_loaded

    async def logs(self) -> AsyncGenerator[str, None]:
        """Yield the worker's output, from now until the session ends."""
        call = (await self._stub()).watch_logs(session_service_pb2.WatchLogsRequest(), metadata=self._metadata())
        with self._watched(call):
            try:
                async for response in call:
                    yield response.text
            finally:
                call.cancel()

    def check_open(self) -> None:
        """Refuse calls on a closed session or an ended lease.

        Raises:
            FleetError: the lease is over, or the device was given back.
        """
        if self._holder.ended is not None:
            raise self._holder.ended
        if self.is_closed:
            raise DeviceClosed(f"{self._name} was given back ({self._holder.lease.name}); acquire it again to go on")

    async def _in_chunks(
        self, rpc: grpc.aio.StreamStreamMultiCallable[P, Any], make: Callable[..., P], request: Message
    ) -> bytes | None:
        """Return the serialised response of a chunked call, or None if the agent is too old for it.

        Args:
            make: the class of the request's chunks.
        """
        metadata = self._metadata()
        if not self._takes_chunks:
            return None
        call = rpc(None, metadata=metadata)
        with self._watched(call):
            try:
                return bytes(await exchange(call, request.SerializeToString(), make))
            except grpc.aio.AioRpcError as error:
                if error.code() is not grpc.StatusCode.UNIMPLEMENTED:
                    raise
            finally:
                call.cancel()
        self._takes_chunks = False
        return None

    async def _takes_trials_in_chunks(self) -> bool:
        request = session_service_pb2.OpenSessionRequest()
        return (await self._answer((await self._stub()).open_session(request, metadata=self._metadata()))).takes_pieces

    async def _answer(self, call: grpc.aio.UnaryUnaryCall[S, T]) -> T:
        with self._watched(call):
            return await call

    async def _stub(self) -> SessionServiceStub:
        """Return the agent's stub. The first call of a session connects, and may have to try two ways."""
        if self._known_stub is None:
            self._known_stub = session_service_stub(await self._way.channel())
        return self._known_stub

    def _metadata(self) -> tuple[tuple[str, bytes], ...]:
        """Return the metadata of every call."""
        self.check_open()
        self.is_open = True
        return self._header()

    def _header(self) -> tuple[tuple[str, bytes], ...]:
        return ((self._header_name, self._holder.token),)

    @contextlib.contextmanager
    def _watched(self, call: grpc.aio.Call) -> Iterator[None]:
        """Cancel `call` when the lease ends, and convert its exceptions to fleet errors."""
        self._under_way.add(call)
        try:
            yield
        except grpc.aio.AioRpcError as error:
            raise self._holder.ended or self._translated(error) from error
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if self._holder.ended is not None and not (task and task.cancelling()):
                raise self._holder.ended from None
            raise
        finally:
            self._under_way.discard(call)

    def _translated(self, error: grpc.aio.AioRpcError) -> FleetError:
        found = from_rpc_error(error, DeviceUnreachable)
        if (type(found) is FleetError and error.code() in _GONE) or isinstance(found, DeviceUnreachable):
            return DeviceUnreachable(
                f"{self._name} at {self._way.address} does not answer: {error.details() or error.code().name}; "
                "its agent may be restarting, try again or take another device"
            )
        return found


async def _send_through(
    call: grpc.aio.StreamStreamCall[session_service_pb2.TunnelRequest, session_service_pb2.TunnelResponse],
    contents: AsyncIterable[bytes],
) -> None:
    with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):  # the reader reports it
        async for content in contents:
            await call.write(session_service_pb2.TunnelRequest(content=content))
        await call.done_writing()


def failure(kind: ErrorKind, message: str, signal: int, device_name: str) -> MeasurementError:
    """Return the error for a function that failed on a device."""
    by = f" by signal {signal}" if signal else ""
    return MeasurementError(f"{kind.value}{by} on {device_name}: {message or 'no message'}", kind)
