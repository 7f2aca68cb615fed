"""Starts the warm process, has it fork workers, and replaces it if it ends or hangs."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
import logging
import os
import random
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

from device_agents.driver import WorkerSpec
from device_agents.jail import cgroup
from device_agents.jail.layers import OPEN, Jail, Layer
from device_agents.jail.spec import JailSpec
from device_agents.jail.view import device_files, readable_paths
from device_agents.machine import linux
from device_agents.machine.removal import remove_tree
from device_agents.machine.terminate import end
from device_agents.workers import warm
from device_agents.workers.directory import WorkerDirectory, check_directories
from device_agents.workers.family import Family
from device_agents.workers.handle import Patience, WorkerHandle
from device_agents.workers.ledger import Ledger
from device_agents.workers.limits import WorkerLimits
from device_agents.workers.link import WorkerLink
from device_agents.workers.output import OutputPipe
from device_agents.workers.strays import Strays
from device_agents.workers.worker import WorkerOrder
from fleet.base.config import cache_dir, data_dir
from fleet.base.environment import for_kernels
from fleet.base.plain import from_plain
from fleet.confinement.privileges import free_uids, groups_for
from fleet.errors import ConfigError, DeviceClosed, DeviceFaulted

logger = logging.getLogger(__name__)

T = TypeVar("T")

_START_SEC = 30.0
_FORK_SEC = 5.0
"""Time limit of a fork. It takes milliseconds, unless the machine is overloaded."""

_FORK_CHECK_SEC = 0.25
_FORK_ATTEMPTS = 3
_LONGEST_PAUSE_SEC = 30.0
_USUAL_PATIENCE = Patience()
_NOTE_SEC = 1.0
"""Interval of writing the workers' processes down, for an agent that may be killed; also the time in which ended
children are left to their starter."""


class WorkerPool:
    """Makes worker processes."""

    def __init__(
        self,
        directory: Path,
        preloads: Sequence[str],
        limits: WorkerLimits,
        *,
        restarts: int = 5,
        patience: Patience = _USUAL_PATIENCE,
        kill: Callable[[int], None] = linux.kill,
        is_jailed: bool = False,
    ) -> None:
        """Args:
        preloads: modules whose `preload()` the warm process calls, so that every worker has the loaded modules.
        restarts: attempts in a row before the devices count as faulted; attempts go on after that, less often.
        kill: how workers are killed.
        is_jailed: put workers into a jail of all the layers that this machine has.
        """
        self._directory = directory
        self._is_ours = False
        """True if the directory is known to hold only our files."""
        self._preloads = sorted(set(preloads))
        self.limits = limits
        self._restarts = restarts
        self._patience = patience
        self._kill = kill
        self._is_jailed = is_jailed
        self._groups: cgroup.Groups | None = None
        self._no_groups = ""
        """Why there are no cgroups."""

        self._random = random.Random()
        self.jail = OPEN
        """Jail of the workers, once open."""

        self._ids = itertools.count(1)
        self._process: asyncio.subprocess.Process | None = None
        self._socket: socket.socket | None = None
        self._is_adopting = False
        self._families: set[Family] = set()
        self._strays = Strays()
        self._dying: list[int] = []
        """Killed strays that still exist."""

        self._ledger = Ledger(directory.parent / "processes.json")
        self._noting: asyncio.Task[None] | None = None
        self._ready: asyncio.Future[None] | None = None
        self._revival: asyncio.Task[None] | None = None
        self._settled = asyncio.Event()
        """Cleared while a new warm process is being started."""

        self._settled.set()
        self._is_closed = False
        self.fault = ""
        """Why no worker can be started, or empty."""

        self.default_cpus: tuple[int, ...] = ()
        """CPUs for workers of devices that name none; empty: those of this process."""

    @property
    def warm_pid(self) -> int | None:
        """Process id of the warm process."""
        return self._process.pid if self._process else None

    @property
    def worker_pids(self) -> list[int]:
        """Process ids of the workers that live."""
        return [family.worker.pid for family in self._families if family.worker is not None]

    def family_pids(self) -> list[int]:
        """Return the process ids of the workers that live, and of whatever they started."""
        return [pid for family in self._families for pid in family.members()]

    async def open(self) -> None:
        """Kill processes of an earlier agent, and start the warm process.

        Raises:
            ConfigError: a module to load is missing, or the folder of its workers has foreign files.
        """
        if not self._ledger.exists():
            check_directories(self._directory)
        await asyncio.to_thread(self._ledger.kill_listed)
        self._is_adopting = linux.adopt_orphans()
        self._strays.note_own()
        remove_tree(self._directory)
        self._directory.mkdir(mode=0o700, parents=True)
        self._is_ours = True
        if self._is_jailed:
            self._open_groups()
        await self._start()
        self._noting = asyncio.create_task(self._note_processes(), name="note-processes")

    async def start_worker(self, spec: WorkerSpec, sink: Callable[[bytes], None]) -> WorkerHandle:
        """Fork a worker. `sink` gets its output.

        Raises:
            DeviceFaulted: the warm process cannot be started any more, or forks no worker.
        """
        for _ in range(_FORK_ATTEMPTS):
            await self._wait_until_ready()
            worker = await self._fork(spec, sink)
            if worker is not None:
                return worker
        raise DeviceFaulted(f"no worker could be forked in {_FORK_ATTEMPTS} attempts; the agent's log says more")

    async def sweep(self) -> None:
        """Wait until all remains of ended workers are gone."""
        ends_at = asyncio.get_running_loop().time() + self._patience.at_end_sec
        while self._dying and asyncio.get_running_loop().time() < ends_at:
            await asyncio.sleep(0.005)
            self._sweep_strays()

    async def close(self) -> None:
        """End the warm process and all workers. Idempotent."""
        self._is_closed = True
        self._settled.set()
        for task in (self._revival, self._noting):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        await self._bury_warm()
        await self._end_families()
        self._ledger.keep(())
        if self._groups is not None:
            self._groups.close()
        if self._is_ours:
            await asyncio.to_thread(remove_tree, self._directory)

    async def _fork(self, spec: WorkerSpec, sink: Callable[[bytes], None]) -> WorkerHandle | None:
        """Have a worker forked; None if the warm process did not do it."""
        worker_id = next(self._ids)
        directory = WorkerDirectory.make(self._directory / f"worker-{worker_id}")
        group = self._groups.make(f"worker-{worker_id}", self.limits.memory_bytes) if self._groups else None
        jail_spec = self._jail_spec(spec, directory, group)
        order = WorkerOrder(
            runtime=spec.runtime,
            settings=spec.settings,
            environment=spec.environment,
            directory=str(directory.home),
            memory_limit_bytes=self.limits.memory_bytes,
            disk_limit_bytes=self.limits.disk_bytes,
            cpus=spec.cpus or self.default_cpus,
            limits_address_space=spec.limits_address_space,
            jail_spec=jail_spec,
        )
        ours, theirs = socket.socketpair()
        our_reports, their_reports = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        log_reader, log_writer = os.pipe()
        self._note_own_children()
        family = Family(our_reports, self._sweep_strays, self._kill, group)
        self._families.add(family)
        family.exited.add_done_callback(lambda _: self._forget(family))
        try:
            await self._send(asdict(order), (theirs.fileno(), log_writer, their_reports.fileno()))
            for end_of_pipe in (theirs, their_reports):
                end_of_pipe.close()
            is_born = await self._await_birth(family)
        except BaseException:  # also if cancelled or interrupted; raised again
            await self._drop(family, directory, ours, log_reader)
            raise
        finally:
            theirs.close()
            their_reports.close()
            os.close(log_writer)
        if not is_born or family.worker is None:
            await self._drop(family, directory, ours, log_reader)
            if family.failure:
                raise DeviceFaulted(f"the jail of a worker cannot be made: {family.failure}")
            return None
        self._note()
        return WorkerHandle(
            family=family,
            directory=directory,
            limits=self.limits,
            output=OutputPipe(log_reader, sink),
            link=await WorkerLink.connect(ours),
            patience=self._patience,
            jail=" ".join(jail_spec.layers),
        )

    def _jail_spec(self, spec: WorkerSpec, directory: WorkerDirectory, group: Path | None) -> JailSpec:
        """Make a jail for one worker, and give the worker ownership of its home."""
        devices = device_files(spec.devices)
        groups = groups_for(devices)
        jail = self.jail
        if spec.needs_owner or groups is None:
            jail = jail.without(Layer.UID, "its device belongs to the agent's user")
        if spec.needs_network:
            jail = jail.without(Layer.NETWORK, "its device is reached over the network")
        uid = self._random.choice(free_uids()) if jail.has(Layer.UID) else 0
        if uid:
            os.chown(directory.home, uid, uid)
        named = [
            *spec.settings.values(),
            *spec.environment.values(),
            *spec.readable,
            str(directory.artifacts),
            str(cache_dir()),
        ]
        private = [self._directory, Path.home(), data_dir()]
        return JailSpec(
            layers=list(jail.layers),
            root=str(directory.root),
            home=str(directory.home),
            readable=readable_paths(os.environ, named, private)
            if jail.has(Layer.MOUNT) or jail.has(Layer.LANDLOCK)
            else [],
            devices=devices,
            shared_memory_bytes=self.limits.memory_bytes // 4,
            has_network=spec.needs_network,
            uid=uid,
            groups=groups or [],
            keeps_raw_io=spec.needs_owner,
            cgroup=str(group or ""),
        )

    def _open_groups(self) -> None:
        """Open cgroups, if the machine has them."""
        name = hashlib.sha256(str(self._directory).encode()).hexdigest()[:12]
        try:
            self._groups = cgroup.open_groups(name)
        except OSError as error:
            self._no_groups = str(error)
            return
        limits = ", ".join(self._groups.controllers) or "none: it kills, and limits nothing"
        logger.info("workers get cgroups", extra={"path": str(self._groups.path), "controllers": limits})

    async def _await_birth(self, family: Family) -> bool:
        """Wait for a worker to start. A warm process that is stopped or takes too long is killed and replaced."""
        process, loop = self._process, asyncio.get_running_loop()
        ends_at = loop.time() + _FORK_SEC
        while not family.born.done():
            await asyncio.wait((family.born,), timeout=_FORK_CHECK_SEC)
            if family.born.done() or process is None:
                break
            found = linux.look_at(process.pid)
            is_stopped = found is not None and found.state in "Tt"
            if is_stopped or loop.time() > ends_at:
                logger.warning("warm process does not answer, killing it", extra={"is_stopped": is_stopped})
                linux.kill(process.pid)
                self._on_lost()
                return False
        is_born = family.born.result() != 0
        if not is_born and process is self._process and process is not None and not linux.is_running(process.pid):
            self._on_lost()
        return is_born

    async def _drop(self, family: Family, directory: WorkerDirectory, link: socket.socket, log_reader: int) -> None:
        """Clean up after a worker that was not started."""
        link.close()
        os.close(log_reader)
        try:
            async with asyncio.timeout(self._patience.at_end_sec):
                await family.kill()
        except TimeoutError:
            family.abandon()
        await asyncio.to_thread(directory.remove)

    async def _end_families(self) -> None:
        families = list(self._families)
        killing = [asyncio.create_task(family.kill(), name="kill-family") for family in families]
        if killing:
            await asyncio.wait(killing, timeout=self._patience.at_end_sec)
        stuck = [family for family in families if not family.exited.done()]
        for task in killing:
            task.cancel()
        await asyncio.gather(*killing, return_exceptions=True)
        if stuck:
            logger.error(
                "processes of workers cannot be killed: they hang in the kernel",
                extra={"pids": [family.worker.pid for family in stuck if family.worker], "why": stuck[0].why_alive()},
            )
        for family in stuck:
            family.abandon()
        await asyncio.sleep(0)  # lets the workers' exit callbacks run
        self._families.clear()

    def _forget(self, family: Family) -> None:
        self._families.discard(family)
        self._note()

    def _sweep_strays(self) -> list[int]:
        """Kill orphans of killed keepers that this process adopted; return the survivors."""
        keepers = [family.keeper for family in self._families if family.is_kept]
        self._dying = self._strays.kill(keeper for keeper in keepers if keeper is not None)
        return self._dying

    def _note_own_children(self) -> None:
        if all(family.is_kept for family in self._families):
            self._strays.note_own()

    def _note(self) -> None:
        """Record the processes to kill if the agent is killed."""
        members = (linux.look_at(pid) for pid in self.family_pids())
        keepers = [family.keeper for family in self._families]
        self._ledger.keep(process for process in (*keepers, *members) if process is not None)

    async def _note_processes(self) -> None:
        while True:
            await asyncio.sleep(_NOTE_SEC)
            self._strays.bury()
            if self._families:
                self._note_own_children()
                self._note()

    async def _start(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        loop = asyncio.get_running_loop()
        self._ready = loop.create_future()
        self._socket = ours
        words = [word for name in self._preloads for word in ("--preload", name)]
        words += ["--adopted"] * self._is_adopting + ["--jailed"] * self._is_jailed
        try:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", warm.__name__, "--socket", str(theirs.fileno()), *words),
                pass_fds=(theirs.fileno(),),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                env=for_kernels(os.environ),
            )
        finally:
            theirs.close()
        loop.add_reader(ours, self._on_readable, ours)
        try:
            await asyncio.wait_for(asyncio.shield(self._ready), _START_SEC)
        except TimeoutError:
            await self._bury_warm()
            raise ConfigError(f"the runtime did not load within {_START_SEC:g} s") from None

    async def _wait_until_ready(self) -> None:
        await self._settled.wait()
        if self._is_closed:
            raise DeviceClosed("the agent is closing")
        if self.fault or self._socket is None:
            raise DeviceFaulted(self.fault or "the process that workers are forked from is not there")

    async def _send(self, packet: Mapping[str, object], descriptors: Sequence[int]) -> None:
        content = [json.dumps(packet).encode()]
        while self._socket is not None:
            try:
                socket.send_fds(self._socket, content, list(descriptors))
            except BlockingIOError:
                await asyncio.sleep(0.01)
            except OSError:
                # The reader sees the end of the warm process too, and starts another.
                return
            else:
                return

    def _on_readable(self, source: socket.socket) -> None:
        while source is self._socket:
            try:
                content = source.recv(warm.MAX_PACKET_BYTES)
            except BlockingIOError:
                return
            except OSError:
                content = b""
            if not content:
                self._on_lost()
                return
            self._handle(json.loads(content))

    def _handle(self, packet: dict[str, Any]) -> None:
        if packet["event"] == "ready":
            jail = from_plain(Jail, packet["jail"])
            if not self._is_adopting:
                jail = jail.without(Layer.PID, "nobody adopts orphans here, so its first process would be the worker")
            self.jail = jail.plus(Layer.CGROUP) if self._groups else jail.without(Layer.CGROUP, self._no_groups)
            _settle(self._ready, None)
        elif packet["event"] == "failed" and self._ready is not None and not self._ready.done():
            self._ready.set_exception(ConfigError(f"the runtime cannot be loaded: {packet['message']}"))

    def _on_lost(self) -> None:
        """Start another warm process after the former ended; its workers live on."""
        self._detach()
        if self._is_closed:
            return
        if self._ready is not None and not self._ready.done():
            self._ready.set_exception(ConfigError("the process that loads the runtime ended while it started"))
            return
        if self._revival is not None and not self._revival.done():
            return  # the new process's reader notices its end itself
        logger.warning("warm process lost, starting another")
        self._settled.clear()
        self._revival = asyncio.create_task(self._revive(), name="revive-warm-process")

    async def _revive(self) -> None:
        failures = 0
        while self._socket is None:
            await self._bury_warm()
            try:
                await self._start()
            except (ConfigError, OSError) as error:
                failures += 1
                logger.warning("warm process did not start", extra={"attempt": failures, "error": str(error)})
                await self._bury_warm()
                if failures == self._restarts:
                    self.fault = f"the process that workers are forked from cannot be started: {error}"
                    self._settled.set()
                    logger.error("devices count as faulted: no worker can be started")
                await asyncio.sleep(min(0.1 * 2**failures, _LONGEST_PAUSE_SEC))
        self.fault = ""
        self._settled.set()

    async def _bury_warm(self) -> None:
        """Kill the warm process, which has nothing to clean up."""
        self._detach()
        process, self._process = self._process, None
        if process is not None:
            await end(process)

    def _detach(self) -> None:
        ours, self._socket = self._socket, None
        if ours is not None:
            asyncio.get_running_loop().remove_reader(ours)
            ours.close()


def _settle(future: asyncio.Future[T] | None, value: T) -> None:
    if future is not None and not future.done():
        future.set_result(value)
