"""Artifacts on the agent's disk: named by their digest, bounded in size, never served when damaged.

An artifact is written under another name, checked, and renamed, so whatever has its final name is whole. It is hashed
again when a session uses it for the first time: the machine may have lost power, or an earlier holder's kernel may have
got at the file.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
import logging
import os
import re
import shutil
from collections import OrderedDict
from collections.abc import Hashable
from pathlib import Path
from typing import Self

from fleet.base.digests import digest_of
from fleet.errors import ArtifactRefused, CacheFull, InvalidRequest, LimitReached

logger = logging.getLogger(__name__)

_HASHED_AT_ONCE_BYTES = 256 * 1024
"""Takes a fifth of a millisecond; asking a thread takes as long."""

_BLOCK_BYTES = 4096
"""Block size of disks. A file takes whole blocks, and one more for its name and inode."""

_MOST_FILES = 65_536
"""Most artifacts in a store: disks have a limited number of inodes, and folders of very many files are slow."""

_MOST_UPLOADS = 64
"""Each holds a file open; a client sends one or two at a time."""

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_OWN_FILE = re.compile(r"[0-9a-f]{64}\.so")
_OWN_UPLOAD = re.compile(r"[0-9]+")
"""Names of files that may be removed: the folder of a state directory that somebody chose may have had others."""

_DISK_SHARE = 8
_GIB = 1024**3


def usual_bytes(disk_bytes: int) -> int:
    """Return an eighth of a disk, from 2 to 16 GiB: a model of half a GB is there several times while it is tuned."""
    return min(max(disk_bytes // _DISK_SHARE, 2 * _GIB), 16 * _GIB)


def disk_bytes(size_bytes: int) -> int:
    """Return the disk space that a file of this size occupies [bytes]."""
    return (-(-size_bytes // _BLOCK_BYTES) + 1) * _BLOCK_BYTES


class ArtifactStore:
    """All artifacts of one agent."""

    def __init__(self, directory: Path, max_bytes: int | None = None, max_files: int = _MOST_FILES) -> None:
        """Args:
        max_bytes: most disk space for artifacts; None: derived from the size of the disk, see `usual_bytes`.
        max_files: most artifacts in the store.
        """
        self._directory = directory
        self._incoming = directory / "incoming"
        self._wanted_bytes = max_bytes
        self._max_bytes = max_bytes or 0
        """Known once open."""
        self._max_files = max_files
        self._sizes: dict[str, int] = {}
        self._unused: OrderedDict[str, None] = OrderedDict()
        """Digests of artifacts that no session uses, least recently used first."""
        self._total_bytes = 0
        """Disk space of all artifacts."""
        self._reserved_bytes = 0
        """Announced by uploads that are not finished."""
        self._uploads = 0
        """Number of them."""
        self._users: dict[str, set[Hashable]] = {}
        self._used_by: dict[Hashable, dict[str, None]] = {}
        """Digests of used artifacts by user, most recently used last."""
        self._checked: set[tuple[str, Hashable]] = set()
        """Artifacts that were hashed, by user."""

        self._numbers = itertools.count()

    def open(self) -> None:
        """Register the artifacts of an earlier agent, oldest first, and remove unfinished ones."""
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._directory.chmod(0o700)
        self._incoming.mkdir(mode=0o700, exist_ok=True)
        self._max_bytes = self._wanted_bytes or usual_bytes(shutil.disk_usage(self._directory).total)
        for leftover in self._incoming.iterdir():
            if _OWN_UPLOAD.fullmatch(leftover.name):
                leftover.unlink()
        found = [(path.stat(), path) for path in self._directory.iterdir() if _OWN_FILE.fullmatch(path.name)]
        for status, path in sorted(found, key=lambda pair: (pair[0].st_mtime, pair[1].name)):
            digest = f"sha256:{path.stem}"
            self._sizes[digest] = status.st_size
            self._total_bytes += disk_bytes(status.st_size)
            self._unused[digest] = None
        self._make_room(0, files=0)

    @property
    def size_bytes(self) -> int:
        """Disk space of all artifacts."""
        return self._total_bytes

    async def find(self, digest: str, user: Hashable) -> Path | None:
        """Return the path of an artifact, kept for `user` until `release`; None if it is not in the store.

        Raises:
            InvalidRequest: `digest` is not a digest.
        """
        check_digest(digest)
        path = self._path(digest)
        if digest not in self._sizes:
            return None
        self._use(digest, user)
        if (digest, user) not in self._checked:
            if not await self._is_whole(digest, path):
                logger.warning("a stored artifact was damaged", extra={"digest": digest})
                self._forget(digest)
                return None
            self._checked.add((digest, user))
        return path

    def receive(self, digest: str, size_bytes: int) -> Incoming:
        """Begin to receive an artifact.

        Raises:
            InvalidRequest: `digest` is not a digest.
            CacheFull: it is larger than the store, or than the space that live sessions and other uploads leave.
            LimitReached: too many uploads are under way.
        """
        check_digest(digest)
        if disk_bytes(size_bytes) > self._max_bytes:
            raise CacheFull(
                f"the artifact has {size_bytes} bytes, this agent keeps {self._max_bytes}; raise cache_max_bytes"
            )
        if self._uploads >= _MOST_UPLOADS:
            raise LimitReached(f"{self._uploads} uploads to this agent are under way; finish one first")
        self._make_room(disk_bytes(size_bytes), files=1)
        self._make_room_on_disk(size_bytes)
        incoming = Incoming(self, digest, size_bytes, self._incoming / f"{next(self._numbers)}")
        self._reserved_bytes += disk_bytes(size_bytes)
        self._uploads += 1
        return incoming

    def end_upload(self, size_bytes: int) -> None:
        """Release an upload's reservation. Called by `Incoming`, once."""
        self._reserved_bytes -= disk_bytes(size_bytes)
        self._uploads -= 1

    def release(self, user: Hashable) -> None:
        """Release everything that is kept for `user`."""
        for digest in self._used_by.pop(user, ()):
            users = self._users[digest]
            users.discard(user)
            self._checked.discard((digest, user))
            if not users:
                del self._users[digest]
                self._unused[digest] = None

    def admit(self, digest: str, fresh: Path, size_bytes: int, user: Hashable) -> None:
        """Add a complete, checked file. Called by `Incoming`."""
        is_new = digest not in self._sizes
        if is_new:
            self._make_room(disk_bytes(size_bytes), files=1)
        fresh.replace(self._path(digest))
        if is_new:
            self._sizes[digest] = size_bytes
            self._total_bytes += disk_bytes(size_bytes)
        self._use(digest, user)
        self._checked.add((digest, user))

    def _path(self, digest: str) -> Path:
        return self._directory / f"{digest.removeprefix('sha256:')}.so"

    async def _is_whole(self, digest: str, path: Path) -> bool:
        try:
            if self._sizes[digest] <= _HASHED_AT_ONCE_BYTES:
                return digest_of(path) == digest
            return await asyncio.to_thread(digest_of, path) == digest
        except OSError:
            return False

    def _use(self, digest: str, user: Hashable) -> None:
        self._users.setdefault(digest, set()).add(user)
        used = self._used_by.setdefault(user, {})
        used.pop(digest, None)
        used[digest] = None  # move it to the end: most recently used
        self._unused.pop(digest, None)

    def _make_room(self, more_bytes: int, *, files: int) -> None:
        """Evict unused artifacts until this many bytes and files fit."""
        while self._total_bytes + self._reserved_bytes + more_bytes > self._max_bytes:
            if not self._unused:
                raise CacheFull(
                    f"live sessions use {self._total_bytes} of the {self._max_bytes} bytes that this agent keeps, and "
                    f"uploads under way {self._reserved_bytes}; {more_bytes} more do not fit; raise cache_max_bytes"
                )
            self._forget(next(iter(self._unused)))
        while len(self._sizes) + files > self._max_files:
            if not self._unused:
                raise CacheFull(
                    f"live sessions use {len(self._sizes)} artifacts, as many as this agent keeps; end one of them"
                )
            self._forget(next(iter(self._unused)))

    def _make_room_on_disk(self, size_bytes: int) -> None:
        """Evict unused artifacts if the shared disk has less space than the store may take."""
        while self._unused and shutil.disk_usage(self._directory).free < size_bytes:
            self._forget(next(iter(self._unused)))

    def _forget(self, digest: str) -> None:
        if digest in self._sizes:
            self._total_bytes -= disk_bytes(self._sizes.pop(digest))
        self._unused.pop(digest, None)
        for user in self._users.pop(digest, ()):
            self._checked.discard((digest, user))
            self._used_by[user].pop(digest, None)
        self._path(digest).unlink(missing_ok=True)


