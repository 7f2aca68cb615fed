"""Caches the artifacts that a worker loaded last: repeats of a candidate come close together."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

M = TypeVar("M")


class KeptModules(Generic[M]):
    """Loaded modules by artifact digest."""

    def __init__(self, most: int, close: Callable[[M], object] = lambda _: None) -> None:
        """Args: most: maximum number of modules. The least recently used one is closed before another is loaded."""
        self._most = most
        self._close = close
        self._modules: OrderedDict[str, M] = OrderedDict()

    def get(self, digest: str, load: Callable[[], M]) -> M:
        """Return a module, loading it if it is not cached."""
        module = self._modules.get(digest)
        if module is None:
            while len(self._modules) >= self._most:
                self._close(self._modules.popitem(last=False)[1])
            module = self._modules[digest] = load()
        self._modules.move_to_end(digest)
        return module

    def forget(self, digest: str) -> None:
        """Drop a module from the cache. It is not closed, since its caller still uses it."""
        self._modules.pop(digest, None)

    def clear(self) -> None:
        """Drop all modules without closing them, because their owner is gone."""
        self._modules.clear()
