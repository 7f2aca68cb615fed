"""Files that only their owner may read: keys, credentials, secrets.

A file is written under another name and moved in place, so that a reader finds all of it or nothing, and it never
exists with wider rights than its owner's.
"""

from __future__ import annotations

import contextlib
import os
import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from fleet.errors import ConfigError

_OTHERS = 0o077


def make_private_dir(folder: Path) -> None:
    """Create a folder with its parents, and restrict it to its owner. Idempotent.

    Raises:
        ConfigError: it is there already, for everybody, as /tmp is: others would be locked out of it.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    mode = folder.stat().st_mode
    if mode & stat.S_ISVTX and mode & stat.S_IWOTH:
        raise ConfigError(f"{folder} is everybody's, and keys need a folder of their own; name one below it")
    if mode & _OTHERS:
        folder.chmod(0o700)


def write_private(path: Path, content: bytes) -> None:
    """Write a file of mode 0600 atomically and durably.

    Raises:
        OSError: there is no room, or the folder cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with private_file(path) as file:
        file.write(content)


@contextlib.contextmanager
def private_file(path: Path) -> Iterator[BinaryIO]:
    """Open a new file of mode 0600 for writing; at the end it replaces `path` durably, after an error nothing changes.

    Raises:
        OSError: there is no room, or the folder cannot be written.
    """
    fresh = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_native_id()}")
    fresh.unlink(missing_ok=True)  # left by an earlier process with our pid: in a container every process is 1
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        fresh.rename(path)
    except BaseException:  # also if cancelled or interrupted; raised again
        fresh.unlink(missing_ok=True)
        raise


def read_private(path: Path) -> bytes:
    """Read a file that must not be readable by other accounts.

    Raises:
        FileNotFoundError: there is none.
        ConfigError: others can read or write it, so that its content is no secret, or it is not ours to read.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    with os.fdopen(descriptor, "rb") as file:
        if os.fstat(descriptor).st_mode & _OTHERS:
            raise ConfigError(f"others can read or write {path}, which holds a key; remove it, and join again")
        return file.read()
