"""Artifacts as upload messages: chunks of at most 1 MiB; the first chunk of each artifact describes the whole."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Iterable, Iterator
from typing import TypeAlias

from fleet.artifacts.artifact import Artifact
from fleet.artifacts.chunks import CHUNK_BYTES, Deflater
from fleet.base.network import host_of, is_loopback
from fleet.errors import ArtifactRefused
from fleet.v1 import session_service_pb2

Chunk: TypeAlias = session_service_pb2.PutArtifactRequest
"""One message of an upload."""

_READ_AHEAD_BYTES = 256 * 1024
"""Size of the part read and compressed at once, off the event loop: small artifacts share a hop, large ones start
soon."""


def read_head(artifact: Artifact, size_bytes: int) -> bytes:
    """Return the first bytes of an artifact's file.

    Raises:
        ArtifactRefused: the file is gone or cannot be read.
    """
    try:
        with artifact.path.open("rb") as file:
            return file.read(size_bytes)
    except OSError as error:
        raise _unreadable(artifact, error) from error


def is_far(address: str) -> bool:
    """Tell whether uploads to "host:port" cross a network, which is slower than compressing them."""
    return not is_loopback(host_of(address))


def pick_first(artifacts: Iterable[Artifact], size_bytes: int) -> list[Artifact]:
    """Return the first artifacts that fit into this size together.

    Raises:
        ArtifactRefused: a file is gone.
    """
    picked = []
    for artifact in artifacts:
        try:
            size_bytes -= artifact.path.stat().st_size
        except OSError as error:
            raise _unreadable(artifact, error) from error
        if size_bytes < 0:
            break
        picked.append(artifact)
    return picked


def messages(artifacts: Iterable[Artifact], deflater: Deflater | None = None) -> AsyncGenerator[Chunk, None]:
    """Yield the messages that upload artifacts, one artifact after the other. One deflater serves a whole call.

    Raises:
        ArtifactRefused: a file is gone or cannot be read.
    """
    return _read_ahead(_messages(artifacts, deflater, session_service_pb2.ARTIFACT_KIND_MODULE))


def bitstream_messages(bitstream: Artifact, deflater: Deflater | None = None) -> AsyncGenerator[Chunk, None]:
    """Yield the messages that upload a bitstream."""
    return _read_ahead(_messages([bitstream], deflater, session_service_pb2.ARTIFACT_KIND_BITSTREAM))


async def _read_ahead(source: Iterator[Chunk]) -> AsyncGenerator[Chunk, None]:
    while taken := await asyncio.to_thread(_take, source):
        for message in taken:
            yield message


def _take(source: Iterator[Chunk]) -> list[Chunk]:
    taken: list[Chunk] = []
    size_bytes = 0
    for message in source:
        taken.append(message)
        size_bytes += len(message.chunk)
        if size_bytes >= _READ_AHEAD_BYTES:
            break
    return taken


def _messages(
    artifacts: Iterable[Artifact], deflater: Deflater | None, kind: session_service_pb2.ArtifactKind
) -> Iterator[Chunk]:
    for artifact in artifacts:
        if deflater is not None:
            deflater.begin()
        try:
            with artifact.path.open("rb", buffering=0) as file:
                size_bytes = os.fstat(file.fileno()).st_size
                first = _message(file.read(CHUNK_BYTES), deflater)
                first.digest, first.size_bytes, first.kind = artifact.digest, size_bytes, kind
                yield first
                while chunk := file.read(CHUNK_BYTES):
                    yield _message(chunk, deflater)
        except OSError as error:
            raise _unreadable(artifact, error) from error


def _message(chunk: bytes, deflater: Deflater | None) -> Chunk:
    deflated = deflater.deflate(chunk) if deflater is not None else None
    return Chunk(chunk=chunk) if deflated is None else Chunk(chunk=deflated, is_deflated=True)


def _unreadable(artifact: Artifact, error: OSError) -> ArtifactRefused:
    return ArtifactRefused(f"cannot read the artifact {artifact.path}: {error.strerror}")
