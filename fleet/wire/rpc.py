"""gRPC for the fleet: stubs and handlers made from descriptors, and errors that keep their class in transit.

`add_service` and `Stub` read the service descriptors in `*_pb2`, so no generated `_pb2_grpc` is needed: those refuse
the older grpcio that some boards are stuck with.
"""

from __future__ import annotations

import asyncio
import errno
import functools
import inspect
import logging
import socket
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn, Self, TypeAlias, TypeVar, cast

import grpc
import grpc.aio
from google.protobuf import message_factory
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import DecodeError, Message

from fleet.base.network import address_of
from fleet.base.text import printable
from fleet.errors import (
    AlreadyExists,
    BuildError,
    BuildersUnavailable,
    Cancelled,
    ConfigError,
    DeviceError,
    DeviceUnreachable,
    DiskFull,
    FleetError,
    ImportFailed,
    InvalidRequest,
    LeaseError,
    LibraryError,
    LimitReached,
    MeasurementError,
    NotAllowed,
    NotFound,
    OptimizerUnavailable,
    QueueFull,
    TrackerUnavailable,
    Unauthenticated,
    WaitTimeout,
    error_classes,
)
from fleet.identity.credentials import TRACKER_NAME, PlainSecret, Proof
from fleet.wire import grpc_method_name_workaround
from fleet.wire.fair_timeout import fair_timeout
from fleet.wire.grpc_write_status_workaround import keep_server_status
from fleet.wire.options import AGENT_OPTIONS, CHANNEL_OPTIONS, is_large, max_bytes_of, server_options
from fleet.wire.options import MAX_MESSAGE_BYTES as MAX_MESSAGE_BYTES
from fleet.wire.options import MAX_REQUEST_BYTES as MAX_REQUEST_BYTES
from fleet.wire.peers import SECRET_HEADER, Guard, channel_security
from fleet.wire.peers import CallContext as CallContext

logger = logging.getLogger(__name__)

T = TypeVar("T")

if TYPE_CHECKING:
    Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]
else:
    Context = grpc.aio.ServicerContext

Header: TypeAlias = Sequence[tuple[str, bytes]]

ERROR_KEY = "fleet-error"
_LARGE_REQUEST_SEC = 600.0
"""Time limit of one of those: half a megabyte a second. Their callers have shown a lease's token."""

_MAX_ERROR_BYTES = 2_000
_GZIP = b"\x1f\x8b"
"""Magic number of gzip, which never starts a protobuf message."""
_STATUS: Mapping[type[FleetError], grpc.StatusCode] = {
    FleetError: grpc.StatusCode.INTERNAL,
    ConfigError: grpc.StatusCode.INVALID_ARGUMENT,
    InvalidRequest: grpc.StatusCode.INVALID_ARGUMENT,
    Unauthenticated: grpc.StatusCode.UNAUTHENTICATED,
    NotAllowed: grpc.StatusCode.PERMISSION_DENIED,
    NotFound: grpc.StatusCode.NOT_FOUND,
    AlreadyExists: grpc.StatusCode.ALREADY_EXISTS,
    LeaseError: grpc.StatusCode.FAILED_PRECONDITION,
    LimitReached: grpc.StatusCode.RESOURCE_EXHAUSTED,
    QueueFull: grpc.StatusCode.RESOURCE_EXHAUSTED,
    WaitTimeout: grpc.StatusCode.DEADLINE_EXCEEDED,
    Cancelled: grpc.StatusCode.CANCELLED,
    DeviceError: grpc.StatusCode.FAILED_PRECONDITION,
    DeviceUnreachable: grpc.StatusCode.UNAVAILABLE,
    BuildError: grpc.StatusCode.FAILED_PRECONDITION,
    ImportFailed: grpc.StatusCode.INVALID_ARGUMENT,
    MeasurementError: grpc.StatusCode.FAILED_PRECONDITION,
    LibraryError: grpc.StatusCode.FAILED_PRECONDITION,
    DiskFull: grpc.StatusCode.RESOURCE_EXHAUSTED,
    TrackerUnavailable: grpc.StatusCode.UNAVAILABLE,
    OptimizerUnavailable: grpc.StatusCode.UNAVAILABLE,
    BuildersUnavailable: grpc.StatusCode.UNAVAILABLE,
}
"""A class that is missing here gets the status of its base. Our own clients use the name of the class instead."""

_PEERS: Mapping[type[FleetError], str] = {
    TrackerUnavailable: "tracker",
    DeviceUnreachable: "agent",
    OptimizerUnavailable: "optimizer",
}
"""The peer of a call, by the error for its absence."""

