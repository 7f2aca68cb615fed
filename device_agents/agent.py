"""One agent, composed of drivers, worker pool, artifact store, sessions, data path, and the stream to the tracker.

The process that this runs in never imports TVM and never touches a device: workers do.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from device_agents.config import AgentConfig, make_finders
from device_agents.driver import DeviceFinder, Driver
from device_agents.jail.layers import ISOLATING
from device_agents.machine.host import read_host
from device_agents.machine.pinning import OwnCpus
from device_agents.serving.admission import Admission
from device_agents.serving.attach import Hello, TrackerLink
from device_agents.serving.device import ServedDevice, TrialResult
from device_agents.serving.doubts import Doubts
from device_agents.serving.epochs import EpochLedger
from device_agents.serving.hook_notes import HookNotes
from device_agents.serving.hotplug import Hotplug
from device_agents.serving.lease_logs import LeaseLogs, keep_pruned
from device_agents.serving.log_service import LeaseLogService
from device_agents.serving.membership import Membership, renew_in_time
from device_agents.serving.missing import Search
from device_agents.serving.poison import PoisonList
from device_agents.serving.relay_link import RelayLink
from device_agents.serving.revoked_callers import RevokedCallers
from device_agents.serving.roster import Roster
from device_agents.serving.run_notes import RunNotes
from device_agents.serving.service import SessionService
from device_agents.serving.sessions import SessionTable
from device_agents.serving.state_lock import lock_state_dir
from device_agents.serving.store import ArtifactStore
from device_agents.serving.timing import USUAL, Timing
from device_agents.serving.tracker_clock import TrackerClock
from device_agents.workers.limits import WorkerLimits
from device_agents.workers.pool import WorkerPool
from fleet.base.network import address_of, is_loopback
from fleet.base.version import package_version
from fleet.domain.devices import Inventory
from fleet.errors import ConfigError
from fleet.identity.certificates import own_key_id
from fleet.identity.join_tokens import JoinToken
from fleet.wire.peers import Guard, server_security
from fleet.wire.rpc import bind, make_agent_server
from fleet.wire.stubs import add_lease_log_service, add_session_service

logger = logging.getLogger(__name__)

_STOP_GRACE_SEC = 0.5
_ANY_HOST = ("0.0.0.0", "::", "")
_DEFAULT_MEMORY_BYTES = 1024**3
"""Default on machines that do not report their memory."""

DEVICE_STATES = ("free", "leased", "faulted")


@dataclass(frozen=True, slots=True, kw_only=True)
class Home:
    """Address and folders of an agent."""

    tracker: str
    """ "host:port", or several with commas between them."""

    state_dir: Path
    host: str = "127.0.0.1"
    port: int = 0
    """0: a free one."""
    token: JoinToken | None = None
    """To join the tracker's fleet with."""
    is_discoverable: bool = False
    """Advertised by zeroconf where it listens beyond this machine."""
    asks_to_join: bool = False
    """Without a token, ask the fleet's admins for approval."""
    is_plain: bool = False
    """Without TLS."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentCounts:
    """Figures of an agent at one moment."""

    is_attached: bool
    """True while the tracker answers."""

    attachments: int
    """Times that the tracker began to answer."""

    devices: Mapping[tuple[str, str], int]
    """By kind and state, one of `DEVICE_STATES`."""

    trials: Mapping[TrialResult, int]
    workers: int
    artifact_bytes: int


class Agent:
    """Serves devices. An async context manager; see `open`."""

    def __init__(
        self,
        config: AgentConfig,
        drivers: Sequence[Driver],
        home: Home,
        *,
        finders: Sequence[DeviceFinder] | None = None,
        timing: Timing = USUAL,
    ) -> None:
        """Args: finders: find devices that appear while the agent runs; None: the finders of the configuration."""
        self._config = config
        finders = make_finders(config) if finders is None else finders
        self._agent_id = secrets.token_hex(8)
        self._home = home
        self._timing = timing
        self._clock = TrackerClock()
        self._store = ArtifactStore(home.state_dir / "artifacts", config.cache_max_bytes)
        self._pool = WorkerPool(
            home.state_dir / "workers",
            list(filter(None, (*(driver.preload for driver in drivers), *(finder.preload for finder in finders)))),
            WorkerLimits(
                memory_bytes=config.memory_limit_bytes or _default_memory_limit(), disk_bytes=config.disk_limit_bytes
            ),
            restarts=timing.restarts,
            is_jailed=config.jail != "none",
        )
        self._poison = PoisonList(doubts=Doubts(home.state_dir / "private" / "doubts.json"))
        self._logs = LeaseLogs(home.state_dir / "private" / "lease-logs", self._clock.now_sec)
        self._run_notes = RunNotes(home.state_dir / "private" / "running")
        self._own_cpus = OwnCpus()
        self._roster = Roster(
            drivers,
            self._pool,
            self._own_cpus,
            HookNotes(home.state_dir / "private" / "hooks.json"),
            self._poison,
            self._run_notes,
            timing,
            link=lambda: self._link,
        )
        self._hotplug = Hotplug(finders, self._roster.take_in, retry_sec=timing.finder_retry_sec)
        self._search = Search(self._roster.drivers, self._roster.look_for, timing)
        self._membership = Membership(
            home.state_dir, home.tracker, token=home.token, asks_to_join=home.asks_to_join, is_plain=home.is_plain
        )
        self._renewing: asyncio.Task[None] | None = None
        self._pruning: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None
        self._advertising: asyncio.Task[None] | None = None
        self._server = make_agent_server()
        self._sessions: SessionTable | None = None
        self._link: TrackerLink | None = None
        self._link_task: asyncio.Task[None] | None = None
        self._relaying: asyncio.Task[None] | None = None
        self._lock_file: int | None = None
        self.port = 0
        """Port of the data path, once open."""

    @property
    def device_names(self) -> list[str]:
        """Names of the devices that it serves."""
        return self._roster.names

    @property
    def key_id(self) -> str:
        """Id of the agent's key."""
        return own_key_id(self._membership.credentials().key_pem)

    @property
    def join_code(self) -> str:
        """Code for the admin while the agent waits for approval; empty otherwise."""
        return self._membership.join_code

    @property
    def warm_pid(self) -> int | None:
        """Process id of the process that workers are forked from."""
        return self._pool.warm_pid

    @property
    def worker_pids(self) -> list[int]:
        """Process ids of the live workers."""
        return self._pool.worker_pids

    @property
    def counts(self) -> AgentCounts:
        """Figures of this moment, for metrics."""
        sessions, link = self._sessions, self._link
        devices: Counter[tuple[str, str]] = Counter()
        for device in self._roster.devices:
            devices.update({(device.driver.kind, state): 0 for state in DEVICE_STATES})
            is_leased = sessions is not None and sessions.has_session(device.name)
            devices[device.driver.kind, "leased" if is_leased else "free" if device.is_well else "faulted"] += 1
        return AgentCounts(
            is_attached=link is not None and link.attached.is_set(),
            attachments=link.attach_count if link is not None else 0,
            devices=devices,
            trials=self._roster.trials,
            workers=len(self.worker_pids),
            artifact_bytes=self._store.size_bytes,
        )

    def family_pids(self) -> list[int]:
        """Return the process ids of the live workers and of their descendants."""
        return self._pool.family_pids()

    async def open(self) -> None:
        """Open the devices, listen, and begin to attach to the tracker.

        Raises:
            ConfigError: the port or the state directory is in use, or a runtime is missing.
            DeviceError: none of its devices is there.
        """
        self._lock_file = lock_state_dir(self._home.state_dir)
        try:
            await self._open_parts()
        except BaseException:  # also if cancelled or interrupted; raised again
            await self.close()
            raise

    async def close(self) -> None:
        """End all sessions, release the devices, and leave no process behind. Idempotent."""
        self._run_notes.close()  # first: an end in order blames no program, even if it takes too long
        links = (self._link_task, self._relaying, self._advertising)
        started = (*links, self._renewing, self._pruning, self._watching)
        tasks = [task for task in started if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._hotplug.close()
        await self._search.close()
        if self._sessions is not None:
            await self._sessions.close()
        await self._roster.stop()
        await self._server.stop(_STOP_GRACE_SEC)
        await self._pool.close()
        await self._roster.close_drivers()
        self._own_cpus.restore()
        self._unlock()

    async def wait_attached(self, timeout_sec: float | None) -> bool:
        """Wait until the tracker answers; return False after the time limit. None: no limit.

        Raises:
            FleetError: the tracker refuses this agent; the message names the remedy.
        """
        if self._link is None:
            return False
        try:
            await asyncio.wait_for(self._link.settled.wait(), timeout_sec)
        except TimeoutError:
            return False
        if self._link.refusal is not None:
            raise self._link.refusal
        return True

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _open_parts(self) -> None:
        await self._roster.open_drivers()
        for driver in await self._hotplug.first():
            await self._roster.take_in(driver)
        self._roster.keep_off_cpus(self._roster.drivers)
        self._store.open()
        await self._pool.open()
        self._check_jail()
        self._roster.serve()
        ledger = EpochLedger(self._home.state_dir / "private")
        ledger.open()
        self._logs.open()
        self._poison.blame_lost(self._run_notes.open())
        admission = Admission(self.device_names, self._clock, ledger)
        self._sessions = self._roster.sessions = SessionTable(
            self._roster.devices, admission, self._pool, self._store, self._logs
        )
        is_plain = self._home.is_plain
        guard = Guard(secret=self._membership.secret if is_plain else None)
        revoked = RevokedCallers(self._membership.revoked_keys)
        add_session_service(self._server, SessionService(self._sessions, self._store), guard)
        add_lease_log_service(self._server, LeaseLogService(self._logs, revoked), guard)
        self._membership.load()
        security = None if is_plain else server_security(self._membership.credentials)
        self.port = bind(self._server, self._home.host, self._home.port, security, what="the agent")
        self._watching = guard.connections.watch(self.port)
        await self._server.start()
        self._renewing = asyncio.create_task(renew_in_time(self._membership), name="renew-certificate")
        self._pruning = asyncio.create_task(keep_pruned(self._logs), name="prune-lease-logs")
        self._link = TrackerLink(
            self._membership,
            self._hello,
            self._roster.devices,
            self._clock,
            self._sessions,
            self._timing,
            poison=self._poison,
        )
        self._link_task = asyncio.create_task(self._link.run(), name="attach")
        if self._config.relay is not None:
            relay_link = RelayLink(self._config.relay, self._membership, (_own_host(self._home.host), self.port))
            self._relaying = asyncio.create_task(relay_link.run(), name="relay")
        self._hotplug.start()
        self._search.start()
        self._roster.watch()
        if self._home.is_discoverable and not is_plain and not is_loopback(self._home.host):
            self._advertising = self._advertise()

    def _advertise(self) -> asyncio.Task[None] | None:
        try:
            from device_agents.serving.advertising import advertise  # zeroconf takes memory that most agents can save
        except ImportError as error:  # boards that bring their packages with their system may have no zeroconf
            logger.warning("the agent is not advertised", extra={"cause": str(error)})
            return None
        return asyncio.create_task(advertise(self._membership, self._home.host, self.port), name="advertise agent")

    def _hello(self) -> Hello:
        host = "" if self._home.host in _ANY_HOST else self._home.host
        return Hello(
            agent_id=self._agent_id,
            address=self._config.advertise_address or address_of(host, self.port),
            inventories={
                device.name: self._with_facts(device, inventory)
                for device in self._roster.devices
                if (inventory := device.inventory()) is not None
            },
            version=package_version(),
            relay_address=self._config.relay or "",
        )

    def _with_facts(self, device: ServedDevice, inventory: Inventory) -> Inventory:
        facts = {**inventory.facts, "jail": str(self._pool.jail)}
        return replace(inventory, facts=facts, has_before_lease=device.driver.hooks.before_lease is not None)

    def _check_jail(self) -> None:
        """Log the isolation layers of the workers.

        Raises:
            ConfigError: less than is required.
        """
        jail = self._pool.jail
        lacking = [f"{layer} ({jail.missing.get(layer, 'not tried')})" for layer in ISOLATING if not jail.has(layer)]
        if self._config.jail == "required" and lacking:
            raise ConfigError(
                f"the jail of workers would lack: {'; '.join(lacking)}; see fleet doctor, or set jail: auto"
            )
        missing = {str(layer): reason for layer, reason in jail.missing.items()}
        logger.info("workers are in a jail", extra={"layers": str(jail), "missing": missing})

    def _unlock(self) -> None:
        descriptor, self._lock_file = self._lock_file, None
        if descriptor is not None:
            os.close(descriptor)


def _own_host(host: str) -> str:
    """Return a host at which this machine reaches its own server that listens on `host`."""
    if host not in _ANY_HOST:
        return host.strip("[]")
    return "::1" if ":" in host else "127.0.0.1"


def _default_memory_limit() -> int:
    """Return half of the machine's memory: the agent, its tracker and the user's programs need memory, too."""
    return read_host().memory_bytes // 2 or _DEFAULT_MEMORY_BYTES
