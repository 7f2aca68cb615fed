"""Cache of the tests for slow preparations (sysroots, downloaded wheels, native builds), between runs and CI steps."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_REPOSITORY = Path(__file__).resolve().parents[2]


def cache_dir() -> Path:
    """Return the directory, created if need be: $FLEET_TEST_CACHE, else build/test-cache of this checkout."""
    given = os.environ.get("FLEET_TEST_CACHE")
    folder = Path(given) if given else _REPOSITORY / "build" / "test-cache"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextmanager
def locked(name: str) -> Iterator[None]:
    """Hold the lock of one entry: the first process prepares it, the others wait for it."""
    folder = cache_dir() / "locks"
    folder.mkdir(exist_ok=True)
    with (folder / name).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