EOF: Any = grpc.aio.EOF  # type: ignore[attr-defined]
"""Returned by `read` at the end of a stream."""


def make_channel(address: str, proof: Proof, server_name: str = TRACKER_NAME) -> Channel:
    """Open a channel to "host:port".

    Args:
        proof: credentials to present; their authority is trusted.
        server_name: required name in the other side's certificate: the tracker, or a certain agent.
    """
    if isinstance(proof, PlainSecret):
        return Channel(grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS), ((SECRET_HEADER, proof.secret),))
    options = [*CHANNEL_OPTIONS, ("grpc.ssl_target_name_override", server_name)]
    return Channel(grpc.aio.secure_channel(address, channel_security(proof), options=options))


def make_server(max_request_bytes: int = MAX_MESSAGE_BYTES) -> grpc.aio.Server:
    """Make a server with the fleet's limits and keepalive. Larger requests are refused before they are received."""
    return grpc_method_name_workaround.make_server(server_options(max_request_bytes))


def make_agent_server() -> grpc.aio.Server:
    """Make a server for an agent, with small messages and windows: large requests are sent in chunks."""
    options = {**dict(server_options(MAX_REQUEST_BYTES)), **AGENT_OPTIONS}
    return grpc_method_name_workaround.make_server(list(options.items()))


def bind(server: grpc.aio.Server, host: str, port: int, security: grpc.ServerCredentials | None, *, what: str) -> int:
    """Bind `server` and return its port; 0 asks for any free one.

    Args:
        security: see `fleet.wire.peers.server_security`; None: without TLS, for this machine alone.

    Raises:
        ConfigError: the port is in use or the address is not this machine's; `what` names the process that wanted it.
    """
    refused = _reason_not_to_bind(host, port) if port else None
    if refused is None:
        try:
            address = address_of(host, port)
            return server.add_secure_port(address, security) if security else server.add_insecure_port(address)
        except RuntimeError as error:
            refused = str(error)
    raise ConfigError(f"{what} cannot listen on {host}:{port}: {refused}; choose another port with --port")


def add_service(
    server: grpc.aio.Server, descriptor: ServiceDescriptor, servicer: object, guard: Guard | None = None
) -> None:
    """Register a servicer. Its methods are the rpcs in snake case: async functions (unary answer) or generators.

    A unary-request method gets (request, context), a stream-request method (async iterator, context). A FleetError
    raised by the method reaches the client as the same class, see `from_rpc_error`. Requests are neither received nor
    parsed before the guard and the servicer's optional `check_call(context)` accept the caller, and before the optional
    async context manager `place(method, context)` is entered. It is exited after the method.

    Args:
        guard: checks callers; None for the default guard, which requires TLS and the policy's roles.
    """
    guard = guard or Guard()
    handlers = {}
    check_call = getattr(servicer, "check_call", _check_nothing)
    for method in descriptor.methods:
        # On the wire a single request is a stream of one, but gRPC would receive it before the call starts.
        streams = "stream" if method.server_streaming else "unary"
        make_handler = getattr(grpc, f"stream_{streams}_rpc_method_handler")
        most_bytes = max_bytes_of(method.full_name)
        admission = _Admission(
            method=method,
            guard=guard,
            check_call=check_call,
            most_bytes=most_bytes,
            check_message=getattr(servicer, "check_message", _check_nothing),
            place=getattr(servicer, "place", _no_place),
        )
        handlers[method.name] = make_handler(
            _guarded(getattr(servicer, _snake(method.name)), admission),
            response_serializer=functools.partial(_encode, message_factory.GetMessageClass(method.output_type)),
        )
    grpc_method_name_workaround.add_methods(server, descriptor.full_name, handlers)


class Channel:
    """A connection to one server, with a header for each of its calls."""

    def __init__(self, channel: grpc.aio.Channel, header: Header = ()) -> None:
        self.calls = channel
        self.header = header

    async def close(self) -> None:
        """Close the channel; calls in progress are cancelled."""
        await self.calls.close(None)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class Stub:
    """Client side of one service: an attribute per rpc, in snake case, each a grpc.aio multicallable."""

    def __init__(self, channel: Channel, descriptor: ServiceDescriptor) -> None:
        for method in descriptor.methods:
            streams = (
                "stream" if method.client_streaming else "unary",
                "stream" if method.server_streaming else "unary",
            )
            make_call = getattr(channel.calls, "{}_{}".format(*streams))
            call = make_call(
                f"/{descriptor.full_name}/{method.name}",
                request_serializer=message_factory.GetMessageClass(method.input_type).SerializeToString,
                response_deserializer=message_factory.GetMessageClass(method.output_type).FromString,
            )
            if method.client_streaming:
                call = keep_server_status(call)
            setattr(self, _snake(method.name), _with_header(call, channel.header) if channel.header else call)

    def __getattr__(self, name: str) -> object:
        raise AttributeError(f"no rpc {name!r}")


