"""Small in-memory file systems that can be filled, and simulation of a torn write. Linux, as root."""

from __future__ import annotations

import contextlib
import random
import subprocess
from pathlib import Path

_FILLER = "filler"
_PAGE_BYTES = 4096


def mount(folder: Path, size_mib: int) -> None:
    """Mount a file system of this size."""
    folder.mkdir(parents=True, exist_ok=True)
    options = f"size={size_mib}m,mode=700"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", str(folder)], check=True)


def fill(folder: Path) -> None:
    """Fill a file system."""
    with (folder / _FILLER).open("ab", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(_PAGE_BYTES))


def make_room(folder: Path) -> None:
    """Free the space again."""
    (folder / _FILLER).unlink(missing_ok=True)


def tear_last_page(journal: Path, rng: random.Random) -> str:
    """Overwrite a part of the last written page, of the log if there is one. Return a description of the damage."""
    log = journal.with_name(f"{journal.name}-wal")
    path = log if log.exists() and log.stat().st_size > _PAGE_BYTES else journal
    size = path.stat().st_size
    torn = rng.randrange(1, _PAGE_BYTES)
    with path.open("r+b") as file:
        file.seek(size - torn)
        file.write(rng.randbytes(torn))
    return f"the last {torn} bytes of {path.name}"
