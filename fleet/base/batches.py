"""Splits iterables into batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TypeVar

T = TypeVar("T")


def batched(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Yield the items in lists of at most `size`; `itertools.batched` needs Python 3.12."""
    iterator = iter(items)
    while batch := list(islice(iterator, size)):
        yield batch
