"""Blobs on disk: gzipped lines, layouts as deterministic .tar files, and copies with their digests checked."""

from __future__ import annotations

import gzip
import hashlib
import tarfile
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from fleet.base.digests import digest_of
from fleet.errors import InvalidRequest
from fleet.packs.layout import MOST_PACK_BYTES, Descriptor
from fleet.packs.sources import Source

_CHUNK_BYTES = 1024**2
_MOST_LINE_BYTES = 24 * 1024**2
"""A program of the largest allowed size, in base64."""


class Budget:
    """Bytes that the layers of one pack may still have after decompression."""

    def __init__(self, size_bytes: int = MOST_PACK_BYTES) -> None:
        self._left = size_bytes

    def take(self, count: int) -> None:
        """Count some bytes. Raises InvalidRequest if they are too many."""
        self._left -= count
        if self._left < 0:
            raise InvalidRequest(f"its layers have more than {MOST_PACK_BYTES:,} bytes after decompression")


def write_lines(path: Path, lines: Iterable[bytes]) -> None:
    """Write gzipped lines. Equal lines give equal bytes."""
    with path.open("wb") as raw, gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0) as file:
        for line in lines:
            file.write(line + b"\n")


def read_lines(path: Path, title: str, budget: Budget) -> Iterator[tuple[str, bytes]]:
    """Yield place and content of each gzipped line.

    Raises:
        InvalidRequest: the file is damaged, or a line or the whole is too long.
    """
    with gzip.open(path, "rb") as file:
        number = 0
        while line := _read_line(file, title):
            budget.take(len(line))
            number += 1
            yield f"{title}:{number}", line


def _read_line(file: gzip.GzipFile, title: str) -> bytes:
    try:
        line = file.readline(_MOST_LINE_BYTES)
    except (EOFError, OSError, zlib.error) as error:
        raise InvalidRequest(f"its {title} is damaged: {error}") from error
    if line and not line.endswith(b"\n"):
        raise InvalidRequest(f"its {title} has a line that is too long, or does not end")
    return line


def describe_file(path: Path, media_type: str, title: str) -> Descriptor:
    """Return the descriptor of a file."""
    return Descriptor(media_type=media_type, digest=digest_of(path), size_bytes=path.stat().st_size, title=title)


def read_blob(source: Source, blob: Descriptor, most_bytes: int) -> bytes:
    """Return a small blob. Raises InvalidRequest if it is not as described."""
    if blob.size_bytes > most_bytes:
        raise InvalidRequest(f"its {blob.blob_name} has {blob.size_bytes:,} bytes, more than {most_bytes:,}")
    return b"".join(_chunks(source, blob))


def copy_blob(source: Source, blob: Descriptor, path: Path) -> None:
    """Copy a blob into a new file. Raises InvalidRequest if it is not as described."""
    with path.open("xb") as file:
        for chunk in _chunks(source, blob):
            file.write(chunk)


def _chunks(source: Source, blob: Descriptor) -> Iterator[bytes]:
    hashed, left = hashlib.sha256(), blob.size_bytes
    with source.open(blob.blob_name) as (file, size):
        if size not in (None, left):
            raise InvalidRequest(f"its {blob.blob_name} has {size:,} bytes instead of {left:,}: truncated or changed")
        while left and (chunk := file.read(min(left, _CHUNK_BYTES))):
            left -= len(chunk)
            hashed.update(chunk)
            yield chunk
    if left:
        raise InvalidRequest(f"its {blob.blob_name} ends {left:,} bytes early: it is truncated")
    if f"sha256:{hashed.hexdigest()}" != blob.digest:
        raise InvalidRequest(f"its {blob.blob_name} has another digest than its name: it was changed")


def write_tar(path: Path, folder: Path, names: Iterable[str]) -> None:
    """Write files of a folder as a .tar file. Equal files give equal bytes."""
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as archive:
        for name in names:
            member = tarfile.TarInfo(name)
            member.size = (folder / name).stat().st_size
            with (folder / name).open("rb") as file:
                archive.addfile(member, file)
