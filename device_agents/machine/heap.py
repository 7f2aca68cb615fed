"""Tunes the C library's malloc so that freed memory goes back to the kernel."""

from __future__ import annotations

import contextlib
import ctypes

_M_MMAP_THRESHOLD, _M_ARENA_MAX = -3, -8
_LARGE_BYTES = 256 * 1024
_ARENAS = 2


def keep_heap_small() -> None:
    """Map large blocks one by one and share two arenas among all threads. Does nothing without glibc's malloc.

    By default, freeing a large block raises the mmap threshold to its size, up to 32 MiB. Later blocks of several
    megabytes then come from the heap. One small block behind them keeps the heap from shrinking: after requests of
    60 MiB an agent kept 200 MiB.
    """
    with contextlib.suppress(OSError, AttributeError):
        set_option = ctypes.CDLL(None).mallopt
        set_option(_M_MMAP_THRESHOLD, _LARGE_BYTES)
        set_option(_M_ARENA_MAX, _ARENAS)
