"""The shared cost model from an optimizer, for readers that cannot reach its library."""

from __future__ import annotations

import asyncio
import datetime as dt
import hashlib
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

import grpc.aio
import pytest

from fleet.client.identity_calls import IdentityCalls
from fleet.client.revoked_keys import guarded_by
from fleet.client.snapshot_calls import watch_snapshots
from fleet.cost_model.feature_codec import FEATURE_VERSION, TARGET_KINDS
from fleet.domain.model_snapshots import ModelSnapshot
from fleet.errors import (
    FleetError,
    InvalidRequest,
    KeyRevoked,
    LimitReached,
    OptimizerUnavailable,
    TrackerUnavailable,
)
from fleet.identity.certificates import issue_own, make_authority, make_key, own_key_id
from fleet.identity.credentials import MEMBER_NAME, Credentials
from fleet.identity.roles import Role
from fleet.identity.store import CredentialStore
from fleet.library import Library, NewSnapshot
from fleet.optimizer.serving.cost_model_service import CostModelServicer, ServingAddress, serving_snapshots
from fleet.optimizer.trainer import follow_service
from fleet.testing import eventually, serve_tracker
from fleet.testing.identity import credentials, know_tracker, security
from fleet.v1 import cost_model_service_pb2
from fleet.wire import rpc, stubs
from fleet.wire.model_snapshots import model_snapshot_from_proto, model_snapshot_to_proto, serve_cost_model
from fleet.wire.peers import Guard
from tests.service.test_optimizer_loop import bench

Request: TypeAlias = cost_model_service_pb2.WatchSnapshotsRequest
Response: TypeAlias = cost_model_service_pb2.WatchSnapshotsResponse
Watching: TypeAlias = grpc.aio.UnaryStreamCall[Request, Response]

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
    """Make this account a member of the fleet of the test's authority, with the address of a tracker."""
    know_tracker("tracker.test:1")
    yield
    CredentialStore().forget("tracker.test:1")


def user() -> Credentials:
    return _USER


_USER = credentials(Role.USER)


async def content_of(call: Watching) -> bytes:
    answer = await call.read()
    assert isinstance(answer, Response)
    return answer.snapshot.content


async def error_of(call: Watching) -> FleetError:
    with pytest.raises(grpc.aio.AioRpcError) as ended:
        await call.read()
    return rpc.from_rpc_error(ended.value, OptimizerUnavailable)


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
async def served(
    servicer: CostModelServicer,
    port: int = 0,
    register: Callable[[grpc.aio.Server, CostModelServicer], None] = serve_cost_model,
) -> AsyncIterator[str]:
    """Serve without a library."""
    server = rpc.make_server()
    register(server, servicer)
    address = f"127.0.0.1:{rpc.bind(server, '127.0.0.1', port, security(Role.USER), what='the test')}"
    await server.start()
    try:
        yield address
    finally:
        await server.stop(None)


@asynccontextmanager
async def watching(address: str, proof: Credentials) -> AsyncIterator[Watching]:
    """Watch snapshots with these credentials."""
    request = Request(feature_version=FEATURE_VERSION)
    async with rpc.make_channel(address, proof, MEMBER_NAME) as channel:
        call = stubs.cost_model_service_stub(channel).watch_snapshots(request)
        yield call
        call.cancel()


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
    """Readers without the library get newly published snapshots by themselves."""
    await asyncio.to_thread(publish, library, b"first")
    async with (
        serving_snapshots(library.memory, ServingAddress(), user, Guard()) as address,
        reading(address) as found,
    ):
        await eventually(lambda: found == [b"first"])
        await asyncio.to_thread(publish, library, b"second")
        await eventually(lambda: found == [b"first", b"second"])


@pytest.mark.slow
async def test_a_reader_comes_back_when_the_optimizer_does() -> None:
    """A known snapshot is not sent again, a new one is."""
    servicer = CostModelServicer()
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


@pytest.mark.slow
async def test_a_reader_waits_for_an_optimizer_that_is_away(caplog: pytest.LogCaptureFixture) -> None:
    """A reader waits from its first try; it was once told to log in, because the fleet was unknown, and then read
    nothing.
    """
    servicer = CostModelServicer()
    servicer.publish(GOOD)
    async with served(servicer) as address:
        port = int(address.rpartition(":")[2])
    with caplog.at_level(logging.WARNING):
        async with reading(address) as found:
            await eventually(lambda: "no snapshots" in caplog.text)
            async with served(servicer, port):
                await eventually(lambda: found == [b"good"])


async def test_an_optimizer_is_known_by_its_fleet_where_another_one_had_its_address() -> None:
    """A former tracker at the address has left credentials, which readers of the optimizer must not use."""
    servicer, another = CostModelServicer(), make_authority(dt.datetime.now(dt.UTC))
    servicer.publish(GOOD)
    former = issue_own(another, make_key(), name="former", role=Role.USER, now=dt.datetime.now(dt.UTC))
    async with served(servicer) as address:
        CredentialStore().save(address, former)
        async with reading(address) as found:
            await eventually(lambda: found == [b"good"])
    CredentialStore().forget(address)


