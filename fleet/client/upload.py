"""Artifacts as upload messages: pieces of at most 1 MiB, the first of each artifact names the whole."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterable, Iterator

from fleet.artifacts import Artifact
from fleet.errors import ArtifactRefused
from fleet.v1 import session_service_pb2

PIECE_BYTES = 1024 * 1024
_READ_AHEAD_BYTES = 4 * PIECE_BYTES
"""Read in one go, away from the event loop: many small artifacts cost one thread hop, a large one little memory."""


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


async def messages(artifacts: Iterable[Artifact]) -> AsyncIterator[session_service_pb2.PutArtifactRequest]:
    """Yield the messages that upload artifacts, one after the other.

    Raises:
        ArtifactRefused: a file is gone or cannot be read.
    """
    source = (message for artifact in artifacts for message in _pieces(artifact))
    while taken := await asyncio.to_thread(_take, source):
        for message in taken:
            yield message


def _take(
    source: Iterator[session_service_pb2.PutArtifactRequest],
) -> list[session_service_pb2.PutArtifactRequest]:
    taken: list[session_service_pb2.PutArtifactRequest] = []
    size_bytes = 0
    for message in source:
        taken.append(message)
        size_bytes += len(message.chunk)
        if size_bytes >= _READ_AHEAD_BYTES:
            break
    return taken


def _pieces(artifact: Artifact) -> Iterator[session_service_pb2.PutArtifactRequest]:
    try:
        with artifact.path.open("rb", buffering=0) as file:
            yield session_service_pb2.PutArtifactRequest(
                digest=artifact.digest, size_bytes=os.fstat(file.fileno()).st_size, chunk=file.read(PIECE_BYTES)
            )
            while chunk := file.read(PIECE_BYTES):
                yield session_service_pb2.PutArtifactRequest(chunk=chunk)
    except OSError as error:
        raise _unreadable(artifact, error) from error


def _unreadable(artifact: Artifact, error: OSError) -> ArtifactRefused:
    return ArtifactRefused(f"cannot read the artifact {artifact.path}: {error.strerror}")
