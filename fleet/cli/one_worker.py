"""One worker process for untrusted files of a command. A crash of it does not end the command."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

from cross.pool.build_pool import BuildPool

P = ParamSpec("P")
T = TypeVar("T")

_TASK_TIMEOUT_SEC = 3600.0


@dataclass(frozen=True, slots=True)
class OneWorker:
    """Runs tasks one after the other."""

    pool: BuildPool

    def run(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a task and return its result.

        Raises:
            BuildError: its process crashed, or it took longer than an hour.
            FleetError: whatever the task raises.
        """
        return self.pool.submit_within(_TASK_TIMEOUT_SEC, fn, *args, **kwargs).result()


@contextlib.contextmanager
def one_worker(target_json: str) -> Iterator[OneWorker]:
    """Provide a worker, and kill it at the end of the block."""
    pool = BuildPool(1, target_json=target_json)
    try:
        yield OneWorker(pool)
    finally:
        pool.shutdown(wait=False)
