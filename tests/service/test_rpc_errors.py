"""Errors cross the wire as themselves, through a real server."""

from __future__ import annotations

import asyncio
import contextlib
import errno
from collections.abc import AsyncIterator, Awaitable, Callable
from types import NoneType
from typing import Any

import grpc.aio
import pytest
from google.protobuf.message import Message

from fleet.errors import (
    CacheFull,
    ConfigError,
    DeviceClosed,
    DeviceUnreachable,
    DiskFull,
    ErrorKind,
    FleetError,
    MeasurementError,
    NotAllowed,
    OptimizerUnavailable,
    TrackerUnavailable,
    error_classes,
)
from fleet.identity.roles import Role
from fleet.testing import serve_tracker
from fleet.testing.identity import credentials, security
from fleet.v1 import agent_service_pb2, fleet_service_pb2, lease_service_pb2, session_service_pb2
from fleet.wire.rpc import EOF, Stub, add_service, bind, from_rpc_error, make_channel, make_server, status_of
from fleet.wire.stubs import lease_service_stub

SERVICE = fleet_service_pb2.DESCRIPTOR.services_by_name["FleetService"]


class Raising:
    """Raises the given error from every rpc."""

    error: Exception

    async def get_fleet(self, request: object, context: object) -> object:
        raise self.error

    async def get_history(self, request: object, context: object) -> object:
        raise self.error

    async def get_usage(self, request: object, context: object) -> object:
        raise self.error

    async def check_selector(self, request: object, context: object) -> object:
        raise self.error

    async def watch_fleet(self, request: object, context: object) -> AsyncIterator[object]:
        yield fleet_service_pb2.WatchFleetResponse()
        raise self.error


@pytest.fixture
async def served() -> AsyncIterator[tuple[Raising, Stub]]:
    server, servicer = make_server(), Raising()
    add_service(server, SERVICE, servicer)
    port = bind(server, "127.0.0.1", 0, security(Role.TRACKER), what="the test")
    await server.start()
    channel = make_channel(f"127.0.0.1:{port}", credentials(Role.AGENT))
    yield servicer, Stub(channel, SERVICE)
    await channel.close()
    await server.stop(0)


async def get(stub: Stub) -> None:
    await stub.get_fleet(fleet_service_pb2.GetFleetRequest())


async def watch(stub: Stub) -> None:
    async for _ in stub.watch_fleet(fleet_service_pb2.WatchFleetRequest()):
        pass


async def caught(calling: Awaitable[None]) -> FleetError:
    with pytest.raises(grpc.aio.AioRpcError) as info:
        await calling
    return from_rpc_error(info.value, TrackerUnavailable)


@pytest.mark.parametrize(
    ("unavailable", "peer"),
    [(TrackerUnavailable, "tracker"), (DeviceUnreachable, "agent"), (OptimizerUnavailable, "optimizer")],
)
async def test_an_older_peer_that_does_not_know_a_call_is_named(unavailable: type[FleetError], peer: str) -> None:
    """Every call of an older release ends in the same sentence, with the next step."""
    server = make_server()
    port = bind(server, "127.0.0.1", 0, security(Role.TRACKER), what="the test")
    await server.start()
    async with make_channel(f"127.0.0.1:{port}", credentials(Role.AGENT)) as channel:
        for rpc in (get, watch):
            with pytest.raises(grpc.aio.AioRpcError) as info:
                await rpc(Stub(channel, SERVICE))

            found = str(from_rpc_error(info.value, unavailable))
            assert found.startswith(f"the {peer} does not know this call: it is older than this command")
            assert f"update the {peer}" in found
    await server.stop(0)


@pytest.mark.parametrize("rpc", [get, watch])
async def test_every_class_survives_the_wire(
    served: tuple[Raising, Stub], rpc: Callable[[Stub], Awaitable[None]]
) -> None:
    """The client catches the server's error with its class and text."""
    servicer, stub = served
    for cls in error_classes().values():
        servicer.error = cls(f"a {cls.__name__} about devices/x")

        with pytest.raises(grpc.aio.AioRpcError) as info:
            await rpc(stub)

        found = from_rpc_error(info.value, TrackerUnavailable)
        assert status_of(cls) is info.value.code() is not grpc.StatusCode.OK
        assert cls is type(found)
        assert f"a {cls.__name__} about devices/x" == str(found)
    assert MeasurementError("x").kind is ErrorKind.RUN_FAILED


_RACES = 50
"""Calls in a test of a race that is lost by about half of them."""


async def write_on_and_on(call: Any, message: Message) -> None:
    """Write the same message until the call has ended."""
    with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
        while True:
            await call.write(message)


class Attaching:
    """Ends every stream at its first message, without an error or with this one."""

    def __init__(self, error: FleetError | None) -> None:
        self._error = error

    async def attach(self, requests: AsyncIterator[object], context: object) -> AsyncIterator[object]:
        async for _ in requests:
            break
        if self._error is not None:
            raise self._error
        for response in ():
            yield response


