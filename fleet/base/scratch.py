"""Temporary folders that are removed even after kill -9: the next process that makes one removes abandoned ones.

Each holds a file that its maker keeps locked. The kernel releases the lock when the maker ends, however it ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

_PREFIX = "fleet-"
_ADOPTED = "pymp-"
"""Prefix of multiprocessing's folders: it removes them at an orderly end only."""

_OWNER = ".owner"


@contextlib.contextmanager
def scratch_dir(purpose: str) -> Iterator[Path]:
    """Make a folder named after its purpose, and remove it with its contents at the end.

    Raises:
        OSError: there is no room for it.
    """
    remove_abandoned(Path(tempfile.gettempdir()))
    folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{purpose}-"))
    owner = own(folder)
    try:
        yield folder
    finally:
        with contextlib.suppress(OSError):
            _remove(folder)
        os.close(owner)


def remove_abandoned(root: Path) -> None:
    """Remove the folders in `root` of ended processes. Folders that cannot be removed, such as another user's, stay."""
    for owner in [*root.glob(f"{_PREFIX}*/{_OWNER}"), *root.glob(f"{_ADOPTED}*/{_OWNER}")]:
        with contextlib.suppress(OSError):
            descriptor = os.open(owner, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _remove(owner.parent)
            finally:
                os.close(descriptor)


def _remove(folder: Path) -> None:
    """Remove a folder, its mark last: a child of the ended process may still write, and the next sweep must find it."""
    owner = folder / _OWNER
    for entry in folder.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry, ignore_errors=True)
        elif entry != owner:
            entry.unlink(missing_ok=True)
    owner.unlink()
    try:
        folder.rmdir()
    except OSError:
        os.close(own(folder))


def own(folder: Path) -> int:
    """Lock a folder as this process's while the returned descriptor is open. Also works for multiprocessing's folders.

    Raises:
        OSError: the disk is full, or the folder is marked already.
    """
    # Locked before it gets its name, so that it is never seen unlocked.
    hidden = folder / f"{_OWNER}.new"
    descriptor = os.open(hidden, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    hidden.rename(folder / _OWNER)
    return descriptor
