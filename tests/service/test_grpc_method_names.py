"""A server survives any method name that its peers call."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import grpc
import grpc.aio
import pytest

from fleet.identity.credentials import PlainSecret
from fleet.wire import grpc_method_name_workaround, rpc, stubs
from fleet.wire.peers import SECRET_HEADER, Guard
from tests.fuzz import frames
from tests.service.identity_parts import Answering, get_fleet

SECRET = PlainSecret(secret=b"known to both")


@pytest.fixture
async def address() -> AsyncIterator[str]:
    server = rpc.make_server()
    stubs.add_fleet_service(server, Answering(), Guard(secret=lambda: SECRET))
    port = rpc.bind(server, "127.0.0.1", 0, None, what="the test")
    await server.start()
    yield f"127.0.0.1:{port}"
    await server.stop(None)


async def test_a_method_name_of_invalid_utf8_does_not_end_the_server(address: str) -> None:
    """A hundred bytes from any peer past TLS, which at a tracker means everybody, once closed its port for good."""
    call = frames.headers("/fleet.v1.\udcff/GetFleet", [(SECRET_HEADER, SECRET.secret)]) + frames.message(b"")
    async with rpc.make_channel(address, SECRET) as before:
        await get_fleet(before)
        host, _, port = address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))

        writer.write(frames.greeting() + call)
        writer.write_eof()
        assert await reader.read()  # until the server has hung up
        writer.close()

        await get_fleet(before)
    async with rpc.make_channel(address, SECRET) as after:
        await get_fleet(after)


@pytest.mark.parametrize(
    ("version", "expected"),
    [("1.60.0", False), ("1.83.2", False), ("1.84.0", True), ("1.85.1", True), ("1.90.0.dev1", True), ("2.0.0", True)],
)
def test_versions_that_take_all_names_in_one_loop_are_known(version: str, expected: bool) -> None:
    """A server with a version that cannot be protected warns when it is made."""
    assert expected == grpc_method_name_workaround.needs_hook(version)


async def test_a_missing_method_is_reported(address: str) -> None:
    """The error comes at once, as newer clients of an older server expect."""
    async with rpc.make_channel(address, SECRET) as channel:
        for path in ("/fleet.v1.FleetService/NotYetWritten", "/fleet.v2.FleetService/GetFleet"):
            call = channel.calls.unary_unary(path)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call(b"", timeout=30.0)
            assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