@pytest.mark.parametrize(
    ("raised", "expected"),
    [(DeviceClosed("the agent is shutting down"), DeviceClosed), (None, NoneType)],
    ids=["with an error", "without an error"],
)
async def test_a_stream_that_ends_during_a_write_has_the_servers_status(
    raised: FleetError | None, expected: type[object]
) -> None:
    """The failed write adds no error."""
    server = make_server()
    service = agent_service_pb2.DESCRIPTOR.services_by_name["AgentService"]
    add_service(server, service, Attaching(raised))
    port = bind(server, "127.0.0.1", 0, security(Role.TRACKER), what="the test")
    await server.start()
    found: list[FleetError | None] = []
    async with make_channel(f"127.0.0.1:{port}", credentials(Role.AGENT)) as channel:
        for _ in range(_RACES):
            call = Stub(channel, service).attach()
            writing = asyncio.create_task(write_on_and_on(call, agent_service_pb2.AttachRequest()))
            try:
                while await call.read() is not EOF:
                    pass
                found.append(None)
            except grpc.aio.AioRpcError as error:
                found.append(from_rpc_error(error, TrackerUnavailable))
            await writing
    await server.stop(0)

    assert {type(error) for error in found} == {expected}


async def test_a_caller_refused_before_its_first_message_hears_why() -> None:
    """The server refuses the call while its first messages are written."""
    found = []
    async with serve_tracker() as served, make_channel(served.address, credentials(Role.AGENT)) as channel:
        for _ in range(_RACES):
            call = lease_service_stub(channel).open_leases(None)
            await write_on_and_on(call, lease_service_pb2.OpenLeasesRequest())
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call.read()
            found.append(from_rpc_error(caught.value, TrackerUnavailable))

    assert {type(error) for error in found} == {NotAllowed}


class Refusing:
    """Ends every call at its first message."""

    async def put_artifact(self, requests: AsyncIterator[object], context: object) -> None:
        async for _ in requests:
            raise CacheFull("no room")

    def check_call(self, context: object) -> None: ...

    def check_message(self, *_: object) -> None: ...

    def place(self, *_: object) -> contextlib.AbstractAsyncContextManager[None]:
        return contextlib.nullcontext()

    def __getattr__(self, name: str) -> object:
        return self.put_artifact


async def test_an_upload_refused_half_way_has_the_servers_status() -> None:
    """The server reads nothing more of such a call, so the client first sees only a failed write."""
    server = make_server()
    service = session_service_pb2.DESCRIPTOR.services_by_name["SessionService"]
    add_service(server, service, Refusing())
    port = bind(server, "127.0.0.1", 0, security(Role.TRACKER), what="the test")
    await server.start()
    found = []
    chunk = session_service_pb2.PutArtifactRequest(chunk=bytes(2**20))
    async with make_channel(f"127.0.0.1:{port}", credentials(Role.USER)) as channel:
        for _ in range(_RACES):
            call = Stub(channel, service).put_artifact()
            await write_on_and_on(call, chunk)
            with pytest.raises(grpc.aio.AioRpcError) as caught_error:
                await call
            found.append(from_rpc_error(caught_error.value, TrackerUnavailable))
    await server.stop(0)

    assert {type(error) for error in found} == {CacheFull}


async def test_a_full_disk_is_reported(served: tuple[Raising, Stub]) -> None:
    """ENOSPC anywhere in a service becomes DiskFull."""
    served[0].error = OSError(errno.ENOSPC, "No space left on device", "/some/file")

    found = await caught(get(served[1]))

    assert isinstance(found, DiskFull)
    assert "/some/file" in str(found)


async def test_a_bug_is_internal_and_logged(served: tuple[Raising, Stub], caplog: pytest.LogCaptureFixture) -> None:
    """An unexpected exception reaches the client as one line, and the server's log with its traceback."""
    served[0].error = ZeroDivisionError("division by zero")

    found = await caught(get(served[1]))

    assert FleetError is type(found)
    assert "ZeroDivisionError" in str(found)
    assert "rpc failed" in caplog.text
    assert "Traceback" in caplog.text


async def test_no_server_is_unavailable() -> None:
    """Without a server, the client raises the error class of the caller's choice."""
    channel = make_channel("127.0.0.1:1", credentials(Role.USER))
    with pytest.raises(grpc.aio.AioRpcError) as info:
        await Stub(channel, SERVICE).get_fleet(fleet_service_pb2.GetFleetRequest(), timeout=2)
    await channel.close()

    assert isinstance(from_rpc_error(info.value, TrackerUnavailable), TrackerUnavailable)


async def test_a_port_in_use_is_named() -> None:
    """Two servers never share a port silently."""
    first, second = make_server(), make_server()
    port = bind(first, "127.0.0.1", 0, None, what="the first")
    await first.start()

    with pytest.raises(ConfigError, match=f"the second cannot listen on 127.0.0.1:{port}: the port is in use"):
        bind(second, "127.0.0.1", port, None, what="the second")
    await first.stop(0)
