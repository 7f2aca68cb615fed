"""Reads small files of /proc and /sys, where a missing or unreadable file is not an error."""

from __future__ import annotations

import os
from pathlib import Path


def read_head(path: Path, most_bytes: int = 4096) -> bytes | None:
    """Return the beginning of a file; None when it cannot be read.

    Plain os calls: readings are taken around every measurement, and Path takes three times as long.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return os.read(descriptor, most_bytes)
    except OSError:
        return None  # a sleeping sensor fails with EBUSY or ENODATA
    finally:
        os.close(descriptor)


def read_word(path: Path, most_bytes: int = 4096) -> str | None:
    """Return a file's text without its line end; None if it cannot be read."""
    head = read_head(path, most_bytes)
    return None if head is None else head.decode(errors="replace").strip()


def read_int(path: Path) -> int | None:
    """Return the number in a file; None if it cannot be read or is not a number."""
    try:
        return int(read_head(path) or b"")
    except ValueError:
        return None
