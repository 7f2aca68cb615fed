"""Folders for the files that targets read."""

from __future__ import annotations

import atexit
import functools
import shutil
import tempfile
from pathlib import Path


@functools.cache
def scratch() -> Path:
    """Return a folder of this process's own."""
    folder = tempfile.mkdtemp(prefix="fleet-fuzz-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def written(name: str, content: bytes) -> Path:
    """Return a file with this content, in place of the one before."""
    path = scratch() / name
    path.write_bytes(content)
    return path
