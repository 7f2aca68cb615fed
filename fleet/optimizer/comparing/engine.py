"""Times a model's engine in turns: it is prepared in a process of the build pool and runs only on request."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from fleet.building.pool import Pool
from fleet.checking.numerics import Array
from fleet.errors import BuildError
from fleet.models.confined import having
from fleet.models.engine_turns import ANSWERS, REQUESTS, serve_turns
from fleet.models.model import Model

_PREPARE_TIMEOUT_SEC = 600.0
_TURN_TIMEOUT_SEC = 120.0
_TASK_TIMEOUT_SEC = 3_600.0
_END_TIMEOUT_SEC = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """Prepared engine in a process of its own."""

    requests: int
    """File descriptor of the engine's request pipe."""

    answers: asyncio.StreamReader
    task: asyncio.Future[None]

    async def time(self, repeat: int, min_repeat_sec: float, cpus: Sequence[int]) -> float:
        """Run the engine and return the total time of one run per set of shapes [s].

        Args:
            cpus: cores that it may use; empty for all.

        Raises:
            BuildError: the engine's process ended, or the run timed out.
        """
        request = {"repeat": repeat, "min_repeat_sec": min_repeat_sec, "cpus": list(cpus)}
        os.write(self.requests, f"{json.dumps(request)}\n".encode())
        answer = await self.answer(_TURN_TIMEOUT_SEC)
        return sum(cast("list[float]", answer["secs"]))

    async def answer(self, timeout_sec: float) -> dict[str, object]:
        """Return the next answer.

        Raises:
            BuildError: the engine's process ended, or the answer timed out.
        """
        reading = asyncio.ensure_future(self.answers.readline())
        waiting: list[asyncio.Future[Any]] = [reading, self.task]
        await asyncio.wait(waiting, timeout=timeout_sec, return_when=asyncio.FIRST_COMPLETED)
        if not reading.done():
            reading.cancel()
            raise BuildError("the engine's process ended" if self.task.done() else "the engine takes too long")
        return cast("dict[str, object]", json.loads(reading.result()))


@asynccontextmanager
async def engine_ready(
    pool: Pool, model: Model, inputs: Sequence[Sequence[Array]], *, folder: Path, threads: int
) -> AsyncIterator[Engine | None]:
    """Prepare the engine of a model's format; yield None if it is not installed or refuses the model.

    Args:
        inputs: input arrays for each set of the model's shapes.
        folder: parent of the temporary folder for the pipes.
        threads: number of threads for the engine.
    """
    place = Path(tempfile.mkdtemp(prefix="engine-", dir=folder))
    for name in (REQUESTS, ANSWERS):
        os.mkfifo(place / name)
    requests, answers = (os.open(place / name, os.O_RDWR | os.O_NONBLOCK) for name in (REQUESTS, ANSWERS))
    reader = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(answers, "rb", buffering=0)
    )
    task = asyncio.wrap_future(
        pool.submit_within(
            _TASK_TIMEOUT_SEC,
            having(serve_turns, model, writable=place),
            model.variants,
            inputs,
            place,
            threads=threads,
        )
    )
    engine = Engine(requests=requests, answers=reader, task=task)
    try:
        yield engine if await _is_ready(engine) else None
    finally:
        os.write(requests, b"null\n")
        with contextlib.suppress(BuildError, TimeoutError, asyncio.CancelledError):
            async with asyncio.timeout(_END_TIMEOUT_SEC):
                await task
        transport.close()
        os.close(requests)
        shutil.rmtree(place, ignore_errors=True)


async def _is_ready(engine: Engine) -> bool:
    try:
        return bool((await engine.answer(_PREPARE_TIMEOUT_SEC)).get("is_ready"))
    except BuildError:
        return False
