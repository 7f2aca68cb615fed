"""One running tracker: state, journal, key, services and port, opened and closed together."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import secrets
import time
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import IO

import grpc.aio

from fleet.base.clock import Clock, SystemClock
from fleet.base.metrics import check_metrics, serving_metrics
from fleet.base.network import address_of, refuse_network, refuse_plain_network
from fleet.domain.tokens import TokenSigner, load_or_make_key, new_nonce
from fleet.errors import ConfigError, DiskFull, FleetError
from fleet.identity.credentials import PlainSecret
from fleet.identity.store import CredentialStore
from fleet.tracker.agent_service import AgentServicer
from fleet.tracker.approval_service import ApprovalServicer
from fleet.tracker.audit import AuditLog
from fleet.tracker.authority import open_authority
from fleet.tracker.backup import POLICY
from fleet.tracker.booking_service import BookingServicer
from fleet.tracker.core import events as ev
from fleet.tracker.core.records import TrackerLimits
from fleet.tracker.core.share_policy import SharePolicy
from fleet.tracker.core.state import TrackerState
from fleet.tracker.engine import Engine
from fleet.tracker.expulsion import Expulsion
from fleet.tracker.fleet_service import FleetServicer
from fleet.tracker.forecaster import Forecaster
from fleet.tracker.history import History
from fleet.tracker.history_file import read_latest
from fleet.tracker.identity_service import IdentityServicer, auditor
from fleet.tracker.journal.file import Journal
from fleet.tracker.lease_audit import LeaseAudit
from fleet.tracker.lease_history import LeaseHistory
from fleet.tracker.lease_service import MAX_UNSENT, LeaseServicer
from fleet.tracker.members import Members
from fleet.tracker.observers import Observer, Observers
from fleet.tracker.options import TrackerOptions
from fleet.tracker.own_audit import OwnAudit
from fleet.tracker.pace import Pace, portions
from fleet.tracker.pending_agents import PendingAgents
from fleet.tracker.poison_service import PoisonServicer
from fleet.tracker.policy_file import read_policy
from fleet.tracker.reloading import Reloader
from fleet.tracker.replica.peers import exchange_terms
from fleet.tracker.replica.service import ReplicaServicer
from fleet.tracker.replica.standing import Duty, read_standing, write_standing
from fleet.tracker.replica.state_files import StateFiles
from fleet.tracker.speed_watch import SpeedWatch
from fleet.tracker.view import FleetView
from fleet.wire import rpc, stubs
from fleet.wire.discovery import Advertisement, Facts, ServiceKind, fleet_id
from fleet.wire.peers import Guard, server_security

logger = logging.getLogger(__name__)

_STOP_GRACE_SEC = 0.5
_FULL_DISK_SEC = 1.0
"""Pause between attempts to write to a full disk."""
_COPY_SEC = 300.0
"""Interval of the journal's copies: the loss by a damaged one."""
_LEARNED_LEASES = 20_000
"""Latest leases of the history, from which forecasts draw after a start."""
_LEARNED_AT_ONCE = 64
_OTHER_SEC = 5.0
_MEMBERS_SEC = 60.0
"""Interval of writing new members down, and of checks for streams that outlive their callers' certificates."""


