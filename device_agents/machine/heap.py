"""The C library's heap, kept small: memory that is freed goes back to the kernel."""

from __future__ import annotations

import contextlib
import ctypes

_M_MMAP_THRESHOLD, _M_ARENA_MAX = -3, -8
_LARGE_BYTES = 256 * 1024
_ARENAS = 2


def keep_heap_small() -> None:
    """Have large blocks mapped by themselves, and the threads share two arenas. Only glibc's malloc can.

    By default the first large block that is freed moves the limit up to its size, as far as 32 MiB. Later ones of many
    megabytes come from the heap then, where one small block behind them keeps all of it: after requests of 60 MiB an
    agent kept 200 MiB.
    """
    with contextlib.suppress(OSError, AttributeError):
        set_option = ctypes.CDLL(None).mallopt
        set_option(_M_MMAP_THRESHOLD, _LARGE_BYTES)
        set_option(_M_ARENA_MAX, _ARENAS)
