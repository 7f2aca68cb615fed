"""Uploads: refused when wrong, never half there, and only for the device's own architecture."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from agent_bench import Bench, digest_of_bytes, kind_of, request_for, serve_bench

from fleet.errors import ArtifactRefused, DiskFull, InvalidRequest

CONFIG = {"devices": [{"driver": "simulated", "name": "sim", "time_scale": 0.0}], "cache_max_bytes": 300_000}
pytestmark = pytest.mark.slow


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with serve_bench(tmp_path, CONFIG) as served:
        yield served


async def test_only_what_is_missing_is_asked_for(bench: Bench) -> None:
    """Putting is by content: what is there stays there for the next holder."""
    holder = bench.holding(epoch=1)
    digest, other = await holder.put(b"latency_us:50"), digest_of_bytes(b"other")

    assert [other] == await holder.find_missing([digest, other])
    assert await bench.holding(epoch=2).find_missing([digest]) == []


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"digest": digest_of_bytes(b"something else")}, "announced as"),
        ({"size_bytes": 3}, "more than the announced 3"),
        ({"size_bytes": 100}, "of the announced 100"),
    ],
)
async def test_a_wrong_upload_is_refused_and_leaves_nothing(bench: Bench, fields: dict[str, object], text: str) -> None:
    """The hash is checked by the agent, not believed."""
    holder = bench.holding(epoch=1)

    with pytest.raises(ArtifactRefused, match=text):
        await holder.put(b"content", **fields)

    assert list((bench.state_dir / "artifacts" / "incoming").iterdir()) == []
    assert list((bench.state_dir / "artifacts").glob("*.so")) == []


@pytest.mark.parametrize("digest", ["sha256:../../etc/passwd", "nonsense", "sha256:" + "A" * 64])
async def test_what_is_no_digest_names_no_file(bench: Bench, digest: str) -> None:
    """Names come from clients, so they are checked before they touch the disk."""
    holder = bench.holding(epoch=1)

    with pytest.raises(InvalidRequest, match="no artifact digest"):
        await holder.put(b"content", digest=digest)
    with pytest.raises(InvalidRequest, match="no artifact digest"):
        await holder.find_missing([digest])


async def test_an_artifact_larger_than_the_cache_is_refused_before_it_is_sent(bench: Bench) -> None:
    """The message says what to change."""
    with pytest.raises(DiskFull, match="cache_max_bytes"):
        await bench.holding(epoch=1).put(bytes(400_000))


async def test_what_a_live_session_uses_is_not_evicted(bench: Bench) -> None:
    """Artifacts of ended sessions make room; those of the present one do not."""
    first = bench.holding(epoch=1)
    old = await first.put(b"old" + bytes(150_000))
    holder = bench.holding(epoch=2)
    mine = await holder.put(b"mine" + bytes(140_000))
    more = await holder.put(b"more" + bytes(140_000))

    assert [old] == await holder.find_missing([old, mine, more])
    with pytest.raises(DiskFull, match="live sessions"):
        await holder.put(b"too much" + bytes(140_000))


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
async def test_a_full_disk_is_said_and_survived(tmp_path: Path) -> None:
    """The upload fails as DiskFull, leaves nothing half, and a smaller one fits."""
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
    finally:
        await run("umount", str(state_dir))


async def run(*command: str) -> int:
    process = await asyncio.create_subprocess_exec(*command)
    return await process.wait()


async def test_a_cpu_takes_only_libraries_of_its_architecture(tmp_path: Path) -> None:
    """Refused at the door, with what was found and what is wanted."""
    async with serve_bench(tmp_path, {"devices": [{"driver": "cpu", "name": "here"}]}) as bench:
        holder = bench.holding(epoch=1, device="devices/here")
        riscv = b"\x7fELF\x02\x01" + bytes(12) + (243).to_bytes(2, "little") + bytes(100)

        with pytest.raises(ArtifactRefused, match="riscv64"):
            await holder.put(riscv)
        with pytest.raises(ArtifactRefused, match="no ELF"):
            await holder.put(b"short")
