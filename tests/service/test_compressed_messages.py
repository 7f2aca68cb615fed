"""No server of the fleet decompresses a message, in any compression of gRPC."""

from __future__ import annotations

from collections.abc import AsyncIterator

import grpc
import grpc.aio
import pytest

from fleet.errors import FleetError, InvalidRequest
from fleet.identity.credentials import PlainSecret
from fleet.v1 import fleet_service_pb2
from fleet.wire import rpc, stubs
from fleet.wire.peers import SECRET_HEADER, Guard
from tests.service.identity_parts import Answering, get_fleet

SECRET = PlainSecret(secret=b"known to both")
_COMPRESSIONS = [grpc.Compression.Gzip, grpc.Compression.Deflate]


class _Noting(Answering):
    def __init__(self) -> None:
        self.selectors: list[str] = []

    async def check_selector(
        self, request: fleet_service_pb2.CheckSelectorRequest, context: object
    ) -> fleet_service_pb2.CheckSelectorResponse:
        self.selectors.append(request.selector)
        return fleet_service_pb2.CheckSelectorResponse(device_count=1)


@pytest.fixture
async def servicer() -> _Noting:
    return _Noting()


@pytest.fixture(params=[rpc.MAX_MESSAGE_BYTES, rpc.MAX_REQUEST_BYTES], ids=["agent", "tracker"])
async def address(servicer: _Noting, request: pytest.FixtureRequest) -> AsyncIterator[str]:
    server = rpc.make_server(request.param)
    stubs.add_fleet_service(server, servicer, Guard(secret=lambda: SECRET))
    port = rpc.bind(server, "127.0.0.1", 0, None, what="the test")
    await server.start()
    yield f"127.0.0.1:{port}"
    await server.stop(None)


@pytest.mark.parametrize("compression", _COMPRESSIONS, ids=lambda each: each.name)
async def test_a_compressed_message_is_refused_as_it_came(
    address: str, servicer: _Noting, compression: grpc.Compression
) -> None:
    """Six messages of 255 kB, each 250 MiB of one byte decompressed, took 2.8 GiB of an agent's memory."""
    bomb = fleet_service_pb2.CheckSelectorRequest(selector="a" * (512 * 1024)).SerializeToString()

    async with rpc.make_channel(address, SECRET) as channel:
        call = channel.calls.unary_unary("/fleet.v1.FleetService/CheckSelector")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(bomb, compression=compression, metadata=((SECRET_HEADER, SECRET.secret),), timeout=30.0)
        await get_fleet(channel)  # which goes on

    assert isinstance(rpc.from_rpc_error(caught.value, FleetError), InvalidRequest)
    assert servicer.selectors == []


async def test_the_refusal_names_compression(address: str) -> None:
    """The message tells authors of other clients to turn compression off."""
    async with rpc.make_channel(address, SECRET) as channel:
        call = channel.calls.unary_unary("/fleet.v1.FleetService/CheckSelector")
        with pytest.raises(grpc.aio.AioRpcError, match="compressed; send it without"):
            await call(
                fleet_service_pb2.CheckSelectorRequest(selector="a" * 5_000).SerializeToString(),
                compression=grpc.Compression.Gzip,
                metadata=((SECRET_HEADER, SECRET.secret),),
                timeout=30.0,
            )
