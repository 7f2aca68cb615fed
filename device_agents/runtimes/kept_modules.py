"""Keeps the artifacts that a worker loaded last: repeats of a candidate come close together."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

M = TypeVar("M")


class KeptModules(Generic[M]):
    """Loaded modules by their artifact's digest."""

    def __init__(self, most: int, close: Callable[[M], object] = lambda _: None) -> None:
        """Args:
        most: modules kept; the one that was used longest ago is closed before another is loaded.
        """
        self._most = most
        self._close = close
        self._modules: OrderedDict[str, M] = OrderedDict()

    def get(self, digest: str, load: Callable[[], M]) -> M:
        """Return a module, loaded now if it is not kept."""
        module = self._modules.get(digest)
        if module is None:
            while len(self._modules) >= self._most:
                self._close(self._modules.popitem(last=False)[1])
            module = self._modules[digest] = load()
        self._modules.move_to_end(digest)
        return module

    def forget(self, digest: str) -> None:
        """Load this one anew the next time; it is not closed, since its caller still uses it."""
        self._modules.pop(digest, None)

    def clear(self) -> None:
        """Forget all; they are not closed, because their owner is gone."""
        self._modules.clear()
