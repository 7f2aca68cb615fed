"""Output files of commands: an unwritable path is refused before the work starts."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from pathlib import Path

from fleet.errors import ConfigError


def check_output(path: Path) -> None:
    """Refuse a path where no file can be written.

    Raises:
        ConfigError: it is a folder, a device or a pipe, or lies in a folder that is not there or cannot be written.
    """
    folder = path.absolute().parent
    if path.is_dir():
        raise ConfigError(f"{path} is a folder; name a file in it")
    if path.exists() and not path.is_file():  # a new file replaces an old one, but not /dev/null
        raise ConfigError(f"{path} is a device or a pipe, not a file; name a file")
    if not folder.is_dir():
        raise ConfigError(f"{path}: there is no folder {folder}; make it, or name a file elsewhere")
    if not os.access(folder, os.W_OK):
        raise ConfigError(f"cannot write {path}: {folder} is read-only, or not yours")
    try:
        with tempfile.TemporaryFile(dir=folder):  # `os.access` allows root everything, even in /proc
            pass
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from error


def put_file(source: Path, path: Path) -> None:
    """Move a finished file to its place atomically, also across file systems.

    Raises:
        OSError: the file cannot be written there.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        shutil.copy(source, partial)
        partial.replace(path)
    finally:
        with contextlib.suppress(OSError):
            partial.unlink()