async def test_a_snapshot_with_a_wrong_digest_is_not_used(caplog: pytest.LogCaptureFixture) -> None:
    """The snapshot is dropped with a warning, and the next one is used."""
    servicer = CostModelServicer()
    servicer.publish(replace(GOOD, content=b"forged", digest="sha256:0"))
    with caplog.at_level(logging.WARNING):
        async with served(servicer) as address, reading(address) as found:
            await eventually(lambda: "snapshot refused" in caplog.text)
            servicer.publish(GOOD)
            await eventually(lambda: found == [b"good"])


async def test_a_reader_falls_back_on_the_former_name_of_the_service() -> None:
    """An optimizer of an older release has no CostModelService."""
    servicer = CostModelServicer()
    servicer.publish(GOOD)
    async with served(servicer, register=stubs.add_snapshot_service) as address, reading(address) as found:
        await eventually(lambda: found == [b"good"])


async def test_the_former_name_of_the_service_is_served() -> None:
    """Clients of older releases call it."""
    servicer = CostModelServicer()
    servicer.publish(GOOD)
    request = Request(feature_version=FEATURE_VERSION)
    async with served(servicer) as address, rpc.make_channel(address, user(), MEMBER_NAME) as channel:
        call = stubs.snapshot_service_stub(channel).watch_snapshots(request)
        assert await content_of(call) == b"good"
        call.cancel()


async def test_a_server_without_the_service_is_an_error() -> None:
    """A client of a server without the service fails instead of waiting for ever."""
    async with served(CostModelServicer(), register=lambda *_: None) as address:
        with pytest.raises(FleetError, match="the optimizer does not know this call"):
            await anext(watch_snapshots(address, FEATURE_VERSION))


async def test_features_of_another_version_are_refused() -> None:
    """A model for other features would predict wrong values silently."""
    async with served(CostModelServicer()) as address:
        with pytest.raises(InvalidRequest, match="use the same version"):
            await anext(watch_snapshots(address, "other features"))


async def test_readers_are_bounded() -> None:
    """Readers of one member, and of all, are limited; a place is free again once a reader has left."""
    servicer = CostModelServicer(most_readers=2, most_of_one=1)
    servicer.publish(GOOD)
    first, second, third = (credentials(Role.USER, make_key()) for _ in range(3))
    async with served(servicer) as address:
        async with watching(address, first) as one:
            assert await content_of(one) == b"good"
            async with watching(address, first) as again:
                assert isinstance(await error_of(again), LimitReached)
            async with watching(address, second) as two:
                assert await content_of(two) == b"good"
                async with watching(address, third) as three:
                    assert isinstance(await error_of(three), LimitReached)
        async with reading(address) as found:
            await eventually(lambda: found == [b"good"])


@pytest.mark.slow
async def test_a_revoked_key_reads_no_more(library: Library) -> None:
    """Its stream ends and it gets no other one, also while the tracker is away; others read on."""
    lost, other = (credentials(Role.USER, make_key()) for _ in range(2))
    await asyncio.to_thread(publish, library, b"first")
    async with (
        serve_tracker() as tracker,
        IdentityCalls(tracker.address) as admin,
        guarded_by(tracker.address, ask_every_sec=0.01) as guard,
        serving_snapshots(library.memory, ServingAddress(), user, guard) as address,
        watching(address, lost) as ending,
        watching(address, other) as lasting,
    ):
        assert [b"first"] * 2 == [await content_of(ending), await content_of(lasting)]

        await admin.revoke(own_key_id(lost.key_pem))

        assert isinstance(await error_of(ending), KeyRevoked)
        await tracker.stop()
        async with watching(address, lost) as again:
            assert isinstance(await error_of(again), KeyRevoked)
        await asyncio.to_thread(publish, library, b"second")
        assert await content_of(lasting) == b"second"


async def test_no_port_opens_before_revocations_are_known() -> None:
    """No port is opened while the tracker does not answer."""
    async with serve_tracker() as tracker:
        address = tracker.address
        know_tracker(address)
    with pytest.raises(TrackerUnavailable):
        async with guarded_by(address):
            pass
    CredentialStore().forget(address)


@pytest.mark.slow
async def test_a_search_asks_the_snapshot_of_an_optimizer_elsewhere(tmp_path: Path) -> None:
    """The job's own library has none."""
    servicer = CostModelServicer()
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
def test_receiving_a_wrong_digest_is_refused(spoil: Callable[[ModelSnapshot], ModelSnapshot]) -> None:
    """A snapshot with a wrong digest is refused when it is received."""
    with pytest.raises(InvalidRequest, match="another digest"):
        model_snapshot_from_proto(model_snapshot_to_proto(spoil(GOOD)))
