"""The shared cost model from an optimizer, for those who cannot reach its library."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from fleet.client.snapshot_calls import watch_snapshots
from fleet.cost_model.stored import FEATURE_VERSION
from fleet.domain.model_snapshots import ModelSnapshot
from fleet.errors import InvalidRequest, QueueFull
from fleet.identity.credentials import MEMBER_NAME, Credentials
from fleet.identity.roles import Role
from fleet.identity.store import CredentialStore
from fleet.library import Library, NewSnapshot
from fleet.optimizer.snapshot_service import ServingAddress, SnapshotServicer, serving_snapshots
from fleet.optimizer.tasks.train import TARGET_KINDS
from fleet.optimizer.trainer import follow_service
from fleet.testing import eventually
from fleet.testing.identity import credentials, know_tracker, security
from fleet.v1 import snapshot_service_pb2
from fleet.wire import rpc, stubs
from fleet.wire.model_snapshots import model_snapshot_from_proto, model_snapshot_to_proto
from tests.service.test_optimizer_loop import bench

GOOD = ModelSnapshot(
    digest=f"sha256:{hashlib.sha256(b'good').hexdigest()}",
    content=b"good",
    feature_version=FEATURE_VERSION,
    target_kinds=("cuda", "llvm"),
    record_count=64,
    made_at_sec=1.5,
)


@pytest.fixture(autouse=True)
def joined() -> Iterator[None]:
    """This account is a member of the fleet of the test's authority, by the address of some tracker."""
    know_tracker("tracker.test:1")
    yield
    CredentialStore().forget("tracker.test:1")


def user() -> Credentials:
    return _USER


_USER = credentials(Role.USER)


@pytest.fixture
def library(tmp_path: Path) -> Iterator[Library]:
    with Library.open(tmp_path / "library.sqlite") as library:
        yield library


def publish(library: Library, content: bytes) -> None:
    term = library.memory.stand("test", lease_sec=60)
    assert term is not None
    term.publish(
        NewSnapshot(
            content=content,
            feature_version=FEATURE_VERSION,
            record_count=64,
            workloads={},
            last_record_id=1,
            metrics={TARGET_KINDS: ["llvm"]},
        )
    )
    term.close()


@asynccontextmanager
async def served(servicer: SnapshotServicer, port: int = 0) -> AsyncIterator[str]:
    """Serve without a library."""
    server = rpc.make_server()
    stubs.add_snapshot_service(server, servicer)
    address = f"127.0.0.1:{rpc.bind(server, '127.0.0.1', port, security(Role.USER), what='the test')}"
    await server.start()
    try:
        yield address
    finally:
        await server.stop(None)


@asynccontextmanager
async def reading(address: str) -> AsyncIterator[list[bytes]]:
    """Read in the background; yield the contents that came."""
    found: list[bytes] = []

    task = asyncio.create_task(follow_service(address, lambda snapshot: found.append(snapshot.content)))
    try:
        yield found
    finally:
        task.cancel()
        await asyncio.wait([task])


@pytest.mark.slow
async def test_a_reader_gets_the_snapshot_in_use_and_each_that_follows(library: Library) -> None:
    """Without the library: what is published there comes by itself."""
    await asyncio.to_thread(publish, library, b"first")
    async with serving_snapshots(library.memory, ServingAddress(), user) as address, reading(address) as found:
        await eventually(lambda: found == [b"first"])
        await asyncio.to_thread(publish, library, b"second")
        await eventually(lambda: found == [b"first", b"second"])


@pytest.mark.slow
async def test_a_reader_comes_back_when_the_optimizer_does() -> None:
    """What it has is not sent again, what is new is."""
    servicer = SnapshotServicer()
    servicer.publish(GOOD)
    async with served(servicer) as address:
        async with reading(address) as found:
            await eventually(lambda: found == [b"good"])
        port = int(address.rpartition(":")[2])
    newer = replace(GOOD, content=b"newer", digest=f"sha256:{hashlib.sha256(b'newer').hexdigest()}")
    async with reading(address) as found:
        async with served(servicer, port):
            await eventually(lambda: found == [b"good"])
        async with served(servicer, port):
            servicer.publish(newer)
            await eventually(lambda: found == [b"good", b"newer"])


async def test_a_snapshot_that_is_not_what_its_digest_says_is_not_used(caplog: pytest.LogCaptureFixture) -> None:
    """It is dropped, said in the log, and the next one is taken."""
    servicer = SnapshotServicer()
    servicer.publish(replace(GOOD, content=b"forged", digest="sha256:0"))
    with caplog.at_level(logging.WARNING):
        async with served(servicer) as address, reading(address) as found:
            await eventually(lambda: "snapshot refused" in caplog.text)
            servicer.publish(GOOD)
            await eventually(lambda: found == [b"good"])


async def test_features_of_another_version_are_refused() -> None:
    """What predicts from other features would be wrong without a word."""
    async with served(SnapshotServicer()) as address:
        with pytest.raises(InvalidRequest, match="use the same version"):
            await anext(watch_snapshots(address, "other features"))


async def test_readers_are_bounded() -> None:
    """One more is refused, and may come when another has gone."""
    servicer = SnapshotServicer(most_readers=1)
    servicer.publish(GOOD)
    request = snapshot_service_pb2.WatchSnapshotsRequest(feature_version=FEATURE_VERSION)
    async with served(servicer) as address:
        async with reading(address) as found:
            await eventually(lambda: found)
            channel = rpc.make_channel(address, credentials(Role.USER), MEMBER_NAME)
            call = stubs.snapshot_service_stub(channel).watch_snapshots(request)
            with pytest.raises(rpc.grpc.aio.AioRpcError) as refused:
                await call.read()
            assert isinstance(rpc.from_rpc_error(refused.value, InvalidRequest), QueueFull)
            await channel.close()
        async with reading(address) as again:
            await eventually(lambda: again == [b"good"])


@pytest.mark.slow
async def test_a_search_asks_the_snapshot_of_an_optimizer_elsewhere(tmp_path: Path) -> None:
    """The job's own library has none."""
    servicer = SnapshotServicer()
    servicer.publish(GOOD)
    async with served(servicer) as address, bench(tmp_path) as job:
        following = asyncio.create_task(follow_service(address, job.loop.use_snapshot))
        await eventually(lambda: job.core.progress.snapshot == GOOD.digest)
        await job.loop.measure_static()
        following.cancel()
        await asyncio.wait([following])

        assert [task.shared for task in job.pool.searches] == [b"good"]


def test_a_snapshot_is_the_same_after_the_wire() -> None:
    """Every field of it."""
    assert model_snapshot_from_proto(model_snapshot_to_proto(GOOD)) == GOOD


@pytest.mark.parametrize("spoil", [lambda s: replace(s, content=b""), lambda s: replace(s, digest="sha256:0")])
def test_what_has_another_digest_is_refused(spoil: Callable[[ModelSnapshot], ModelSnapshot]) -> None:
    """Where it enters."""
    with pytest.raises(InvalidRequest, match="another digest"):
        model_snapshot_from_proto(model_snapshot_to_proto(spoil(GOOD)))