class Incoming:
    """An artifact that is being received. As a context manager, it removes unfinished files."""

    def __init__(self, store: ArtifactStore, digest: str, size_bytes: int, path: Path) -> None:
        self._store = store
        self._digest = digest
        self._size_bytes = size_bytes
        self._path = path
        self._hash = hashlib.sha256()
        self._received_bytes = 0
        self._file = path.open("wb")
        self._is_under_way = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()
        # Closing flushes the buffer: on a full disk it fails again, and the reservation has to be released first.
        with contextlib.suppress(OSError):
            self._file.close()
        self._path.unlink(missing_ok=True)

    def write(self, chunk: bytes) -> None:
        """Take the next chunk.

        Raises:
            ArtifactRefused: more came than was announced.
            OSError: the disk is full.
        """
        self._received_bytes += len(chunk)
        if self._received_bytes > self._size_bytes:
            raise ArtifactRefused(
                f"{self._digest}: more than the announced {self._size_bytes} bytes came; put it again"
            )
        self._hash.update(chunk)
        self._file.write(chunk)

    def finish(self, user: Hashable) -> None:
        """Verify the whole artifact and store it, kept for `user`.

        Raises:
            ArtifactRefused: its size or hash is wrong.
            OSError: the disk is full.
        """
        if self._received_bytes != self._size_bytes:
            raise ArtifactRefused(
                f"{self._digest}: {self._received_bytes} of the announced {self._size_bytes} bytes came; put it again"
            )
        found = f"sha256:{self._hash.hexdigest()}"
        if found != self._digest:
            raise ArtifactRefused(f"the artifact was announced as {self._digest}, but is {found}; put it again")
        os.fchmod(self._file.fileno(), 0o444)
        self._file.close()
        self._end()
        self._store.admit(self._digest, self._path, self._size_bytes, user)

    def _end(self) -> None:
        if self._is_under_way:
            self._is_under_way = False
            self._store.end_upload(self._size_bytes)


def check_digest(digest: str) -> None:
    """Refuse everything except a digest: other texts could name another file.

    Raises:
        InvalidRequest: it is not a digest.
    """
    if not _DIGEST.fullmatch(digest):
        raise InvalidRequest(f"{digest[:100]!r} is no artifact digest; write it as sha256: and 64 hexadecimal digits")
