"""Memory of an agent while a holder sends it requests that are made to take much."""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc.aio
import pytest

from device_agents.workers.answers import check_arguments
from fleet.errors import DeviceUnreachable, InvalidRequest
from fleet.v1 import session_service_pb2, tensor_pb2
from fleet.wire.rpc import from_rpc_error
from tests.service.agent_bench import Holder
from tests.service.hostile_site import Site

ARGS = session_service_pb2.CallRequest.ARGS_FIELD_NUMBER
EMPTY_ARGUMENT = bytes([ARGS << 3 | 2, 0])
MIB = 1024 * 1024
MOST_GROWN_MIB = 192


async def send(holder: Holder, content: bytes) -> Exception:
    """Send bytes as the request of a Call; return what the agent raised."""
    call = holder._channel.calls.unary_unary("/fleet.v1.SessionService/Call")  # noqa: SLF001 - bytes that no stub sends
    try:
        await call(content, metadata=holder.metadata)
    except grpc.aio.AioRpcError as error:
        return from_rpc_error(error, DeviceUnreachable)
    raise AssertionError("the agent took it")


@pytest.mark.slow
async def test_very_many_empty_arguments_are_refused_unparsed(tmp_path: Path) -> None:
    """Twelve requests of 16 MiB, one after the other: none is kept until garbage is collected. Parsed, each
    of them takes a gigabyte."""
    (tmp_path / "kernels.so").write_bytes(b"")
    site = Site(tmp_path, "none")
    await site.tracker.start()
    await site.start()
    holder = site.holder()
    await holder.open()
    before = site.peak_mib()

    errors = [await send(holder, EMPTY_ARGUMENT * (8 * MIB)) for _ in range(12)]

    grown_mib = site.peak_mib() - before
    await holder.close()
    assert site.agent is not None
    site.agent.terminate()
    await asyncio.to_thread(site.agent.communicate)
    await site.tracker.stop()
    assert {InvalidRequest} == {type(error) for error in errors}, errors
    assert grown_mib < MOST_GROWN_MIB


def test_large_arrays_are_no_structure() -> None:
    """Contents count for nothing; shapes, names and empty arguments do."""
    argument = tensor_pb2.Argument(tensor=tensor_pb2.Tensor(content=bytes(4 * MIB)))
    many = session_service_pb2.CallRequest(args=[argument] * 3).SerializeToString()

    check_arguments(many, ARGS)
    with pytest.raises(InvalidRequest):
        check_arguments(many + EMPTY_ARGUMENT * MIB, ARGS)
    with pytest.raises(InvalidRequest):
        check_arguments(b"\x00" * MIB, ARGS)
