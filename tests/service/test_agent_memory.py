"""Memory of an agent under requests that are made to exhaust it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import grpc.aio
import numpy as np
import pytest

from device_agents.serving.intake import Intake, share_bytes
from device_agents.workers.contents import CALL_CONTENT, check_structure, order_of, without_contents
from fleet.base.digests import digest_of
from fleet.client import arrays
from fleet.errors import DeviceUnreachable, FleetError, InvalidRequest, LimitReached
from fleet.testing import eventually
from fleet.v1 import measurement_pb2, session_service_pb2, tensor_pb2, worker_pb2
from fleet.wire.chunks import cut, join
from fleet.wire.measurements import tensor_from_proto
from fleet.wire.options import MAX_WHOLE_BYTES
from fleet.wire.rpc import from_rpc_error, read_next
from tests.service.agent_bench import Holder, request_for, serve_bench
from tests.service.hostile_site import Site
from tests.service.tensors import spec, tensor

EMPTY_ARGUMENT = bytes([session_service_pb2.CallRequest.ARGS_FIELD_NUMBER << 3 | 2, 0])
KIB, MIB = 1024, 1024 * 1024
WORKER_MIB = 64
MOST_GROWN_MIB, MOST_LEFT_MIB = 3 * WORKER_MIB, 96
OTHER = "devices/other"
CONFIG = f"""
devices:
- {{driver: simulated, name: sim, time_scale: 0}}
- {{driver: simulated, name: other, time_scale: 0}}
memory_limit_bytes: {WORKER_MIB * MIB}
jail: none
"""
ARTIFACT = b"latency_us:1"
FLOATS = 1024
FEW = "few: "


class Attacker:
    """A lease holder that sends raw bytes, as no stub does."""

    def __init__(self, holder: Holder) -> None:
        self._holder = holder

    async def send(
        self, method: str, content: bytes, compression: grpc.Compression = grpc.Compression.NoCompression
    ) -> type[FleetError] | None:
        """Send one request. Return the error that the agent raised, or None if it succeeded."""
        call = self._holder._channel.calls.unary_unary(f"/fleet.v1.SessionService/{method}")  # noqa: SLF001
        try:
            await call(content, metadata=self._holder.metadata, compression=compression)
        except grpc.aio.AioRpcError as error:
            return type(from_rpc_error(error, DeviceUnreachable))
        return None

    async def stream(self, method: str, contents: Iterable[bytes]) -> type[FleetError] | None:
        """Send the requests of a stream and read its responses."""
        make = self._holder._channel.calls.stream_stream  # noqa: SLF001
        call = make(f"/fleet.v1.SessionService/{method}")(_each(contents), metadata=self._holder.metadata)
        try:
            async for _ in call:
                pass
        except grpc.aio.AioRpcError as error:
            return type(from_rpc_error(error, DeviceUnreachable))
        return None


async def _each(contents: Iterable[bytes]) -> AsyncIterator[bytes]:
    for content in contents:
        yield content


def call_with(size_bytes: int, output_bytes: int = 4) -> session_service_pb2.CallRequest:
    """Return a call with input and output arrays."""
    given = tensor_pb2.Tensor(spec=spec("fill", size_bytes, dtype="int8").fill, content=bytes(size_bytes))
    args = [tensor_pb2.Argument(tensor=given), spec("output", output_bytes, dtype="int8")]
    return session_service_pb2.CallRequest(artifact_digest=digest_of(ARTIFACT), args=args)


def in_chunks(content: bytes) -> Iterator[bytes]:
    for size_bytes, chunk in cut([content], lambda *fields: fields):
        yield session_service_pb2.CallInPiecesRequest(size_bytes=size_bytes, piece=chunk).SerializeToString()


def trial_in_chunks(content: bytes) -> Iterator[bytes]:
    for size_bytes, chunk in cut([content], lambda *fields: fields):
        yield measurement_pb2.MeasureRequest(size_bytes=size_bytes, piece=chunk).SerializeToString()


def announced(size_bytes: int) -> bytes:
    return session_service_pb2.CallInPiecesRequest(size_bytes=size_bytes, piece=b"a").SerializeToString()


def attacks(attacker: Attacker) -> dict[str, Callable[[], Awaitable[object]]]:
    """Return the attacks by name."""
    legal = call_with(MAX_WHOLE_BYTES - 4 * KIB).SerializeToString()
    large = call_with((WORKER_MIB - 1) * MIB).SerializeToString()
    bomb = bytes(8 * MIB)
    medium = call_with(3 * MIB).SerializeToString()
    trial = measurement_pb2.MeasureRequest(args=call_with(MAX_WHOLE_BYTES - 4 * KIB).args).SerializeToString()
    small_trials = [measurement_pb2.MeasureRequest(args=[spec("fill", *[1] * 100_000)]).SerializeToString()] * 8
    large_trial = measurement_pb2.MeasureRequest(args=call_with(3 * MIB).args).SerializeToString()
    chunk = session_service_pb2.PutArtifactRequest(digest=digest_of(b"b"), size_bytes=4 * MIB, chunk=bytes(MIB))
    more = session_service_pb2.PutArtifactRequest(chunk=bytes(MIB))
    digests = session_service_pb2.FindMissingRequest(digests=[""] * (400 * KIB)).SerializeToString()
    return {
        "largest call": lambda: attacker.send("Call", legal),
        "call beyond the limit": lambda: attacker.send("Call", bytes(5 * MIB)),
        "call of empty arguments": lambda: attacker.send("Call", EMPTY_ARGUMENT * (2 * MIB - 1)),
        "compressed call": lambda: attacker.send("Call", bomb, grpc.Compression.Gzip),
        FEW + "largest call in chunks": lambda: attacker.stream("CallInPieces", in_chunks(large)),
        FEW + "largest answer in chunks": lambda: attacker.stream(
            "CallInPieces", in_chunks(call_with(8, 60 * MIB).SerializeToString())
        ),
        "calls in chunks": lambda: attacker.stream("CallInPieces", in_chunks(medium)),
        "answers in chunks": lambda: attacker.stream(
            "CallInPieces", in_chunks(call_with(8, 3 * MIB).SerializeToString())
        ),
        FEW + "empty arguments in chunks": lambda: attacker.stream(
            "CallInPieces", in_chunks(EMPTY_ARGUMENT * (8 * MIB))
        ),
        "announced only": lambda: attacker.stream("CallInPieces", [announced(2**40)]),
        "trials": lambda: attacker.stream("Measure", [trial]),
        "structure in trials": lambda: attacker.stream("Measure", small_trials),
        "trial in chunks": lambda: attacker.stream("Measure", trial_in_chunks(large_trial)),
        "digests": lambda: attacker.send("FindMissing", digests),
        "compressed digests": lambda: attacker.send("FindMissing", digests, grpc.Compression.Gzip),
        "uploads": lambda: attacker.stream("PutArtifact", [chunk.SerializeToString(), *[more.SerializeToString()] * 3]),
    }


@asynccontextmanager
async def agent_site(tmp_path: Path) -> AsyncIterator[Site]:
    """Run an agent with two simulated devices as a process."""
    (tmp_path / "kernels.so").write_bytes(b"")
    site = Site(tmp_path, "none")
    (tmp_path / "agent.yaml").write_text(CONFIG)
    await site.tracker.start()
    await site.start()
    try:
        yield site
    finally:
        assert site.agent is not None
        site.agent.terminate()
        await asyncio.to_thread(site.agent.communicate)
        await site.tracker.stop()


async def use(honest: Holder, count: list[int]) -> None:
    """Call an honest tenant's function until cancelled."""
    values = np.arange(FLOATS, dtype="float32")
    digest = await honest.put(ARTIFACT)
    request = session_service_pb2.CallRequest(artifact_digest=digest, args=[tensor(values), spec("output", FLOATS)])
    while True:
        response = await honest.call(request)
        assert response.error == 0, response.error_message
        count[0] += 1
        await asyncio.sleep(0.01)