class Tracker:
    """A tracker in this process: `async with Tracker(options) as tracker: tracker.address`."""

    def __init__(
        self,
        options: TrackerOptions,
        clock: Clock | None = None,
        *,
        limits: TrackerLimits | None = None,
        max_unsent: int = MAX_UNSENT,
        observers: Iterable[Observer] = (),
        grace_sec: float | None = None,
    ) -> None:
        """Args:
        max_unsent: events that may wait for one client before it loses its stream.
        observers: called after the tracker's own.
        grace_sec: time that clients of before the start have to come back; the usual one if None.
        """
        self.options = options
        self._limits = limits or TrackerLimits()
        self._max_unsent = max_unsent
        self._grace_sec = grace_sec
        self._added_observers = tuple(observers)
        self._metrics = contextlib.AsyncExitStack()
        self.address = ""
        """ "host:port" once it is open."""
        self._clock = clock or SystemClock()
        self._lock: IO[str] | None = None
        self._server: grpc.aio.Server | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._advertisement: Advertisement | None = None

    async def open(self) -> None:
        """Read the journal and listen.

        Raises:
            ConfigError: another tracker uses the state directory, its file is not a journal, tracker.yaml is not valid,
                a port is in use, or the address needs `is_network_allowed`.
        """
        self._check_network()
        check_metrics(self.options.metrics, is_network_allowed=self.options.is_network_allowed)
        policy = read_policy(self.options.config_file, is_required=self.options.config is not None)
        try:
            self._lock = lock_directory(self.options.directory)
            self._open_state(policy)
            await self._serve_metrics()
            await self._listen()
        except BaseException:  # also if cancelled or interrupted; raised again
            await self.close()
            raise

    @property
    def superseded(self) -> asyncio.Event:
        """Set once another tracker of the fleet has taken over."""
        return self.replica_servicer.superseded

    async def step_down(self) -> None:
        """Have the next start on this state directory follow the tracker that has taken over.

        While the disk is full, try again each second: nothing is granted here any more.
        """
        standing = replace(self.replica_servicer.standing, duty=Duty.FOLLOWS)
        while True:
            try:
                write_standing(self.options.directory, standing)
            except DiskFull as error:
                logger.error("the takeover by another tracker cannot be stored yet", extra={"error": str(error)})
                await asyncio.sleep(_FULL_DISK_SEC)
            else:
                return

    async def close(self) -> None:
        """Stop listening and write everything. Idempotent; leases and requests stay in the journal."""
        if self._advertisement:
            await self._advertisement.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()
        await self._metrics.aclose()
        if self._server:
            # Stop the engine first: clients of streams that end now are not lost, they come back to the next tracker.
            self.engine.stop()
            for servicer in (self.lease_servicer, self.agent_servicer, self.fleet_servicer, self.replica_servicer):
                servicer.close()
            await self._server.stop(_STOP_GRACE_SEC)
        if hasattr(self, "journal"):
            self.journal.close()
        if hasattr(self, "lease_history"):
            self.lease_history.close()
        if hasattr(self, "members"):
            self.members.close()
            self.audit.close()
        if self._lock:
            self._lock.close()
        self._server = self._lock = self._advertisement = None

    async def __aenter__(self) -> Tracker:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _check_network(self) -> None:
        if self.options.is_plain:
            refuse_plain_network(self.options.listening_host)
        elif not self.options.is_network_allowed:
            refuse_network(self.options.listening_host)

    def _open_state(self, policy: SharePolicy) -> None:
        options, directory = self.options, self.options.directory
        standing = read_standing(directory)
        if standing.duty is Duty.FOLLOWS:
            raise ConfigError(
                f"{directory} is the state of a standby of the tracker at {standing.other}; start it as such: fleet "
                f"tracker serve --standby-of {standing.other}"
            )
        self.journal = Journal(directory / "journal.sqlite")
        durable = self.journal.open(self._clock.now_sec())
        key = load_or_make_key(directory / "tracker.key")
        signer = TokenSigner(key)
        self.authority = open_authority(directory)
        self.members = Members(directory / "members.sqlite")
        self.audit = AuditLog(directory / "audit.jsonl")
        # The clients' grace period begins now: it excludes the time that a slow disk took to open.
        self.state = TrackerState.restore(
            durable, self._clock.now_sec(), self._limits, nonce=new_nonce(), policy=policy, grace_sec=self._grace_sec
        )
        self.engine = Engine(self.state, self.journal, self._clock)
        self.pace = Pace()
        self.forecaster = Forecaster(self.engine.queries, self._clock, self.pace)
        self.view = FleetView(self.engine.queries, self._clock, self.pace, self.forecaster.of)
        reloader = Reloader(self.engine, options.config_file, is_required=options.config is not None)
        self.lease_servicer = LeaseServicer(
            self.engine,
            self.view,
            self.members,
            signer,
            self.pace,
            reloader,
            self.forecaster,
            max_unsent=self._max_unsent,
        )
        self.agent_servicer = AgentServicer(self.engine, self.members, signer.public_key, self.pace)
        history = History()
        self.lease_history = LeaseHistory(
            directory / "history.sqlite", self.engine.queries, self._clock, self.forecaster.said_sec
        )
        self.lease_history.open()
        self.fleet_servicer = FleetServicer(self.engine, self.view, history, self.lease_history.path)
        files = partial(StateFiles, directory, self.members, directory / POLICY)
        self.replica_servicer = ReplicaServicer(
            self.engine, self.journal, directory, standing, key, files, on_other=self._tell_other
        )
        self.agent_servicer.hear_term = self.replica_servicer.hear
        self.agent_servicer.term_proof = self.replica_servicer.proof
        self._tell_other(standing.other)
        self.booking_servicer = BookingServicer(self.engine, self.members, self.pace)
        self.poison_servicer = PoisonServicer(self.engine, self.pace)
        self.guard = self._make_guard()
        expulsion = Expulsion(self.engine, self.guard.streams)
        self.identity_servicer = IdentityServicer(self.authority, self.members, self.audit, self._clock, expulsion)
        self.approval_servicer = ApprovalServicer(
            self.authority, self.members, self._clock, PendingAgents(), self._limits.hello_sec
        )
        lease_audit = LeaseAudit(self.audit, self._clock, self.members.role_of)
        audits = (lease_audit, OwnAudit(self.audit, self._clock))
        kept = (self.view, history, self.lease_history, self.forecaster)
        own = (*audits, SpeedWatch(self.engine), *kept, self.agent_servicer, self.lease_servicer)
        self.engine.observers = Observers((*own, *self._added_observers))

    def _tell_other(self, address: str) -> None:
        """Tell agents and clients the address of the fleet's other tracker."""
        self.agent_servicer.other_tracker = address
        self.lease_servicer.tell_other(address, self.replica_servicer.standing.term)

    async def _ask_other(self) -> None:
        """Compare terms with the fleet's other tracker while it does not follow; runs until cancelled."""
        while True:
            other = self.replica_servicer.standing.other
            if other and not self.replica_servicer.is_followed:
                own, pem = self.replica_servicer.proof, self.authority.certificate_pem
                self.replica_servicer.hear(await exchange_terms(other, own, pem))
            await asyncio.sleep(_OTHER_SEC)

    async def _serve_metrics(self) -> None:
        """Count for Prometheus if the options name an address."""
        if self.options.metrics is None:
            return
        from fleet.tracker.metrics import TrackerMetrics  # needs an extra

        metrics = TrackerMetrics(self.engine.queries)
        await self._metrics.enter_async_context(serving_metrics(self.options.metrics, metrics.register))
        self.engine.observers = Observers((*self.engine.observers.members, metrics))

    async def _listen(self) -> None:
        server = rpc.make_server(rpc.MAX_REQUEST_BYTES)
        is_plain, guard = self.options.is_plain, self.guard
        security = None if is_plain else server_security(self.authority.credentials, admits_strangers=True)
        stubs.add_lease_service(server, self.lease_servicer, guard)
        stubs.add_agent_service(server, self.agent_servicer, guard)
        stubs.add_fleet_service(server, self.fleet_servicer, guard)
        stubs.add_booking_service(server, self.booking_servicer, guard)
        stubs.add_poison_service(server, self.poison_servicer, guard)
        stubs.add_identity_service(server, self.identity_servicer, guard)
        stubs.add_approval_service(server, self.approval_servicer, guard)
        stubs.add_replica_service(server, self.replica_servicer, guard)
        host = self.options.listening_host
        port = rpc.bind(server, host, self.options.port, security, what="the tracker")
        self.address = address_of(host, port)
        self._serve_account()
        self._tasks.append(guard.connections.watch(port))
        await server.start()
        self._server = server
        self.engine.submit(ev.Tick())
        self._tasks.append(asyncio.create_task(self.lease_servicer.refresh_waits(), name="refresh waits"))
        self._tasks.append(asyncio.create_task(self._forecast(), name="forecast"))
        self._tasks.append(asyncio.create_task(self._keep_copies(), name="keep copies"))
        self._tasks.append(asyncio.create_task(self._mind_members(), name="mind members"))
        self._tasks.append(asyncio.create_task(self._ask_other(), name="compare terms"))
        if self.options.is_discoverable:
            facts = Facts() if is_plain else Facts(fleet=fleet_id(self.authority.pin))
            self._advertisement = Advertisement(ServiceKind.TRACKER, host, port, facts)
            self._advertisement.start()
        logger.info("tracker listening", extra={"address": self.address, "boot": self.state.boot})

    async def _forecast(self) -> None:
        """Learn from the history, then make forecasts until cancelled."""
        try:
            rows = await asyncio.to_thread(read_latest, self.lease_history.path, _LEARNED_LEASES)
        except FleetError as error:
            rows = []
            logger.warning("no forecasts from earlier leases", extra={"reason": str(error)})
        for portion in portions(rows, _LEARNED_AT_ONCE):
            await self.pace.turn()
            self.forecaster.learn(portion)
        await self.forecaster.run()

    async def _keep_copies(self) -> None:
        """Keep a valid backup of the journal beside it until cancelled; an ongoing copy is completed first."""
        while True:
            copying = asyncio.create_task(asyncio.to_thread(self.journal.keep_copy), name="copy the journal")
            try:
                await asyncio.shield(copying)
            finally:
                await copying  # a thread cannot be cancelled, and the state directory may be gone after `close`
            await asyncio.sleep(_COPY_SEC)

    async def _mind_members(self) -> None:
        """Write new members down, and end streams that outlive their callers' certificates; runs until cancelled."""
        while True:
            await asyncio.sleep(_MEMBERS_SEC)
            await self.members.write_noted()
            self.guard.streams.end_expired(time.time())  # certificates follow the machine's clock, as in TLS

    def _make_guard(self) -> Guard:
        secret = self._secret = PlainSecret(secret=secrets.token_bytes(32)) if self.options.is_plain else None
        return Guard(
            secret=(lambda: secret) if secret is not None else None,
            audit=auditor(self.audit, self._clock, self.members.name_of),
            check_member=lambda caller: self.members.check(caller, self._clock.now_sec()),
            request_sec=self._limits.hello_sec,
        )

    def _serve_account(self) -> None:
        """Store this account's client credentials before any client can connect.

        Raises:
            ConfigError: it cannot be written, so that nobody could be this tracker's admin.
        """
        store, home = CredentialStore(), self.options.directory
        try:
            store.prune()
            if self._secret is not None:
                store.save(self.address, self._secret, home=home)
            else:
                self.authority.serve_account(store, self.address, home=home, is_revoked=self.members.is_revoked)
        except OSError as error:
            raise ConfigError(
                f"cannot keep this account's credentials in {store.folder}: {error.strerror}; name another folder in "
                "FLEET_CREDENTIALS_DIR, here and for every command"
            ) from error


def lock_directory(directory: Path) -> IO[str]:
    """Lock a state directory for this process until the file is closed.

    Raises:
        ConfigError: another tracker uses it, or it cannot be made.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = (directory / "lock").open("a+")
    except OSError as error:
        raise ConfigError(f"cannot keep state in {directory}: {error.strerror}; name another --state-dir") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        lock.seek(0)
        owner = lock.read().strip() or "unknown"
        lock.close()
        raise ConfigError(
            f"another tracker (process {owner}) uses {directory}; stop it or name another --state-dir"
        ) from error
    with contextlib.suppress(OSError):  # the owner is only informative: a full disk must not stop us
        os.ftruncate(lock.fileno(), 0)
        os.write(lock.fileno(), str(os.getpid()).encode())
    return lock
