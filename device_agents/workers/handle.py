"""The agent's handle of a worker process: one exchange at a time, with limits, and terminated after a failure."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from google.protobuf.message import DecodeError

from device_agents.jail.layers import Layer
from device_agents.jail.view import IN_MEMORY
from device_agents.machine.frames import BrokenFrame
from device_agents.machine.linux import resident_bytes
from device_agents.runtimes.contract import OUT_OF_MEMORY_EXIT_CODE, DeviceLost, WorkerEnd
from device_agents.workers.answers import LARGEST, AnswerBound
from device_agents.workers.contents import Buffer, split_answer
from device_agents.workers.directory import WorkerDirectory
from device_agents.workers.family import Exit, Family
from device_agents.workers.limits import MAX_PROCESSES, SAMPLE_SEC, Excess, WorkerLimits, find_excess
from device_agents.workers.link import WorkerLink
from device_agents.workers.output import OutputPipe, native_exception
from fleet.base.text import sanitize_lines
from fleet.domain.measuring import ErrorKind
from fleet.errors import InvalidRequest
from fleet.v1 import session_service_pb2, worker_pb2

logger = logging.getLogger(__name__)

_Parse: TypeAlias = Callable[[bytearray], worker_pb2.WorkerResponse]

_EXIT_GRACE_SEC = 0.5
"""Time for a worker with a closed socket to end by itself, so that its own signal is reported."""

_RPC_START_SEC = 30.0
_TAIL_CHARS = 1500


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """Wait for killed processes."""

    reported_sec: float = 1.0
    """A worker that survives this long is reported, and its device takes no lease until it is gone [s]."""

    given_up_sec: float = 10.0
    """The worker's session ends without it."""

    at_end_sec: float = 5.0
    """At the agent's own end, the worker is left to the kernel."""


class WorkerLost(Exception):
    """A candidate ended its worker, or the worker had to be killed. The message has no control characters."""

    def __init__(self, kind: ErrorKind, message: str, signal_number: int = 0) -> None:
        super().__init__(sanitize_lines(message))
        self.kind = kind
        self.signal_number = signal_number


class WorkerHandle:
    """One worker process."""

    def __init__(
        self,
        *,
        family: Family,
        directory: WorkerDirectory,
        limits: WorkerLimits,
        output: OutputPipe,
        link: WorkerLink,
        patience: Patience,
        jail: str = "",
    ) -> None:
        self.pid = family.worker.pid if family.worker is not None else 0
        self.jail = jail
        """The layers that it is in, by name."""

        self.has_run_candidates = False
        """True once the worker was given an artifact; from then on, a candidate may forge its responses."""

        self.device_cycles = 0
        """Power cycles of its device before it was started."""

        self._family = family
        self._directory = directory
        self._limits = limits
        self._output = output
        self._exited = family.exited
        self._link = link
        self._patience = patience
        self._excess: asyncio.Future[Excess] = asyncio.get_running_loop().create_future()
        """Done when it was found to use more than it may."""

        self._watch = asyncio.create_task(self._look_after(), name=f"watch-worker-{self.pid}")
        self._end: asyncio.Task[None] | None = None
        self._killed_sec: float | None = None

    @property
    def is_usable(self) -> bool:
        """True while the process can take a request."""
        return self._end is None and not (self._exited.done() or self._excess.done()) and self._link.is_open

    @property
    def is_bloated(self) -> bool:
        """True if it holds too much memory between candidates for the next one's limit."""
        return resident_bytes(self.pid) > self._limits.memory_bytes // 2

    def processes(self) -> list[int]:
        """Return the ids of the worker's keeper, its process and its descendants."""
        keeper = self._family.keeper
        return [*([keeper.pid] if keeper is not None else []), *self._family.members(MAX_PROCESSES)]

    def give(self, artifact: Path) -> str:
        """Let the worker read an artifact; return its path for the worker."""
        self.has_run_candidates = True
        return str(self._directory.give(artifact))

    async def exchange(
        self, request: bytes | Sequence[Buffer], timeout_sec: float, bound: AnswerBound = LARGEST
    ) -> worker_pb2.WorkerResponse:
        """Send a request and return the response. If the worker announced it as its last, it has ended on return.

        The worker is dead and gone whenever this raises, also when it is cancelled.

        Args:
            request: one buffer, or consecutive parts.

        Raises:
            WorkerLost: the worker crashed, hung, or exceeded a limit.
        """
        return await self._exchange(request, timeout_sec, bound, _parse_whole)

    async def exchange_call(
        self, request: Sequence[Buffer], timeout_sec: float, bound: AnswerBound
    ) -> tuple[session_service_pb2.CallResponse, tuple[Buffer, ...]]:
        """Send a call and return its response and, separately, its outputs still serialised; see `split_answer`.

        Raises:
            WorkerLost: see `exchange`.
        """
        outputs: list[Buffer] = []

        def parse(frame: bytearray) -> worker_pb2.WorkerResponse:
            response, outputs[:] = split_answer(frame, bound.most_fields)
            return response

        response = await self._exchange(request, timeout_sec, bound, parse)
        return response.call, tuple(outputs)

    async def serve_rpc(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Start a session of TVM's RPC protocol, and return its bytes. The worker takes no other request afterwards.

        Raises:
            WorkerLost: the worker crashed or hung.
            InvalidRequest: its runtime serves no such sessions.
        """
        request = worker_pb2.WorkerRequest(rpc_session=worker_pb2.RpcSession())
        response = await self.exchange(request.SerializeToString(), _RPC_START_SEC)
        if response.rpc_session.impossible:
            raise InvalidRequest(response.rpc_session.impossible)
        self.has_run_candidates = True
        try:
            return self._link.as_stream()
        except ConnectionError:
            raise await self._explain() from None

    async def failure(self) -> WorkerLost | None:
        """Wait for the end of a worker that closed its socket, and return its failure; None if it ended by itself."""
        lost = await self._explain()
        is_own_end = self._exited.done() and self._exited.result() == Exit()
        return None if is_own_end and not self._excess.done() else lost

    async def _exchange(
        self, request: bytes | Sequence[Buffer], timeout_sec: float, bound: AnswerBound, parse: _Parse
    ) -> worker_pb2.WorkerResponse:
        answer = self._link.ask(request, bound.frame_bytes)
        try:
            response = await self._supervise(answer, timeout_sec, bound, parse)
            if response.is_last:
                await self.kill()
            return response
        except BaseException:  # also if cancelled or interrupted; raised again
            answer.cancel()
            await asyncio.shield(self.kill())
            raise

    @property
    def is_stuck(self) -> bool:
        """True if it was killed a while ago and still exists: it hangs in the kernel, which no signal ends."""
        if self._killed_sec is None or self._exited.done():
            return False
        return asyncio.get_running_loop().time() - self._killed_sec >= self._patience.reported_sec

    @property
    def why_stuck(self) -> str:
        """Wait state in the kernel, if known."""
        return self._family.why_alive()

    async def kill(self) -> None:
        """Kill the worker. Return when the process, its descendants and its directory are gone. Idempotent.

        One that no signal ends `is_stuck` afterwards.
        """
        await asyncio.shield(self._begin_end())

    def _begin_end(self) -> asyncio.Task[None]:
        if self._end is None:
            self._end = asyncio.create_task(self._kill(), name=f"kill-worker-{self.pid}")
        return self._end

    async def _supervise(
        self, answer: asyncio.Future[bytearray], timeout_sec: float, bound: AnswerBound, parse: _Parse
    ) -> worker_pb2.WorkerResponse:
        await asyncio.wait((answer, self._excess), timeout=timeout_sec, return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():
            if self._excess.done():
                raise self._exceeded()
            raise WorkerLost(ErrorKind.TIMEOUT, self._with_tail(f"took longer than {timeout_sec:g} s"))
        try:
            content = answer.result()
            bound.check(content)
            return parse(content)
        except ConnectionError:
            raise await self._explain() from None
        except (BrokenFrame, DecodeError) as broken:
            message = self._with_tail(f"sent the agent something that is not an answer ({broken})")
            raise WorkerLost(ErrorKind.CRASHED, message) from None

    async def _look_after(self) -> None:
        """Enforce the worker's limits for as long as it lives, also between candidates."""
        has_own_root = Layer.MOUNT in self.jail.split()
        in_memory = [f"/proc/{self.pid}/root{path}" for path in IN_MEMORY] if has_own_root else []
        while not self._exited.done():
            self._family.kill_orphans()
            members = self._family.members(MAX_PROCESSES)
            excess = find_excess(members, str(self._directory.home), self._limits, in_memory)
            if excess is not None:
                self._excess.set_result(excess)
                logger.warning("worker used more than it may", extra={"pid": self.pid, "excess": excess.message})
                self._begin_end()
                return
            await asyncio.sleep(SAMPLE_SEC)

    def _exceeded(self) -> WorkerLost:
        excess = self._excess.result()
        return WorkerLost(excess.kind, self._with_tail(excess.message))

    async def _explain(self) -> WorkerLost:
        """Return why the socket closed."""
        if self._excess.done():
            return self._exceeded()
        await asyncio.wait((self._exited,), timeout=_EXIT_GRACE_SEC)
        if self._family.is_worker_gone:
            # The keeper reports the end, and may have to wait for a processor on a busy board.
            await asyncio.wait((self._exited,), timeout=self._patience.given_up_sec)
        if self._exited.done():
            return self._explain_exit(self._exited.result())
        return WorkerLost(ErrorKind.CRASHED, self._with_tail("closed its connection to the agent"))

    def _explain_exit(self, end: Exit) -> WorkerLost:
        tail = self._output.tail()
        if end.is_keeper_lost:
            return WorkerLost(
                ErrorKind.CRASHED,
                self._with_tail("killed its keeper, the process between it and the agent"),
                signal.SIGKILL,
            )
        if end.signal == signal.SIGXFSZ:
            return WorkerLost(ErrorKind.OUT_OF_DISK, self._with_tail("wrote a file beyond the limit"))
        if end.code == DeviceLost.exit_code:
            return WorkerLost(ErrorKind.DEVICE_FAULTED, self._with_tail("lost its device"))
        if end.code == WorkerEnd.exit_code and tail:
            return WorkerLost(ErrorKind.CRASHED, tail[-_TAIL_CHARS:])
        if end.is_out_of_memory:
            return WorkerLost(ErrorKind.OUT_OF_MEMORY, self._with_tail("was killed at its limit of memory"))
        is_aborted = end.signal == signal.SIGABRT
        if end.code == OUT_OF_MEMORY_EXIT_CODE or (is_aborted and native_exception(tail) == "std::bad_alloc"):
            return WorkerLost(ErrorKind.OUT_OF_MEMORY, self._with_tail("could not get memory"))
        if end.signal:
            return WorkerLost(ErrorKind.CRASHED, self._with_tail(f"ended by {_signal_name(end.signal)}"), end.signal)
        return WorkerLost(ErrorKind.CRASHED, self._with_tail(f"ended its process with exit code {end.code}"))

    def _with_tail(self, message: str) -> str:
        tail = self._output.tail()[-_TAIL_CHARS:]
        return f"{message}; it wrote: {tail}" if tail else message

    async def _kill(self) -> None:
        self._watch.cancel()
        self._killed_sec = asyncio.get_running_loop().time()
        killing = asyncio.create_task(self._family.kill(), name=f"kill-family-{self.pid}")
        await asyncio.wait((killing,), timeout=self._patience.reported_sec)
        if not killing.done():
            extra = {"pid": self.pid, "why": self.why_stuck}
            logger.warning("killed worker is still there", extra=extra)
            await asyncio.wait((killing,), timeout=self._patience.given_up_sec)
            killing.cancel()
        self._output.tail()
        self._output.close()
        self._link.close()
        await asyncio.to_thread(self._directory.remove)


def _parse_whole(frame: bytearray) -> worker_pb2.WorkerResponse:
    return worker_pb2.WorkerResponse.FromString(frame)  # type: ignore[arg-type] # any buffer will do


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
