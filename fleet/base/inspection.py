"""Protects a process that holds keys from inspection by others of the same user."""

from __future__ import annotations

import ctypes
import sys

_PR_SET_DUMPABLE = 4


def forbid_inspection() -> None:
    """Forbid processes of the same user to read this one's memory, attach to it, or dump it; children inherit this.

    On Linux; elsewhere it does nothing.
    """
    _set_dumpable(0)


def allow_inspection() -> None:
    """Undo `forbid_inspection`."""
    _set_dumpable(1)


def _set_dumpable(value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, value, 0, 0, 0)
