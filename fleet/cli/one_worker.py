"""Worker process for untrusted files of a command. Its crash does not end the command."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

from cross.pool.build_pool import BuildPool
from cross.targets.target import Target

P = ParamSpec("P")
T = TypeVar("T")

_TASK_TIMEOUT_SEC = 3600.0


@dataclass(frozen=True, slots=True)
class OneWorker:
    """Runs one task at a time in a worker process."""

    pool: BuildPool

    def run(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a task and return its result.

        Raises:
            BuildError: the process crashed, or the task took longer than an hour.
            FleetError: the task raised it.
        """
        return self.pool.submit_within(_TASK_TIMEOUT_SEC, fn, *args, **kwargs).result()


@contextlib.contextmanager
def one_worker(target: Target) -> Iterator[OneWorker]:
    """Provide a worker, and kill it at the end of the block."""
    pool = BuildPool(1, target=target)
    try:
        yield OneWorker(pool)
    finally:
        pool.shutdown(wait=False)
