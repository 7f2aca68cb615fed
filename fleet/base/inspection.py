"""Keeps a process that holds keys from being looked into by others of the same user."""

from __future__ import annotations

import ctypes
import sys

_PR_SET_DUMPABLE = 4


def forbid_inspection() -> None:
    """Let no process of the same user read this one's memory, attach to it, or have it dumped; children inherit it.

    On Linux; elsewhere it does nothing.
    """
    _set_dumpable(0)


def allow_inspection() -> None:
    """Take `forbid_inspection` back."""
    _set_dumpable(1)


def _set_dumpable(value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, value, 0, 0, 0)