def encoded(_: type[T], content: bytes) -> T:
    """Return a pre-encoded answer for a servicer, in place of a message of this type."""
    return cast("T", content)


async def read_next(call: grpc.aio.StreamStreamCall[Any, T] | grpc.aio.UnaryStreamCall[Any, T]) -> T | None:
    """Return the next answer of a stream; None at its end."""
    message = await call.read()
    return None if message is EOF else cast("T", message)


def status_of(cls: type[FleetError]) -> grpc.StatusCode:
    """Return the gRPC status that an error of this class ends a call with."""
    return next(_STATUS[base] for base in cls.__mro__ if base in _STATUS)


def from_rpc_error(error: grpc.aio.AioRpcError, unavailable: type[FleetError]) -> FleetError:
    """Return the FleetError that a server raised; `unavailable` when no server answered. Raise it `from error`."""
    trailers: Iterable[Any] = error.trailing_metadata() or ()
    name = next((str(value) for key, value in trailers if key == ERROR_KEY), None)
    details = printable(error.details() or error.code().name)
    cls = error_classes().get(name or "")
    if cls is not None:
        return cls(details)
    if error.code() is grpc.StatusCode.UNAVAILABLE:
        return unavailable(details)
    if error.code() is grpc.StatusCode.UNIMPLEMENTED:
        peer = _PEERS.get(unavailable, "server")
        return FleetError(
            f"the {peer} does not know this call: it is older than this command, or another server has its address; "
            f"update the {peer} or correct the address"
        )
    return FleetError(f"{error.code().name}: {details}")


class _Parsed:
    """The messages of a stream, parsed lazily. The first is kept until the stream is audited."""

    def __init__(self, contents: AsyncIterable[bytes], parse: Callable[[bytes], object]) -> None:
        self._contents = contents
        self._parse = parse
        self._iterator: AsyncIterator[bytes] | None = None
        self._first: object | None = None
        self._is_begun = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> object:
        if self._iterator is None:
            self._iterator = aiter(self._contents)  # not before: gRPC warns of an unused one
        message = self._parse(await anext(self._iterator))
        if not self._is_begun:
            self._is_begun, self._first = True, message
        return message

    async def let_go(self) -> None:
        """Release the iterator: gRPC's keeps the last message, which may be large, until garbage collection."""
        self._first = None
        if isinstance(self._iterator, AsyncGenerator):
            with suppress(RuntimeError):  # another task still waits for the next message, which will not arrive
                await self._iterator.aclose()

    def take_first(self) -> object | None:
        """Return the first message, once; None before its arrival."""
        first, self._first = self._first, None
        return first


@dataclass(frozen=True, slots=True, kw_only=True)
class _Admission:
    """Checks between a caller and a method."""

    method: MethodDescriptor
    guard: Guard
    check_call: Callable[[Any], None]
    """The servicer's hook that checks a call."""
    most_bytes: int
    """Maximum size of one message."""

    check_message: Callable[[str, bytes], None]
    """Hook of the servicer that refuses a message before it is parsed."""

    place: Callable[[str, Any], AbstractAsyncContextManager[None]]
    """Hook of the servicer that is entered before a message is read, given the method's name."""

    @asynccontextmanager
    async def admitted(self, context: Any) -> AsyncIterator[None]:
        """Admit an authorised caller once the servicer has capacity.

        Raises:
            FleetError: the caller is refused, or the capacity is exhausted.
        """
        self._admit(context)
        async with self.place(self.method.name, context):
            yield

    async def request(self, contents: AsyncIterable[bytes], context: Any) -> object:
        """Return the request of an admitted caller, or the stream of requests.

        Raises:
            FleetError: the caller is refused, or the request is missing or malformed.
        """
        messages = _Parsed(contents, self._parse)
        if self.method.client_streaming:
            return messages
        try:
            request = await self._only(messages)
        finally:
            await messages.let_go()
        self._admit(context)  # a call that began in time may end after its membership or lease
        return request

    def _admit(self, context: Any) -> None:
        self.guard.admit(self.method.full_name, context)
        self.check_call(context)

    async def _only(self, messages: _Parsed) -> object:
        most_sec = _LARGE_REQUEST_SEC if is_large(self.method.full_name) else self.guard.request_sec
        try:
            async with fair_timeout(most_sec):
                async for message in messages:
                    return message
        except TimeoutError:
            raise InvalidRequest(f"{self.method.name} was called, and no request came in {most_sec:g} s") from None
        raise InvalidRequest(f"{self.method.name} was called without a request")

    def _parse(self, content: bytes) -> object:
        if len(content) > self.most_bytes:
            raise InvalidRequest(f"a message of {len(content)} bytes; {self.method.name} takes {self.most_bytes}")
        self.check_message(self.method.name, content)
        try:
            return message_factory.GetMessageClass(self.method.input_type).FromString(content)
        except DecodeError as error:
            if content.startswith(_GZIP):
                raise InvalidRequest("the message is compressed; send it without gRPC's compression") from error
            raise InvalidRequest("a message cannot be read; is the other side of another fleet?") from error


