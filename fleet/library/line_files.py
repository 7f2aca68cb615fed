"""Files of one JSON value per line: read in batches, and written beside their places until all are whole."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from fleet.errors import DiskFull, LibraryError, NoLibrary

_BATCH = 500
_BATCH_CHARS = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Consecutive lines of a file that are not empty."""

    lines: list[tuple[str, str]]
    """Position for messages and text of each line."""

    @property
    def digest(self) -> bytes:
        return hashlib.sha256("\n".join(text for _, text in self.lines).encode()).digest()


def read_batches(path: Path, most_chars: int) -> Iterator[Batch]:
    """Yield a file in batches of some hundred lines, or of some megabytes.

    Args:
        most_chars: of a line.

    Raises:
        NoLibrary: it cannot be read, is no text, or has a line that no program writes.
    """
    try:
        with path.open(encoding="utf-8") as file:
            yield from _batches(_numbered(file, path, most_chars))
    except OSError as error:
        raise NoLibrary(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise NoLibrary(f"{path} is no file of MetaSchedule's JSONDatabase: it is no text") from error


def _batches(numbered: Iterator[tuple[str, str]]) -> Iterator[Batch]:
    lines: list[tuple[str, str]] = []
    size = 0
    for line in numbered:
        lines.append(line)
        size += len(line[1])
        if len(lines) == _BATCH or size >= _BATCH_CHARS:
            yield Batch(lines=lines)
            lines, size = [], 0
    if lines:
        yield Batch(lines=lines)


def _numbered(file: TextIO, path: Path, most_chars: int) -> Iterator[tuple[str, str]]:
    number = 0
    while line := file.readline(most_chars + 1):
        number += 1
        if len(line) > most_chars:
            raise NoLibrary(f"{path}:{number} has more than {most_chars:,} characters")
        if text := line.strip():
            yield f"{path}:{number}", text


@contextlib.contextmanager
def written(directory: Path, names: Sequence[str], *, overwrite: bool) -> Iterator[list[TextIO]]:
    """Open files to write, which appear under their names when the block succeeds; otherwise none does.

    Raises:
        LibraryError: the directory has such files already, or cannot be written.
        DiskFull: no space left there.
    """
    existing = [name for name in names if (directory / name).exists()]
    if existing and not overwrite:
        raise LibraryError(f"{directory} has {' and '.join(existing)} already; name another directory, or --overwrite")
    with contextlib.ExitStack() as cleaning, _translated(directory):
        directory.mkdir(parents=True, exist_ok=True)
        with contextlib.ExitStack() as closing:
            made = [_temporary(directory, cleaning) for _ in names]
            yield [closing.enter_context(file) for _, file in made]
        for (path, _), name in zip(made, names, strict=True):
            path.replace(directory / name)


@contextlib.contextmanager
def _translated(directory: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        kind = DiskFull if error.errno in (errno.ENOSPC, errno.EDQUOT) else LibraryError
        raise kind(f"cannot write to {directory}: {error.strerror}") from error


def _temporary(directory: Path, cleaning: contextlib.ExitStack) -> tuple[Path, TextIO]:
    handle, name = tempfile.mkstemp(dir=directory, prefix=".export-")
    cleaning.callback(Path(name).unlink, missing_ok=True)
    os.fchmod(handle, 0o644)
    return Path(name), os.fdopen(handle, "w", encoding="utf-8")
