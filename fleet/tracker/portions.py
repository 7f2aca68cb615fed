"""Long computations in portions: generators that yield after each, and return the result."""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

from fleet.tracker.pace import Pace

T = TypeVar("T")


def finished(steps: Generator[None, None, T]) -> T:
    """Return the result, without pauses."""
    while True:
        try:
            next(steps)
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]


async def paced(steps: Generator[None, None, T], pace: Pace) -> T:
    """Return the result, with each portion in its own turn of the event loop."""
    while True:
        await pace.turn()
        try:
            next(steps)
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]
