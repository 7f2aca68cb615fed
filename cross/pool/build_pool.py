"""A `concurrent.futures.Executor` of warm worker processes, for builds that may crash and hang.

One thread of this process looks after one worker. It hands over a task, waits for the answer or the end of the time
limit, and replaces the worker when that died or had to be killed. So a segmentation fault in LLVM, a hang or a Python
error costs the one task in that worker: its Future fails with BuildError, all others go on.

Workers are forked from a server process that has TVM loaded (`cross.pool.warm`), lead a process group of their own, and
die with this process, however it ends.
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import pickle
import shutil
import signal
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from cross.pool import worker
from cross.pool.confined import Confined, read_answer
from cross.pool.fork_server import start_fork_server, starting
from cross.pool.task_queue import TaskQueue
from cross.targets.target import Target
from fleet.base.machine import machine_fingerprint
from fleet.base.scratch import scratch_dir
from fleet.errors import BuildError, ErrorKind

logger = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

DEFAULT_TIMEOUT_SEC = 30.0

_START_TIMEOUT_SEC = 120.0
"""A worker has to be warm within this. Importing TVM takes 0.6 s, much longer from a cold disk."""

_CLOSE_TIMEOUT_SEC = 2.0
_STDERR_LINES = 12
_TVM_SEGFAULT = "!!!!!!! Segfault encountered !!!!!!!"
_STACK_LINES = 6
"""Lines kept of TVM's stack at a segmentation fault: the top names the crashed function, the rest is Python's."""


class BuildPool(Executor):
    """Runs module-level functions in worker processes, each task within a time limit."""

    def __init__(
        self,
        workers: int | None = None,
        *,
        timeout_sec: float = DEFAULT_TIMEOUT_SEC,
        target: Target | None = None,
        modules: Sequence[str] = (),
    ) -> None:
        """Make a pool without any process yet.

        Args:
            workers: processes; None means one per core.
            timeout_sec: limit for a task of `submit`, counted from when a warm worker has it.
            target: its tensor intrinsics are loaded in advance.
            modules: imports of tasks beside TVM, imported in advance by the first pool of a process.
        """
        self._timeout_sec = timeout_sec
        self._target = target
        self._modules = tuple(modules)
        self._tasks: TaskQueue[_Task] = TaskQueue()
        self._slots = [_Slot(index, target) for index in range(workers or os.cpu_count() or 1)]
        self._homes: dict[str, int] = {}
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._is_closed = False

    @property
    def size(self) -> int:
        """Number of worker processes."""
        return len(self._slots)

    @property
    def hosts(self) -> frozenset[str]:
        """Fingerprint of this machine: the workers use its cores."""
        return frozenset({machine_fingerprint()})

    def start(self) -> None:
        """Start warming the workers and return at once. Otherwise the first `submit` starts them."""
        with self._lock:
            if self._threads or self._is_closed:
                return
            start_fork_server(self._target if self._target and self._target.intrinsics_family else None, self._modules)
            self._threads = [
                threading.Thread(target=slot.run, args=(self._tasks,), name=f"build-pool-{slot.index}", daemon=True)
                for slot in self._slots
            ]
            for thread in self._threads:
                thread.start()

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Run `fn` in a worker within the pool's time limit."""
        return self._put(self._timeout_sec, partial(fn, *args, **kwargs))

    def submit_within(self, timeout_sec: float, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Run `fn` in a worker within a time limit of its own."""
        return self._put(timeout_sec, partial(fn, *args, **kwargs))

    def submit_near(
        self, key: str, timeout_sec: float, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs
    ) -> Future[T]:
        """Run `fn` like `submit_within`, in the worker that ran earlier tasks of this key unless it is busy."""
        home = self._homes.setdefault(key, len(self._homes) % len(self._slots))
        return self._put(timeout_sec, partial(fn, *args, **kwargs), home)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more tasks and end the workers when the accepted ones are done.

        Without `wait`, running tasks are killed: their Futures fail with BuildError.
        """
        with self._lock:
            first = not self._is_closed
            self._is_closed = True
        if cancel_futures or not wait:
            self._cancel_waiting()
        if first:
            self._tasks.close()
        if not wait:
            for slot in self._slots:
                slot.kill()
        for thread in self._threads:
            thread.join()

    def _put(self, timeout_sec: float, call: partial[T], home: int | None = None) -> Future[T]:
        future: Future[T] = Future()
        payload = pickle.dumps(call)
        self.start()
        with self._lock:
            if self._is_closed:
                raise RuntimeError("the build pool is shut down")
            is_confined = isinstance(call.func, Confined)
            fn = call.func.fn if isinstance(call.func, Confined) else call.func
            task = _Task(future, payload, timeout_sec, getattr(fn, "__qualname__", str(fn)), is_confined)
            self._tasks.put(task, home)
        return future

    def _cancel_waiting(self) -> None:
        for task in self._tasks.clear():
            task.future.cancel()
            task.future.set_running_or_notify_cancel()


@dataclass(frozen=True, slots=True)
class _Task:
    future: Future[Any]
    payload: bytes
    timeout_sec: float
    name: str
    is_confined: bool = False


class _Worker:
    """One live worker process and the pipe to it."""

    def __init__(self, log_path: Path, target: Target | None) -> None:
        self.log_path = log_path
        self.connection: Connection
        context = multiprocessing.get_context("forkserver")
        self.connection, theirs = context.Pipe()
        self.process: BaseProcess = context.Process(
            target=worker.serve, args=(theirs, str(log_path), target), name="build-worker", daemon=True
        )
        with starting:
            self.process.start()
        theirs.close()

    @property
    def is_idle(self) -> bool:
        """True if the worker is alive without a task. Its pipe ends when it dies, before the fork server's report."""
        return self.process.is_alive() and not self.connection.poll()

    def wait_until_warm(self) -> None:
        """Wait until the worker can take tasks.

        Raises:
            BuildError: it cannot start.
        """
        message = self._receive(_START_TIMEOUT_SEC, "the start of a build worker")
        if isinstance(message, worker.Answer) and message.error is not None:
            raise message.error

    def run(self, task: _Task) -> worker.Answer:
        """Send a task and wait for its answer.

        Raises:
            BuildError: the worker crashed or ran out of time; it is dead then.
        """
        try:
            self.connection.send_bytes(task.payload)
        except OSError as error:
            raise self._crashed(task.name) from error
        message = self._receive(task.timeout_sec, task.name, is_trusted=not task.is_confined)
        if not isinstance(message, worker.Answer):
            raise BuildError(f"{task.name}: the worker answered with {message!r}")
        return message

    def kill(self) -> None:
        """Kill the worker and its descendants, and reap it."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if self.process.pid is not None and self.process.is_alive():
                os.killpg(self.process.pid, signal.SIGKILL)
        self.process.kill()
        self.process.join(_CLOSE_TIMEOUT_SEC)

    def close(self) -> None:
        """Let an idle worker exit."""
        self.connection.close()
        self.process.join(_CLOSE_TIMEOUT_SEC)
        if self.process.is_alive():
            self.kill()

    def _receive(self, timeout_sec: float, what: str, *, is_trusted: bool = True) -> object:
        try:
            if self.connection.poll(timeout_sec):
                return self.connection.recv() if is_trusted else read_answer(self.connection.recv_bytes())
        except (EOFError, OSError) as error:
            raise self._crashed(what) from error
        except Exception as error:  # pickle follows damaged content anywhere
            raise BuildError(f"{what}: its answer cannot be read: {error}") from error
        raise BuildError(f"{what} took longer than {timeout_sec:g} s and was killed", ErrorKind.BUILD_TIMEOUT)

    def _crashed(self, what: str) -> BuildError:
        self.process.join(_CLOSE_TIMEOUT_SEC)
        said = self._last_words()
        return BuildError(f"{what} {_describe_exit(self.process.exitcode)}" + (f":\n{said}" if said else ""))

    def _last_words(self) -> str:
        try:
            said = self.log_path.read_text(errors="replace")
        except OSError:
            return ""
        before, marker, stack = said.partition(_TVM_SEGFAULT)
        frames = stack.strip().splitlines()[:_STACK_LINES] if marker else []
        return "\n".join([*before.strip().splitlines()[-_STDERR_LINES:], *frames])


class _Slot:
    """Slot for one worker, and the body of the thread that keeps it filled."""

    def __init__(self, index: int, target: Target | None) -> None:
        self.index = index
        self._target = target
        self._worker: _Worker | None = None
        self._is_killed = False

    def run(self, tasks: TaskQueue[_Task]) -> None:
        """Serve tasks until the queue is closed and empty."""
        with scratch_dir("build") as scratch:
            log_path = scratch / "worker.log"
            self._try_to_warm(log_path)
            while (task := tasks.get(self.index)) is not None:
                if task.future.set_running_or_notify_cancel():
                    self._serve(task, log_path)
            if self._worker is not None:
                self._worker.close()

    def kill(self) -> None:
        """End the worker now, from any thread."""
        self._is_killed = True
        if self._worker is not None:
            self._worker.kill()

    def _serve(self, task: _Task, log_path: Path) -> None:
        try:
            run = self._run_confined if task.is_confined else self._run
            answer = run(task, log_path)
        except BuildError as error:
            self._drop_worker()
            if not self._is_killed:
                logger.warning("build worker replaced", extra={"task": task.name, "kind": error.kind})
            task.future.set_exception(error)
            self._try_to_warm(log_path)
            return
        except Exception as error:  # outermost edge of a task: its caller gets the error
            self._drop_worker()
            logger.exception("build worker cannot be started")
            task.future.set_exception(error)
            return
        if answer.error is not None:
            task.future.set_exception(answer.error)
        else:
            task.future.set_result(answer.value)

    def _run(self, task: _Task, log_path: Path) -> worker.Answer:
        return self._warm_worker(log_path).run(task)

    def _run_confined(self, task: _Task, log_path: Path) -> worker.Answer:
        """Run a task in a worker for this task only, with a writable folder of its own."""
        scratch = Path(f"{log_path}.scratch")
        scratch.mkdir(mode=0o700, exist_ok=True)
        try:
            return self._warm_worker(log_path).run(task)
        finally:
            self._drop_worker()
            shutil.rmtree(scratch, ignore_errors=True)
            self._try_to_warm(log_path)

    def _try_to_warm(self, log_path: Path) -> None:
        """Start a worker for the next task. That task retries after a failure, and reports its own."""
        try:
            self._warm_worker(log_path)
        except Exception as error:  # noqa: BLE001 - must not end the thread that serves the tasks
            logger.info("no build worker in advance", extra={"error": str(error)})

    def _warm_worker(self, log_path: Path) -> _Worker:
        if self._is_killed:
            raise BuildError("the build pool was shut down")
        if self._worker is not None and self._worker.is_idle:
            return self._worker
        self._drop_worker()
        fresh = self._worker = _Worker(log_path, self._target)
        if self._is_killed:  # killed during the start, when `kill` did not see the worker yet
            self._drop_worker()
            raise BuildError("the build pool was shut down")
        try:
            fresh.wait_until_warm()
        except BuildError:
            self._drop_worker()
            raise
        return fresh

    def _drop_worker(self) -> None:
        dead, self._worker = self._worker, None
        if dead is not None:
            dead.kill()
            dead.connection.close()


def _describe_exit(exit_code: int | None) -> str:
    if exit_code is not None and exit_code < 0:
        try:
            return f"crashed: {signal.Signals(-exit_code).name}"
        except ValueError:
            return f"crashed: signal {-exit_code}"
    return f"ended its worker with exit code {exit_code}"
