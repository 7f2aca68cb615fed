"""Tasks that report their cost: the processor time of a worker of the pool, and of the linkers that it ran."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, ParamSpec, TypeVar

T = TypeVar("T")
P = ParamSpec("P")


@dataclass(frozen=True, slots=True)
class Metered(Generic[T]):
    """A task's result and its cost."""

    value: T
    builder_sec: float
    """Processor time [s]."""


def metered(fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Metered[T]:
    """Run a task and measure its processor time. Passes its exceptions on."""
    before = _spent_sec()
    value = fn(*args, **kwargs)
    return Metered(value, _spent_sec() - before)


def _spent_sec() -> float:
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime
