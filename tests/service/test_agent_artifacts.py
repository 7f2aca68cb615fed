"""Uploads: wrong artifacts are refused, partial ones never stored, and only the device's architecture is accepted."""

from __future__ import annotations

import asyncio
import contextlib
import os
import zlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from device_agents.serving.store import ArtifactStore, disk_bytes, usual_bytes
from fleet.artifacts.artifact import Artifact
from fleet.artifacts.chunks import Deflater
from fleet.base.digests import digest_of
from fleet.client import upload
from fleet.errors import ArtifactRefused, CacheFull, DiskFull, InvalidRequest, LimitReached, Unauthenticated
from fleet.v1.session_service_pb2 import PutArtifactRequest
from fleet.wire.tokens import TICKET_HEADER
from tests.service.agent_bench import Bench, kind_of, request_for, serve_bench

CONFIG = {"devices": [{"driver": "simulated", "name": "sim", "time_scale": 0.0}], "cache_max_bytes": 300_000}
pytestmark = pytest.mark.slow


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with serve_bench(tmp_path, CONFIG) as served:
        yield served


async def test_only_missing_artifacts_are_requested(bench: Bench) -> None:
    """Artifacts are addressed by content and stay for the next holder."""
    holder = bench.holding(epoch=1)
    digest, other = await holder.put(b"latency_us:50"), digest_of(b"other")

    assert [other] == await holder.find_missing([digest, other])
    assert await bench.holding(epoch=2).find_missing([digest]) == []


async def test_a_ticket_allows_only_uploads_of_artifacts(bench: Bench) -> None:
    """A builder uploads for the session with a ticket instead of a token; it cannot measure, and is refused after the
    session.
    """
    holder = bench.holding(epoch=1)
    ticket = await holder.make_upload_ticket()
    builder = bench.holder(ticket, TICKET_HEADER)

    digest = await builder.put(b"latency_us:50")

    assert await builder.find_missing([digest]) == []
    assert kind_of((await holder.measure([request_for(digest)]))[0]) == "UNSPECIFIED"
    assert await holder.make_upload_ticket() == ticket
    for refused in (builder.measure([request_for(digest)]), builder.open(), builder.close_session()):
        with pytest.raises(Unauthenticated):
            await refused
    for stranger in (bytes(32), b"", ticket[:-1]):
        with pytest.raises(Unauthenticated, match="no live session"):
            await bench.holder(stranger, TICKET_HEADER).put(b"other")
    await holder.close_session()
    with pytest.raises(Unauthenticated, match="no live session"):
        await builder.put(b"other")


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"digest": digest_of(b"something else")}, "announced as"),
        ({"size_bytes": 3}, "more than the announced 3"),
        ({"size_bytes": 100}, "of the announced 100"),
    ],
)
async def test_a_wrong_upload_is_refused_and_removed(bench: Bench, fields: dict[str, object], text: str) -> None:
    """The hash is checked by the agent, not believed."""
    holder = bench.holding(epoch=1)

    with pytest.raises(ArtifactRefused, match=text):
        await holder.put(b"content", **fields)

    assert list((bench.state_dir / "artifacts" / "incoming").iterdir()) == []
    assert list((bench.state_dir / "artifacts").glob("*.so")) == []


@pytest.mark.parametrize("deflate", [False, True])
async def test_one_call_uploads_many_artifacts(bench: Bench, tmp_path: Path, *, deflate: bool) -> None:
    """Small, empty and large artifacts, compressed or not, are stored complete, without other files."""
    contents = [b"latency_us:50", b"", b"large" + bytes(2_000_000), os.urandom(1_200_000), b"latency_us:50 too"]
    await bench.stop_agent()
    await bench.start_agent({**CONFIG, "cache_max_bytes": 10_000_000})
    artifacts = []
    for number, content in enumerate(contents):
        path = tmp_path / f"{number}.so"
        path.write_bytes(content)
        artifacts.append(Artifact.of_file(path))

    messages = [message async for message in upload.messages(artifacts, Deflater() if deflate else None)]
    digests = await bench.holding(epoch=1).upload(messages)

    assert [artifact.digest for artifact in artifacts] == digests
    assert any(message.is_deflated for message in messages) == deflate
    stored = (bench.state_dir / "artifacts").glob("*.so")
    assert {digest_of(path.read_bytes()) for path in stored} == set(digests)


async def test_artifacts_before_a_bad_one_are_there(bench: Bench) -> None:
    """The holder puts the rest again, not everything."""
    holder, good, bad = bench.holding(epoch=1), b"latency_us:50", b"bad"
    messages = [
        PutArtifactRequest(digest=digest_of(good), size_bytes=len(good), chunk=good),
        PutArtifactRequest(digest=digest_of(b"other"), size_bytes=len(bad), chunk=bad),
        PutArtifactRequest(digest=digest_of(b"next"), size_bytes=4, chunk=b"next"),
    ]

    with pytest.raises(ArtifactRefused, match="announced as"):
        await holder.upload(messages)

    wanted = [message.digest for message in messages]
    assert wanted[1:] == await holder.find_missing(wanted)


async def test_a_chunk_that_cannot_be_decompressed_is_refused(bench: Bench) -> None:
    """A damaged chunk, or one that inflates beyond its size, ends only its upload."""
    holder = bench.holding(epoch=1)
    bomb = zlib.compress(bytes(2**27))
    message = PutArtifactRequest(digest=digest_of(b""), size_bytes=100, chunk=bomb, is_deflated=True)

    with pytest.raises(ArtifactRefused, match="cannot be decompressed"):
        await holder.upload([message])

    assert kind_of(await holder.run(b"latency_us:50")) == "UNSPECIFIED"


@pytest.mark.parametrize("digest", ["sha256:../../etc/passwd", "nonsense", "sha256:" + "A" * 64])
async def test_an_invalid_digest_is_refused_as_a_file_name(bench: Bench, digest: str) -> None:
    """Names come from clients, so they are checked before they touch the disk."""
    holder = bench.holding(epoch=1)

    with pytest.raises(InvalidRequest, match="no artifact digest"):
        await holder.put(b"content", digest=digest)
    with pytest.raises(InvalidRequest, match="no artifact digest"):
        await holder.find_missing([digest])


async def test_an_artifact_larger_than_the_cache_is_refused_before_it_is_sent(bench: Bench) -> None:
    """The message names the setting to change."""
    with pytest.raises(CacheFull, match="cache_max_bytes"):
        await bench.holding(epoch=1).put(bytes(400_000))


async def test_artifacts_of_a_live_session_are_not_evicted(bench: Bench) -> None:
    """Artifacts of ended sessions make room; those of the present one do not."""
    first = bench.holding(epoch=1)
    old = await first.put(b"old" + bytes(150_000))
    holder = bench.holding(epoch=2)
    mine = await holder.put(b"mine" + bytes(140_000))
    more = await holder.put(b"more" + bytes(140_000))

    assert [old] == await holder.find_missing([old, mine, more])
    with pytest.raises(CacheFull, match="live sessions"):
        await holder.put(b"too much" + bytes(140_000))


async def test_no_member_joins_without_a_token(bench: Bench) -> None:
    """A caller without a token is refused before its request is parsed or complete, even if it is unreadable or too
    large. With a token, such a request is the caller's mistake.
    """
    stranger, holder = bench.holding(epoch=1), bench.holding(epoch=1)
    stranger.token = None
    digest = digest_of(b"")
    too_many = [digest] * 20_000
    with pytest.raises(Unauthenticated, match="no token"):
        await stranger.find_missing(too_many)
    with pytest.raises(InvalidRequest, match="FindMissing takes 1048576"):
        await holder.find_missing(too_many)
    forged = bench.holding(epoch=1)
    assert forged.token is not None
    forged.token = forged.token[:-1] + bytes([forged.token[-1] ^ 1])
    with pytest.raises(Unauthenticated, match="not signed"):
        await forged.find_missing(too_many)
    assert await holder.find_missing([digest]) == [digest]


def test_the_default_cache_limit_is_an_eighth_of_the_disk(tmp_path: Path) -> None:
    """The default limit is between 2 and 16 GiB; it is computed when the store is opened, and its folder may be missing
    before.
    """
    assert [2, 8, 16] == [usual_bytes(disk_gib * 2**30) >> 30 for disk_gib in (4, 64, 1000)]

    store = ArtifactStore(tmp_path / "not" / "yet")
    store.open()

    with store.receive(digest_of(b""), 2**30), pytest.raises(CacheFull):
        store.receive(digest_of(b"1"), 2**40)


async def test_unfinished_uploads_reserve_their_announced_size(tmp_path: Path) -> None:
    """Unfinished uploads together stay within the cache's limit, and return their space when they end."""
    store = ArtifactStore(tmp_path, max_bytes=300_000)
    store.open()
    with contextlib.ExitStack() as uploads:
        for number in range(3):
            uploads.enter_context(store.receive(digest_of(b"%d" % number), 94_208))
        with pytest.raises(CacheFull, match="uploads under way 294912"):
            store.receive(digest_of(b"4"), 1)

    content = b"whole" + bytes(290_000)
    with store.receive(digest_of(content), len(content)) as incoming:
        incoming.write(content)
        incoming.finish("someone")
    assert store.size_bytes == disk_bytes(len(content))
    store.release("someone")
    with contextlib.ExitStack() as uploads:
        for _ in range(64):
            uploads.enter_context(store.receive(digest_of(b""), 0))
        with pytest.raises(LimitReached, match="64 uploads"):
            store.receive(digest_of(b""), 0)


async def test_the_same_artifact_may_come_twice_at_once(bench: Bench) -> None:
    """Concurrent puts of one digest both succeed."""
    holder = bench.holding(epoch=1)
    content = b"latency_us:50 " + bytes(100_000)

    digests = await asyncio.gather(*(holder.put(content) for _ in range(2)))

    assert await holder.find_missing(digests) == []


async def test_an_artifact_damaged_on_disk_is_asked_for_again(bench: Bench) -> None:
    """After a restart, a file that lost its end is not served."""
    holder = bench.holding(epoch=1)
    content = b"latency_us:50 and more"
    digest = await holder.put(content)
    await bench.stop_agent()
    path = bench.state_dir / "artifacts" / f"{digest.removeprefix('sha256:')}.so"
    path.chmod(0o600)
    path.write_bytes(content[:10])
    await bench.start_agent(CONFIG)

    holder = bench.holding(epoch=2)
    assert [digest] == await holder.find_missing([digest])
    assert digest == await holder.put(content)
    assert kind_of((await holder.measure([request_for(digest)]))[0]) == "UNSPECIFIED"


@pytest.mark.skipif(os.geteuid() != 0, reason="a small file system is mounted for it")
async def test_a_full_disk_is_reported_and_survived(tmp_path: Path) -> None:
    """The upload fails as DiskFull and leaves no partial file, and a smaller one fits. Unused artifacts are evicted
    first.
    """
    state_dir = tmp_path / "small"
    state_dir.mkdir()
    mounted = await run("mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(state_dir))
    if mounted != 0:
        pytest.skip("mounting is not allowed here")
    try:
        config = {**CONFIG, "cache_max_bytes": 10_000_000}
        async with serve_bench(state_dir, config) as bench:
            holder = bench.holding(epoch=1)

            with pytest.raises(DiskFull, match="no space left"):
                await holder.put(bytes(1_000_000))

            assert kind_of(await holder.run(b"latency_us:50")) == "UNSPECIFIED"

            for epoch in (2, 3):
                await bench.holding(epoch=epoch).put(bytes([epoch]) * 150_000)
    finally:
        await run("umount", str(state_dir))


async def run(*command: str) -> int:
    process = await asyncio.create_subprocess_exec(*command)
    return await process.wait()


async def test_a_cpu_takes_only_libraries_of_its_architecture(tmp_path: Path) -> None:
    """The message names the full disk; the upload leaves no partial file, and a smaller one fits. Unused artifacts
    are evicted first.
    """
    async with serve_bench(tmp_path, {"devices": [{"driver": "cpu", "name": "here"}]}) as bench:
        holder = bench.holding(epoch=1, device="devices/here")
        riscv = b"\x7fELF\x02\x01" + bytes(12) + (243).to_bytes(2, "little") + bytes(100)

        with pytest.raises(ArtifactRefused, match="riscv64"):
            await holder.put(riscv)
        with pytest.raises(ArtifactRefused, match="no ELF"):
            await holder.put(b"short")
