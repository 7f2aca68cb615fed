"""Imports large packages without garbage collection, which saves a seventh of the time of importing TVM."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def no_collection() -> Iterator[None]:
    """Disable the garbage collector during imports and exempt their objects, which live as long as the process.

    That spares the processes forked from this one, too: a look writes to every object, and so to every page.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