@pytest.mark.slow
async def test_no_holder_takes_the_agents_memory(tmp_path: Path) -> None:
    """The agent grows by less than three times the largest request, and releases that memory.

    Requests of every kind and size come one after the other and 32 at once. A tenant of another device is served
    meanwhile. Before, six messages took 2.8 GiB.
    """
    async with agent_site(tmp_path) as site:
        holder, honest = site.holder(), Holder(site.port, site.tracker.token(1, device=OTHER))
        await holder.put(ARTIFACT)
        await holder.open()
        served = [0]
        using = asyncio.create_task(use(honest, served), name="honest tenant")
        await eventually(lambda: served[0] > 0, 30.0)
        before_mib = site.peak_mib()
        grown: dict[str, int] = {}
        refused: dict[str, object] = {}
        served_meanwhile = 0
        for name, attack in attacks(Attacker(holder)).items():
            served_before = served[0]
            refused[name] = await attack()
            await asyncio.gather(*(attack() for _ in range(2 if name.startswith(FEW) else 32)))
            grown[name] = site.peak_mib() - before_mib
            served_meanwhile += served[0] - served_before
            await eventually(lambda: served[0] > served_before, 10.0)  # noqa: B023 - waited for in this round
        using.cancel()
        await asyncio.wait([using])
        await holder.close()
        await honest.close()
        await eventually(lambda: site.resident_mib() - before_mib < MOST_LEFT_MIB, 20.0)

    assert max(grown.values()) < MOST_GROWN_MIB, grown
    assert served_meanwhile > len(grown)
    for name in ("call of empty arguments", "compressed call", "announced only", "digests", "compressed digests"):
        assert refused[name] is not None, name