def _encode(kind: type[Message], answer: Message | bytes) -> bytes:
    return answer if isinstance(answer, bytes) else kind.SerializeToString(answer)


def _check_nothing(*_: object) -> None:
    pass


def _no_place(*_: object) -> AbstractAsyncContextManager[None]:
    return nullcontext()


def _guarded(function: Callable[..., Any], admission: _Admission) -> Callable[[Any, Any], object]:
    """Wrap a servicer method: the caller is checked first, and an exception becomes a status for `from_rpc_error`."""
    method, guard = admission.method, admission.guard
    rpc = method.full_name

    def noted(request: object) -> object:
        return request.take_first() if isinstance(request, _Parsed) else request

    async def let_go(request: object) -> None:
        if isinstance(request, _Parsed):
            await request.let_go()

    if inspect.isasyncgenfunction(function):

        @functools.wraps(function)
        async def stream(content: Any, context: Any) -> AsyncIterator[object]:
            request, is_noted, serving = None, False, None
            try:
                async with admission.admitted(context):
                    request = await admission.request(content, context)
                    with guard.serving(context) as serving:
                        async for response in function(request, context):
                            if not is_noted:
                                guard.note(rpc, context, noted(request), None)
                                is_noted = True
                            yield response
            except asyncio.CancelledError:
                if serving is None or serving.error is None or not serving.is_cancelled_by_me():
                    raise
                guard.note(rpc, context, noted(request), serving.error)
                await _abort(context, serving.error, rpc)
            except Exception as error:  # noqa: BLE001 - outermost edge of an rpc: mapped or logged, never lost
                if not is_noted:
                    guard.note(rpc, context, noted(request), error)
                await _abort(context, error, rpc)
            finally:
                await let_go(request)

        return stream

    @functools.wraps(function)
    async def unary(content: Any, context: Any) -> object:
        request = None
        try:
            async with admission.admitted(context):
                request = await admission.request(content, context)
                answer = await function(request, context)
        except Exception as error:  # noqa: BLE001 - outermost edge of an rpc: mapped or logged, never lost
            guard.note(rpc, context, noted(request), error)
            await _abort(context, error, rpc)
        else:
            guard.note(rpc, context, noted(request), None)
            return answer
        finally:
            await let_go(request)

    return unary


def _with_header(call: Callable[..., Any], header: Header) -> Callable[..., Any]:
    def with_header(*args: Any, metadata: Header = (), **options: Any) -> Any:
        return call(*args, metadata=(*metadata, *header), **options)

    return with_header


async def _abort(context: Context, error: Exception, full_name: str) -> NoReturn:
    if isinstance(error, grpc.aio.AbortError):
        raise error
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        error = DiskFull(
            f"no space left for {error.filename or 'a file'} on {socket.gethostname()}; free some and try again"
        )
    if isinstance(error, FleetError):
        _forget_frames(error)
        await context.abort(status_of(type(error)), _cut(str(error)), ((ERROR_KEY, type(error).__name__),))
    logger.error("rpc failed", extra={"rpc": full_name}, exc_info=error)
    await context.abort(grpc.StatusCode.INTERNAL, _cut(f"{type(error).__name__}: {error}"))


def _forget_frames(error: BaseException) -> None:
    """Drop the traceback of an error: its frames may keep a large refused message alive."""
    found: BaseException | None = error
    while found is not None:
        found.__traceback__ = None
        found = found.__cause__ or found.__context__


def _cut(text: str) -> str:
    """Truncate a text to fit a header: a byte may take three there, and gRPC refuses headers beyond 8 KiB."""
    return text.encode(errors="replace")[:_MAX_ERROR_BYTES].decode(errors="ignore")


def _reason_not_to_bind(host: str, port: int) -> str | None:
    """Try the port with a plain socket first: its errors have an errno, unlike gRPC's."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            return "the port is in use" if error.errno == errno.EADDRINUSE else str(error.strerror or error)
    return None


def _snake(name: str) -> str:
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in name).lstrip("_")
