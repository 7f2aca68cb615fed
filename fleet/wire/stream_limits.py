"""Limits the number of streams of one kind, in total and per member, so that no member takes all of them."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator

from fleet.errors import LimitReached


class StreamLimits:
    """Counter of streams. Used from one event loop."""

    def __init__(self, most: int, *, most_of_one: int, what: str) -> None:
        """Args: most: in total. most_of_one: per key; without TLS there is one. what: activity of admitted callers,
        "read snapshots here".
        """
        self._most = most
        self._most_of_one = most_of_one
        self._what = what
        self._taken = Counter[str]()

    @contextlib.contextmanager
    def taken(self, key_id: str) -> Iterator[None]:
        """Hold a slot for the duration of the block.

        Raises:
            LimitReached: there is none.
        """
        if self._taken.total() >= self._most:
            raise LimitReached(f"{self._most} others {self._what}, and no more may; try again later")
        if self._taken[key_id] >= self._most_of_one:
            raise LimitReached(f"{self._most_of_one} streams of yours {self._what}; end some of them")
        self._taken[key_id] += 1
        try:
            yield
        finally:
            self._taken[key_id] -= 1
            if not self._taken[key_id]:
                del self._taken[key_id]