async def test_large_arrays_come_and_go_in_chunks(tmp_path: Path) -> None:
    """A real agent and worker run a call, and return its outputs, of three times the size of one message."""
    async with serve_bench(tmp_path / "state") as bench:
        holder = bench.holding(epoch=1)
        digest = await holder.put(ARTIFACT)
        values = np.arange(3 * MAX_WHOLE_BYTES // 4, dtype="float32")
        request = session_service_pb2.CallRequest(
            artifact_digest=digest, args=[tensor(values), spec("output", len(values))]
        )
        call = holder.stub.call_in_pieces(_chunks_of(request), metadata=holder.metadata)
        content = await join(_answers_of(call), 64 * MIB)

    response = session_service_pb2.CallResponse.FromString(bytes(content))
    assert response.error == 0, response.error_message
    np.testing.assert_array_equal(values, arrays.array_of(tensor_from_proto(response.outputs[0])))


async def test_a_large_trial_comes_in_chunks(tmp_path: Path) -> None:
    """A large trial between small ones is measured, and each gets its result."""
    async with serve_bench(tmp_path / "state") as bench:
        holder = bench.holding(epoch=1)
        digest = await holder.put(ARTIFACT)
        small = request_for(digest, candidate_id="small")
        large = request_for(digest, candidate_id="large", args=call_with(5 * MIB).args)
        chunks = [
            measurement_pb2.MeasureRequest(size_bytes=size_bytes, piece=chunk)
            for size_bytes, chunk in cut([large.SerializeToString()], lambda *fields: fields)
        ]
        results = await holder.measure([small, *chunks, small, *chunks])

    assert [result.candidate_id for result in results] == ["small", "large", "small", "large"]
    assert [result.error for result in results] == [0] * 4


async def test_streams_of_a_session_are_bounded(tmp_path: Path) -> None:
    """A fifth Measure stream is refused while four are open, and accepted after one has ended."""
    async with serve_bench(tmp_path / "state") as bench:
        holder = bench.holding(epoch=1)
        digest = await holder.put(ARTIFACT)
        streams = [holder.stub.measure(None, metadata=holder.metadata) for _ in range(4)]
        for stream in streams:
            await stream.write(request_for(digest))
            assert await read_next(stream) is not None

        with pytest.raises(LimitReached):
            await holder.measure([request_for(digest)])

        streams[0].cancel()
        async with asyncio.timeout(10.0):
            while True:
                try:
                    await holder.measure([request_for(digest)])
                except LimitReached:
                    await asyncio.sleep(0.01)
                else:
                    break


async def test_calls_beyond_the_waiting_ones_are_refused() -> None:
    """Four calls hold places, sixteen wait, and the next is refused."""
    intake = Intake()
    held = asyncio.Event()

    async def call() -> None:
        async with intake.place("Call"):
            await held.wait()

    tasks = [asyncio.create_task(call()) for _ in range(4 + 16)]
    await asyncio.sleep(0)
    with pytest.raises(LimitReached):
        async with intake.place("CallInPieces"):
            pass
    async with intake.place("CloseSession"):  # never waits for them
        held.set()
    await asyncio.gather(*tasks)


def test_a_session_s_share_fits_the_machine() -> None:
    """The share shrinks with the number of devices, but a call with a few images always fits."""
    assert share_bytes(1, 32 * MIB) == 32 * MIB
    assert share_bytes(100_000, 32 * MIB) == 16 * MIB
    assert share_bytes(1, 2**40) <= 256 * MIB


def test_large_arrays_are_no_structure() -> None:
    """Contents of arrays are not counted; shapes, names and empty arguments are."""
    argument = tensor_pb2.Argument(tensor=tensor_pb2.Tensor(content=bytes(4 * MIB)))
    many = session_service_pb2.CallRequest(args=[argument] * 3).SerializeToString()

    check_structure(many, CALL_CONTENT)
    with pytest.raises(InvalidRequest):
        check_structure(many + EMPTY_ARGUMENT * MIB, CALL_CONTENT)
    with pytest.raises(InvalidRequest):
        check_structure(b"\x00" * MIB, CALL_CONTENT)


def test_a_request_without_its_arrays_is_all_but_them() -> None:
    """The agent parses the request without arrays, and forwards the arrays unchanged."""
    request = call_with(300 * KIB)
    request.function = "main"
    content = request.SerializeToString()

    head = session_service_pb2.CallRequest.FromString(without_contents(content, CALL_CONTENT))
    field = worker_pb2.WorkerRequest.CALL_FIELD_NUMBER
    order = worker_pb2.WorkerRequest.FromString(b"".join(order_of(field, content, "/artifact")))

    assert (order.call, order.artifact_path) == (request, "/artifact")
    request.args[0].tensor.ClearField("content")
    assert head == request


async def _chunks_of(request: session_service_pb2.CallRequest) -> AsyncIterator[object]:
    for content in in_chunks(request.SerializeToString()):
        yield session_service_pb2.CallInPiecesRequest.FromString(content)


async def _answers_of(call: object) -> AsyncIterator[session_service_pb2.CallInPiecesResponse]:
    while (chunk := await read_next(call)) is not None:  # type: ignore[arg-type]
        yield chunk
