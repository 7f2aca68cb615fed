"""The agent's side of the warm process: starts it, asks it for workers, starts another when it is gone."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import logging
import os
import secrets
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

from device_agents.driver import WorkerSpec
from device_agents.machine import linux
from device_agents.machine.ending import end
from device_agents.workers.handle import Exit, WorkerHandle
from device_agents.workers.limits import WorkerLimits
from device_agents.workers.link import WorkerLink
from device_agents.workers.output import OutputPipe
from device_agents.workers.warm import MAX_PACKET_BYTES
from device_agents.workers.worker import WorkerOrder
from fleet.errors import ConfigError, DeviceClosed, DeviceFaulted

logger = logging.getLogger(__name__)

T = TypeVar("T")

_MARK = "FLEET_AGENT_MARK"
"""Set in the environment of the warm process and its descendants, to find and kill them once it is gone itself."""

_START_SEC = 30.0
_LONGEST_PAUSE_SEC = 30.0
_REAP_SEC = 5.0


class WorkerPool:
    """Makes worker processes."""

    def __init__(
        self,
        directory: Path,
        preloads: Sequence[str],
        limits: WorkerLimits,
        *,
        restarts: int = 5,
        reap_sec: float = _REAP_SEC,
        warm_module: str = "device_agents.workers.warm",
    ) -> None:
        """Args:
        preloads: modules whose `preload()` the warm process calls, so that every worker has what it loads.
        restarts: attempts in a row before the devices count as faulted; attempts go on after that, less often.
        reap_sec: how long killed processes may take to end before they are left to the kernel.
        warm_module: what the warm process runs.
        """
        self._directory = directory
        self._preloads = sorted(set(preloads))
        self._limits = limits
        self._restarts = restarts
        self._reap_sec = reap_sec
        self._warm_module = warm_module
        self._mark = secrets.token_hex(8)
        self._ids = itertools.count(1)
        self._process: asyncio.subprocess.Process | None = None
        self._socket: socket.socket | None = None
        self._forked: dict[int, asyncio.Future[int]] = {}
        self._exited: dict[int, asyncio.Future[Exit]] = {}
        self._pids: dict[int, int] = {}
        self._swept: dict[int, asyncio.Future[None]] = {}
        self._ready: asyncio.Future[None] | None = None
        self._revival: asyncio.Task[None] | None = None
        self._settled = asyncio.Event()
        """Cleared while a new warm process is being started."""

        self._settled.set()
        self._is_closed = False
        self.fault = ""
        """Why no worker can be started, or empty."""

        self.default_cpus: tuple[int, ...] = ()
        """For workers whose device names none; empty: those of this process."""

    @property
    def warm_pid(self) -> int | None:
        """Process id of the warm process."""
        return self._process.pid if self._process else None

    @property
    def worker_pids(self) -> list[int]:
        """Process ids of the workers that live."""
        return list(self._pids.values())

    async def open(self) -> None:
        """Start the warm process.

        Raises:
            ConfigError: what it has to load is not there.
        """
        linux.adopt_orphans()
        shutil.rmtree(self._directory, ignore_errors=True)
        self._directory.mkdir(parents=True)
        await self._start()

    async def start_worker(self, spec: WorkerSpec, sink: Callable[[bytes], None]) -> WorkerHandle:
        """Fork a worker. `sink` gets what it writes.

        Raises:
            DeviceFaulted: the warm process cannot be started any more.
        """
        await self._wait_until_ready()
        worker_id = next(self._ids)
        directory = self._directory / f"worker-{worker_id}"
        directory.mkdir(mode=0o700)
        order = WorkerOrder(
            worker_id=worker_id,
            runtime=spec.runtime,
            settings=spec.settings,
            environment=spec.environment,
            directory=str(directory),
            memory_limit_bytes=self._limits.memory_bytes,
            disk_limit_bytes=self._limits.disk_bytes,
            cpus=spec.cpus or self.default_cpus,
            limits_address_space=spec.limits_address_space,
        )
        loop = asyncio.get_running_loop()
        forked = self._forked[worker_id] = loop.create_future()
        exited = self._exited[worker_id] = loop.create_future()
        ours, theirs = socket.socketpair()
        log_reader, log_writer = os.pipe()
        try:
            await self._send({"op": "fork", "order": asdict(order)}, (theirs.fileno(), log_writer))
            pid = await asyncio.wait_for(forked, _START_SEC)
        except BaseException:
            ours.close()
            os.close(log_reader)
            raise
        finally:
            theirs.close()
            os.close(log_writer)
            self._forked.pop(worker_id, None)
        return WorkerHandle(
            pid=pid,
            directory=str(directory),
            limits=self._limits,
            output=OutputPipe(log_reader, sink),
            exited=exited,
            ask_to_kill=lambda: self._kill(worker_id),
            link=await WorkerLink.connect(ours),
        )

    async def sweep(self) -> None:
        """Return when no process that an ended worker left behind is alive."""
        await self._wait_until_ready()
        sweep_id = next(self._ids)
        swept = self._swept[sweep_id] = asyncio.get_running_loop().create_future()
        try:
            await self._send({"op": "sweep", "sweep_id": sweep_id})
            await asyncio.wait_for(swept, _START_SEC)
        finally:
            self._swept.pop(sweep_id, None)

    async def close(self) -> None:
        """End the warm process and with it all workers. Idempotent."""
        self._is_closed = True
        self._settled.set()
        if self._revival is not None:
            self._revival.cancel()
            await asyncio.gather(self._revival, return_exceptions=True)
        await self._bury()
        await asyncio.to_thread(shutil.rmtree, self._directory, ignore_errors=True)

    async def _start(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        loop = asyncio.get_running_loop()
        self._ready = loop.create_future()
        self._socket = ours
        preloads = [word for name in self._preloads for word in ("--preload", name)]
        try:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", self._warm_module, "--socket", str(theirs.fileno()), *preloads),
                pass_fds=(theirs.fileno(),),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                env={**os.environ, _MARK: self._mark},
            )
        finally:
            theirs.close()
        loop.add_reader(ours, self._on_readable, ours)
        try:
            await asyncio.wait_for(asyncio.shield(self._ready), _START_SEC)
        except TimeoutError:
            await self._bury()
            raise ConfigError(f"the runtime did not load within {_START_SEC:g} s") from None

    async def _wait_until_ready(self) -> None:
        await self._settled.wait()
        if self._is_closed:
            raise DeviceClosed("the agent is closing")
        if self.fault or self._socket is None:
            raise DeviceFaulted(self.fault or "the process that workers are forked from is not there")

    async def _send(self, packet: Mapping[str, object], descriptors: Sequence[int] = ()) -> None:
        content = [json.dumps(packet).encode()]
        while self._socket is not None:
            try:
                socket.send_fds(self._socket, content, list(descriptors))
            except BlockingIOError:
                await asyncio.sleep(0.01)
            except OSError:
                # The reader sees the end of the warm process too, and settles what waits for it.
                return
            else:
                return

    async def _kill(self, worker_id: int) -> None:
        await self._send({"op": "kill", "worker_id": worker_id})

    def _on_readable(self, source: socket.socket) -> None:
        while source is self._socket:
            try:
                content = source.recv(MAX_PACKET_BYTES)
            except BlockingIOError:
                return
            except OSError:
                content = b""
            if not content:
                self._on_lost()
                return
            self._handle(json.loads(content))

    def _handle(self, packet: dict[str, Any]) -> None:
        event = packet["event"]
        if event == "ready":
            _settle(self._ready, None)
        elif event == "failed":
            if self._ready is not None and not self._ready.done():
                self._ready.set_exception(ConfigError(f"the runtime cannot be loaded: {packet['message']}"))
        elif event == "forked":
            self._pids[packet["worker_id"]] = packet["pid"]
            _settle(self._forked.get(packet["worker_id"]), packet["pid"])
        elif event == "exited":
            self._pids.pop(packet["worker_id"], None)
            end = Exit(code=packet["code"], signal=packet["signal"])
            _settle(self._exited.pop(packet["worker_id"], None), end)
        elif event == "swept":
            _settle(self._swept.get(packet["sweep_id"]), None)

    def _on_lost(self) -> None:
        """The warm process ended: so did its workers, by the kernel. Start another."""
        self._detach()
        if self._is_closed:
            return
        if self._ready is not None and not self._ready.done():
            self._ready.set_exception(ConfigError("the process that loads the runtime ended while it started"))
            return
        if self._revival is not None and not self._revival.done():
            return  # it sees for itself that there is none again
        logger.warning("warm process lost, starting another")
        self._settled.clear()
        self._revival = asyncio.create_task(self._revive(), name="revive-warm-process")

    async def _revive(self) -> None:
        failures = 0
        while self._socket is None:
            await self._bury()
            try:
                await self._start()
            except (ConfigError, OSError) as error:
                failures += 1
                logger.warning("warm process did not start", extra={"attempt": failures, "error": str(error)})
                await self._bury()
                if failures == self._restarts:
                    self.fault = f"the process that workers are forked from cannot be started: {error}"
                    self._settled.set()
                    logger.error("devices count as faulted: no worker can be started")
                await asyncio.sleep(min(0.1 * 2**failures, _LONGEST_PAUSE_SEC))
        self.fault = ""
        self._settled.set()

    async def _bury(self) -> None:
        """End the warm process, and whatever of it and its workers is left."""
        self._detach()
        process, self._process = self._process, None
        if process is not None:
            try:
                await asyncio.wait_for(process.wait(), 5.0)
            except TimeoutError:
                await end(process)
        await self._kill_leftovers()
        for forked in self._forked.values():
            if not forked.done():
                forked.set_exception(DeviceFaulted("the process that workers are forked from ended; try again"))
        for exited in self._exited.values():
            _settle(exited, Exit(is_parent_lost=True))
        for swept in self._swept.values():
            _settle(swept, None)
        self._exited.clear()

    def _detach(self) -> None:
        ours, self._socket = self._socket, None
        if ours is not None:
            asyncio.get_running_loop().remove_reader(ours)
            ours.close()

    async def _kill_leftovers(self) -> None:
        """Kill what the warm process left when it died; this process adopted it."""
        mark = f"{_MARK}={self._mark}".encode()
        while True:
            leftovers = [pid for pid in linux.children_of(os.getpid()) if mark in linux.environment_of(pid)]
            for pid in leftovers:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            unkillable = await _reap({*leftovers, *self._pids.values()}, self._reap_sec)
            self._pids.clear()
            if unkillable:
                logger.error(
                    "processes of workers cannot be killed: they hang in the kernel", extra={"pids": unkillable}
                )
            if unkillable or not leftovers:
                return


async def _reap(pids: set[int], timeout_sec: float) -> list[int]:
    """Wait for these children, which were killed or are about to end; return those that do not end in time."""
    ends_at = time.monotonic() + timeout_sec
    while (pids := set(filter(_is_running, pids))) and time.monotonic() < ends_at:  # noqa: ASYNC110 - nobody tells us
        await asyncio.sleep(0.005)
    return sorted(pids)


def _is_running(pid: int) -> bool:
    """Reap a child that has ended."""
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == 0
    except ChildProcessError:
        return False


def _settle(future: asyncio.Future[T] | None, value: T) -> None:
    if future is not None and not future.done():
        future.set_result(value)
