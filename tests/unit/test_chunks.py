"""Chunks of uploads survive compression, and nothing harmful gets through it."""

from __future__ import annotations

import random
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.artifacts.chunks import CHUNK_BYTES, DamagedChunk, Deflater, Inflater

NOISE = random.Random(0).randbytes(40_000)
chunks = st.binary(max_size=300) | st.integers(0, 40_000).map(lambda size: (b"main\x00\x01" * 10_000)[:size])


def sent(uploads: list[list[bytes]]) -> list[tuple[bytes, bool]]:
    """Return a Deflater's chunks for some artifacts: content, and whether it is compressed."""
    deflater = Deflater()
    messages = []
    for artifact in uploads:
        deflater.begin()
        for chunk in artifact:
            deflated = deflater.deflate(chunk)
            messages.append((chunk, False) if deflated is None else (deflated, True))
    return messages


@given(st.lists(st.lists(chunks | st.just(NOISE), max_size=4), max_size=4))
def test_chunks_arrive(uploads: list[list[bytes]]) -> None:
    """Compressed and plain chunks arrive in one upload."""
    inflater = Inflater()

    arrived = [inflater.inflate(content, is_deflated=is_deflated) for content, is_deflated in sent(uploads)]

    assert [chunk for artifact in uploads for chunk in artifact] == arrived


def test_similar_chunks_compress_well() -> None:
    """Candidates of one workload share most of their bytes."""
    like = NOISE[:20_000] + b"changed" + NOISE[20_007:25_000]

    messages = sent([[NOISE[:25_000]], [like]])

    assert messages[0] == (NOISE[:25_000], False)
    assert messages[1][1]
    assert len(messages[1][0]) < 1000


def test_an_incompressible_artifact_is_tried_once() -> None:
    """The second chunk of noise is not compressed, although it repeats the first; the next artifact is tried again."""
    noise = NOISE[:20_000]

    messages = sent([[noise, noise], [noise]])

    assert [False, False, True] == [is_deflated for _, is_deflated in messages]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"no zlib",
        zlib.compress(b"cut short")[:-2],
        zlib.compress(bytes(CHUNK_BYTES + 1)),
        zlib.compress(bytes(2**25), level=1),
    ],
    ids=["empty", "foreign", "cut short", "a byte too much", "swollen"],
)
def test_damaged_and_swollen_chunks_are_refused(content: bytes) -> None:
    """A small message does not become a large one."""
    with pytest.raises(DamagedChunk):
        Inflater().inflate(content, is_deflated=True)


def test_the_largest_chunk_passes() -> None:
    """A chunk of exactly the allowed size is compressed."""
    content = bytes(CHUNK_BYTES)

    ((deflated, is_deflated),) = sent([[content]])

    assert is_deflated
    assert Inflater().inflate(deflated, is_deflated=True) == content
