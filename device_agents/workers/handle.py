"""A worker process as the agent holds it: one exchange at a time, watched, and dead for certain after a failure."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import signal
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from google.protobuf.message import DecodeError

from device_agents.machine.frames import BrokenFrame
from device_agents.machine.linux import resident_bytes
from device_agents.runtimes.contract import DeviceLost, WorkerEnd
from device_agents.workers.limits import SAMPLE_SEC, WorkerLimits, find_excess
from device_agents.workers.link import WorkerLink
from device_agents.workers.output import OutputPipe
from fleet.domain.measuring import ErrorKind
from fleet.v1 import worker_pb2

_EXIT_GRACE_SEC = 0.5
"""How long a worker whose socket closed may take to end by itself, so that its own signal is what gets reported."""

_KILL_SEC = 10.0
"""How long the kernel may take to end a killed worker and give its memory back."""

_TAIL_CHARS = 1500
_MEMORY_WORDS = ("bad_alloc", "MemoryError", "out of memory")


@dataclass(frozen=True, slots=True, kw_only=True)
class Exit:
    """How a worker process ended."""

    code: int = 0
    signal: int = 0
    is_parent_lost: bool = False
    """The warm process ended, and the worker with it."""


class WorkerLost(Exception):
    """A candidate ended its worker, or had to be ended with it."""

    def __init__(self, kind: ErrorKind, message: str, signal_number: int = 0) -> None:
        super().__init__(message)
        self.kind = kind
        self.signal_number = signal_number


class WorkerHandle:
    """One worker process."""

    def __init__(
        self,
        *,
        pid: int,
        directory: str,
        limits: WorkerLimits,
        output: OutputPipe,
        exited: asyncio.Future[Exit],
        ask_to_kill: Callable[[], Awaitable[None]],
        link: WorkerLink,
        kill_sec: float = _KILL_SEC,
    ) -> None:
        self.pid = pid
        self._directory = directory
        self._limits = limits
        self._output = output
        self._exited = exited
        self._ask_to_kill = ask_to_kill
        self._link = link
        self._kill_sec = kill_sec
        self._end: asyncio.Task[None] | None = None

    @property
    def is_usable(self) -> bool:
        """True while the process can take a request."""
        return self._end is None and not self._exited.done() and self._link.is_open

    @property
    def is_bloated(self) -> bool:
        """True when it holds so much between candidates that the next one would not get its share."""
        return resident_bytes(self.pid) > self._limits.memory_bytes // 2

    async def exchange(self, request: bytes, timeout_sec: float) -> worker_pb2.WorkerResponse:
        """Send a request and return the response. A worker that announced it as its last has ended by then.

        The worker is dead and gone whenever this raises, also when it is cancelled.

        Raises:
            WorkerLost: it crashed, hung, or used more than it may.
        """
        answer = self._link.ask(request)
        try:
            response = await self._supervise(answer, timeout_sec)
            if response.is_last:
                await self.kill()
            return response
        except BaseException:
            answer.cancel()
            await asyncio.shield(self.kill())
            raise

    @property
    def is_stuck(self) -> bool:
        """True when it was killed and is still there: it hangs in the kernel, which no signal ends."""
        return self._end is not None and self._end.done() and not self._exited.done()

    async def kill(self) -> None:
        """Return when the process, all that descends from it, and its directory are gone. Idempotent.

        One that no signal ends `is_stuck` afterwards.
        """
        if self._end is None:
            self._end = asyncio.create_task(self._kill(), name=f"kill-worker-{self.pid}")
        await asyncio.shield(self._end)

    async def _supervise(self, answer: asyncio.Future[bytes], timeout_sec: float) -> worker_pb2.WorkerResponse:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_sec
        while True:
            left = deadline - loop.time()
            if left <= 0:
                raise WorkerLost(ErrorKind.TIMEOUT, self._with_tail(f"took longer than {timeout_sec:g} s"))
            await asyncio.wait((answer,), timeout=min(left, SAMPLE_SEC))
            if answer.done():
                try:
                    return worker_pb2.WorkerResponse.FromString(answer.result())
                except ConnectionError:
                    raise await self._explain() from None
                except (BrokenFrame, DecodeError):
                    message = self._with_tail("sent the agent something that is not an answer")
                    raise WorkerLost(ErrorKind.CRASHED, message) from None
            excess = find_excess(self.pid, self._directory, self._limits)
            if excess is not None:
                raise WorkerLost(excess.kind, self._with_tail(excess.message))

    async def _explain(self) -> WorkerLost:
        """Say why the socket closed."""
        with contextlib.suppress(TimeoutError):
            end = await asyncio.wait_for(asyncio.shield(self._exited), _EXIT_GRACE_SEC)
            return self._explain_exit(end)
        return WorkerLost(ErrorKind.CRASHED, self._with_tail("closed its connection to the agent"))

    def _explain_exit(self, end: Exit) -> WorkerLost:
        tail = self._output.tail()
        if end.is_parent_lost:
            return WorkerLost(
                ErrorKind.CRASHED,
                self._with_tail("killed the process that workers are forked from"),
                signal.SIGKILL,
            )
        if end.signal == signal.SIGXFSZ:
            return WorkerLost(ErrorKind.OUT_OF_DISK, self._with_tail("wrote a file beyond the limit"))
        if end.code == DeviceLost.exit_code:
            return WorkerLost(ErrorKind.DEVICE_FAULTED, self._with_tail("lost its device"))
        if end.code == WorkerEnd.exit_code and tail:
            return WorkerLost(ErrorKind.CRASHED, tail[-_TAIL_CHARS:])
        if any(word in tail for word in _MEMORY_WORDS):
            return WorkerLost(ErrorKind.OUT_OF_MEMORY, self._with_tail("could not get memory"))
        if end.signal:
            return WorkerLost(ErrorKind.CRASHED, self._with_tail(f"ended by {_signal_name(end.signal)}"), end.signal)
        return WorkerLost(ErrorKind.CRASHED, self._with_tail(f"ended its process with exit code {end.code}"))

    def _with_tail(self, message: str) -> str:
        tail = self._output.tail()[-_TAIL_CHARS:]
        return f"{message}; it wrote: {tail}" if tail else message

    async def _kill(self) -> None:
        if not self._exited.done():
            await self._ask_to_kill()
            await asyncio.wait((self._exited,), timeout=self._kill_sec)
        self._output.tail()
        self._output.close()
        self._link.close()
        await asyncio.to_thread(shutil.rmtree, self._directory, ignore_errors=True)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
