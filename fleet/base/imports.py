"""Importing large packages without looking for garbage meanwhile: a seventh of the time that TVM's import takes."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def no_collection() -> Iterator[None]:
    """Import modules that live as long as the process: the garbage collector never looks at them.

    That spares the processes forked from this one, too: a look writes to every object, and so to every page.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
