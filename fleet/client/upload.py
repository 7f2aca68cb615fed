"""Artifacts as upload messages: pieces of at most 1 MiB, the first of which names the whole."""

from __future__ import annotations

from collections.abc import Iterator

from fleet.artifacts import Artifact
from fleet.errors import ArtifactRefused
from fleet.v1 import session_service_pb2

PIECE_BYTES = 1024 * 1024


def read_head(artifact: Artifact, size_bytes: int) -> bytes:
    """Return the first bytes of an artifact's file.

    Raises:
        ArtifactRefused: the file is gone or cannot be read.
    """
    try:
        with artifact.path.open("rb") as file:
            return file.read(size_bytes)
    except OSError as error:
        raise ArtifactRefused(f"cannot read the artifact {artifact.path}: {error.strerror}") from error


def read_pieces(artifact: Artifact) -> list[bytes]:
    """Return an artifact's file in pieces.

    Raises:
        ArtifactRefused: the file is gone or cannot be read.
    """
    try:
        with artifact.path.open("rb") as file:
            return list(iter(lambda: file.read(PIECE_BYTES), b""))
    except OSError as error:
        raise ArtifactRefused(f"cannot read the artifact {artifact.path}: {error.strerror}") from error


def messages(artifact: Artifact, pieces: list[bytes]) -> Iterator[session_service_pb2.PutArtifactRequest]:
    """Yield the messages that upload these pieces."""
    size_bytes = sum(map(len, pieces))
    first, rest = (pieces[0], pieces[1:]) if pieces else (b"", [])
    yield session_service_pb2.PutArtifactRequest(digest=artifact.digest, size_bytes=size_bytes, chunk=first)
    for piece in rest:
        yield session_service_pb2.PutArtifactRequest(chunk=piece)
