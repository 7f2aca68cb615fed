"""Artifacts as upload messages: pieces of at most 1 MiB, the first of each artifact names the whole."""

from __future__ import annotations

import asyncio
import ipaddress
import os
from collections.abc import AsyncGenerator, Iterable, Iterator
from typing import Any

from fleet.artifacts import Artifact
from fleet.errors import ArtifactRefused
from fleet.pieces import PIECE_BYTES, Deflater
from fleet.v1 import session_service_pb2

_READ_AHEAD_BYTES = 256 * 1024
"""Read and compressed in one go, away from the event loop: small artifacts share a thread hop, the first leave soon."""


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
    """Tell whether uploads to "host:port" cross a network, which takes longer than compressing them."""
    host = address.rpartition(":")[0].strip("[]")
    try:
        return not ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host != "localhost"


def pick_first(artifacts: Iterable[Artifact], size_bytes: int) -> list[Artifact]:
    """Return the first artifacts, as many as have this size together.

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


async def messages(
    artifacts: Iterable[Artifact],
    deflater: Deflater | None = None,
    kind: session_service_pb2.ArtifactKind = session_service_pb2.ARTIFACT_KIND_MODULE,
) -> AsyncGenerator[session_service_pb2.PutArtifactRequest, None]:
    """Yield the messages that upload artifacts, one after the other; compressed by a deflater. One for a whole call.

    Raises:
        ArtifactRefused: a file is gone or cannot be read.
    """
    source = _pieces(artifacts, deflater, kind)
    while taken := await asyncio.to_thread(_take, source):
        for message in taken:
            yield message


def _take(source: Iterator[session_service_pb2.PutArtifactRequest]) -> list[session_service_pb2.PutArtifactRequest]:
    taken: list[session_service_pb2.PutArtifactRequest] = []
    size_bytes = 0
    for message in source:
        taken.append(message)
        size_bytes += len(message.chunk)
        if size_bytes >= _READ_AHEAD_BYTES:
            break
    return taken


def _pieces(
    artifacts: Iterable[Artifact], deflater: Deflater | None, kind: session_service_pb2.ArtifactKind
) -> Iterator[session_service_pb2.PutArtifactRequest]:
    for artifact in artifacts:
        if deflater is not None:
            deflater.begin()
        try:
            with artifact.path.open("rb", buffering=0) as file:
                size_bytes = os.fstat(file.fileno()).st_size
                head = {"digest": artifact.digest, "size_bytes": size_bytes, "kind": kind}
                yield _piece(file.read(PIECE_BYTES), deflater, **head)
                while chunk := file.read(PIECE_BYTES):
                    yield _piece(chunk, deflater)
        except OSError as error:
            raise _unreadable(artifact, error) from error


def _piece(chunk: bytes, deflater: Deflater | None, **head: Any) -> session_service_pb2.PutArtifactRequest:
    deflated = deflater.deflate(chunk) if deflater is not None else None
    if deflated is None:
        return session_service_pb2.PutArtifactRequest(chunk=chunk, **head)
    return session_service_pb2.PutArtifactRequest(chunk=deflated, is_deflated=True, **head)


def _unreadable(artifact: Artifact, error: OSError) -> ArtifactRefused:
    return ArtifactRefused(f"cannot read the artifact {artifact.path}: {error.strerror}")
