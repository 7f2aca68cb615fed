"""Removes files left by kernels, even hostile ones."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path


def remove_tree(folder: Path) -> None:
    """Remove a folder and its content as far as possible, at any depth and with any permissions.

    Nested folders are moved to the top before they are emptied: a hostile kernel can nest thousands, deeper than the
    recursion limit and the longest path.
    """
    with contextlib.suppress(OSError):
        with _entered(folder) as top:
            waiting = _empty(top, top)
            while waiting:
                name = waiting.pop()
                with contextlib.suppress(OSError):
                    with _entered(name, top) as place:
                        waiting += _empty(place, top)
                    os.rmdir(name, dir_fd=top)
        folder.rmdir()


def _empty(place: int, top: int) -> list[str]:
    """Remove the files of a folder, and move its subfolders into `top`; return their names there."""
    moved = []
    for path in Path(f"/proc/self/fd/{place}").iterdir():
        with contextlib.suppress(OSError):
            try:
                path.unlink()
            except IsADirectoryError:
                fresh = secrets.token_hex(8)
                with _entered(path.name, place):
                    os.rename(path.name, fresh, src_dir_fd=place, dst_dir_fd=top)
                moved.append(fresh)
    return moved


@contextlib.contextmanager
def _entered(folder: Path | str, at: int | None = None) -> Iterator[int]:
    """Open a folder after restoring the write permission, which a kernel may have removed."""
    place = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
    try:
        Path(f"/proc/self/fd/{place}").chmod(0o700)
        yield place
    finally:
        os.close(place)
