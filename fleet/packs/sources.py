"""Reads the files of a layout from a folder or a .tar file of strangers.

Names are `oci-layout`, `index.json` and `blobs/sha256/<hex>`, never a path of the pack's choice. No link is followed,
no device or pipe is opened, and a file is not read further than its limit.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Protocol

from fleet.errors import InvalidRequest, NotFound

_NAME = re.compile(r"oci-layout|index\.json|blobs/sha256/[0-9a-f]{64}")
_FOLDERS = ("", ".", "blobs", "blobs/sha256")

_MOST_MEMBERS = 128
_HEADER_BYTES = tarfile.BLOCKSIZE
_IGNORED_TYPES = (tarfile.XHDTYPE, tarfile.XGLTYPE)
"""Extended attributes, such as fractions of seconds: nothing in them matters here."""


class Readable(Protocol):
    """A file, or the body of a response."""

    def read(self, size: int, /) -> bytes:
        """Return up to `size` bytes; fewer only at the end."""
        ...


class Source(Protocol):
    """Files of a layout."""

    def open(self, name: str) -> contextlib.AbstractContextManager[tuple[Readable, int | None]]:
        """Return a file, positioned at its content, and its size; None if a server does not say.

        Raises:
            InvalidRequest: there is no such file, or it is something else.
        """
        ...


@contextmanager
def open_source(path: Path) -> Iterator[Source]:
    """Open a layout: a folder, or an uncompressed .tar file.

    Raises:
        NotFound: there is no such path, or it cannot be read.
        InvalidRequest: it is neither.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise NotFound(f"cannot read the pack {path}: {error.strerror}") from error
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            yield _Folder(descriptor)
        elif stat.S_ISREG(mode):
            with os.fdopen(os.dup(descriptor), "rb") as file:
                yield _Tar(file)
        else:
            raise InvalidRequest(f"{path} is neither a folder nor a .tar file")
    finally:
        os.close(descriptor)


def read_all(source: Source, name: str, most_bytes: int) -> bytes:
    """Return a file of a layout. Raises InvalidRequest."""
    with source.open(name) as (file, size):
        content = file.read(most_bytes + 1 if size is None else min(size, most_bytes + 1))
    if max(size or 0, len(content)) > most_bytes:
        raise InvalidRequest(f"its {name} has {f'{size:,}' if size else 'more'} bytes, more than {most_bytes:,}")
    if size not in (None, len(content)):
        raise InvalidRequest(f"its {name} is truncated")
    return content


class _Folder:
    def __init__(self, descriptor: int) -> None:
        self._root = descriptor

    @contextmanager
    def open(self, name: str) -> Iterator[tuple[Readable, int]]:
        *folders, leaf = name.split("/")
        with contextlib.ExitStack() as stack:
            at = self._root
            for folder in folders:
                at = _open_at(at, folder, os.O_DIRECTORY, name)
                stack.callback(os.close, at)
            descriptor = _open_at(at, leaf, 0, name)
            stack.callback(os.close, descriptor)
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode):
                raise InvalidRequest(f"its {name} is no file")
            yield stack.enter_context(os.fdopen(descriptor, "rb", closefd=False)), found.st_size


def _open_at(folder: int, name: str, flags: int, shown: str) -> int:
    flags |= os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        return os.open(name, flags, dir_fd=folder)
    except OSError as error:
        is_link = error.errno in (errno.ELOOP, errno.ENOTDIR)
        problem = "is a link, or lies behind one" if is_link else f"cannot be read: {error.strerror}"
        raise InvalidRequest(f"its {shown} {problem}") from error


class _Tar:
    """Reads headers one by one: `tarfile` would follow their links and extensions."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._members = dict(_members(file))

    @contextmanager
    def open(self, name: str) -> Iterator[tuple[Readable, int]]:
        if name not in self._members:
            raise InvalidRequest(f"it has no {name}")
        at, size = self._members[name]
        self._file.seek(at)
        yield self._file, size


def _members(file: BinaryIO) -> Iterator[tuple[str, tuple[int, int]]]:
    """Yield name, position and size of each file of a .tar file. Raises InvalidRequest."""
    end = os.fstat(file.fileno()).st_size
    at, seen = 0, set[str]()
    for _ in range(_MOST_MEMBERS):
        file.seek(at)
        header = file.read(_HEADER_BYTES)
        if not header.strip(b"\0"):
            return
        member = _member(header)
        start = at + _HEADER_BYTES
        at = start + -(-member.size // _HEADER_BYTES) * _HEADER_BYTES
        if member.size < 0 or start + member.size > end:
            raise InvalidRequest("the .tar file is truncated")
        name = member.name.removeprefix("./").rstrip("/")
        if member.type in _IGNORED_TYPES or (member.isdir() and name in _FOLDERS):
            continue
        if member.type not in (tarfile.REGTYPE, tarfile.AREGTYPE):
            raise InvalidRequest(f"the .tar file has {name[:80]!r}, which is a link or no file")
        if not _NAME.fullmatch(name) or name in seen:
            raise InvalidRequest(f"the .tar file has {name[:80]!r}, which no layout has, or has it twice")
        seen.add(name)
        yield name, (start, member.size)
    raise InvalidRequest(f"the .tar file has more than {_MOST_MEMBERS} entries")


def _member(header: bytes) -> tarfile.TarInfo:
    try:
        return tarfile.TarInfo.frombuf(header, "ascii", "strict")
    except (tarfile.HeaderError, UnicodeError, ValueError) as error:
        raise InvalidRequest("it is no uncompressed .tar file") from error
