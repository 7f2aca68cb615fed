"""One running standby: follows a tracker, grants nothing, and can be promoted."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator

import grpc.aio

from fleet.base.network import address_of, is_any_host, refuse_network
from fleet.domain.terms import MOST_TERM, make_proof
from fleet.domain.tokens import load_or_make_key
from fleet.errors import ConfigError, FleetError, InvalidRequest, KeyRevoked, NotAllowed, NotJoined
from fleet.identity.roles import Identity, Role
from fleet.identity.store import CredentialStore
from fleet.tracker.backup import SIGNING_KEY
from fleet.tracker.options import TrackerOptions
from fleet.tracker.replica.following import Following
from fleet.tracker.replica.peers import exchange_terms
from fleet.tracker.replica.refusing import Refusing
from fleet.tracker.replica.replica_state import ReplicaState
from fleet.tracker.replica.witnesses import SILENCE_SEC, Witnesses
from fleet.v1 import (
    agent_service_pb2,
    approval_service_pb2,
    booking_service_pb2,
    fleet_service_pb2,
    identity_service_pb2,
    lease_service_pb2,
    poison_service_pb2,
)
from fleet.v1 import replica_service_pb2 as pb
from fleet.wire import rpc, stubs
from fleet.wire.peers import CallContext, Guard, caller_of, server_security

logger = logging.getLogger(__name__)

_AGENTS = agent_service_pb2.DESCRIPTOR.services_by_name["AgentService"]
_TRACKERS_ALONE = (
    approval_service_pb2.DESCRIPTOR.services_by_name["ApprovalService"],
    booking_service_pb2.DESCRIPTOR.services_by_name["BookingService"],
    fleet_service_pb2.DESCRIPTOR.services_by_name["FleetService"],
    identity_service_pb2.DESCRIPTOR.services_by_name["IdentityService"],
    lease_service_pb2.DESCRIPTOR.services_by_name["LeaseService"],
    poison_service_pb2.DESCRIPTOR.services_by_name["PoisonService"],
)
"""Other services of a tracker that grants."""

_STOP_GRACE_SEC = 0.5
_FATAL_LOOK_SEC = 0.05
_WATCH_SEC = 0.2


class Standby:
    """A standby in this process, in a state directory that this process has locked."""

    def __init__(self, options: TrackerOptions, primary: str) -> None:
        if options.is_plain:
            raise ConfigError("a standby needs TLS; leave out --plain")
        if not options.is_network_allowed:
            refuse_network(options.listening_host)
        self._options = options
        self._state = ReplicaState(options.directory, primary)
        self.following = Following(self._state, self._listen)
        self.address = ""
        self.promoted = asyncio.Event()
        self._server: grpc.aio.Server | None = None
        self._running: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None
        self._witnesses = Witnesses()
        self._promotion = asyncio.Lock()

    async def open(self) -> None:
        """Begin to follow; listen if there is a whole state.

        Raises:
            ConfigError: the port is in use.
        """
        try:
            if self._state.standing.is_whole:
                await self._listen()
        except BaseException:  # also if cancelled or interrupted; raised again
            await self.close()
            raise
        self._follow()
        self._watching = asyncio.create_task(self._watch(), name="watch the tracker")

    async def wait_whole(self) -> None:
        """Wait until there is a whole state. The first time, that takes a snapshot.

        Raises:
            NotJoined, NotAllowed: the tracker does not admit it as a standby.
            ConfigError: the port is in use, or the tracker is of another fleet than the state directory.
        """
        while not self.following.whole.is_set():
            if isinstance(self.following.error, NotJoined | NotAllowed | ConfigError):
                raise self.following.error
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.following.whole.wait(), _FATAL_LOOK_SEC)

    async def close(self) -> None:
        """Stop. Idempotent."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        await self._stop_following()
        if self._server is not None:
            await self._server.stop(_STOP_GRACE_SEC)
        await asyncio.to_thread(self._state.close)
        self._server = None

    async def promote(self) -> int:
        """Take over; return the term.

        Raises:
            JournalDamaged: there is no whole snapshot.
            InvalidRequest: it has taken over already.
        """
        async with self._promotion:
            return await self._take_over()

    async def _take_over(self, *, is_primary_silent: bool = False) -> int:
        if self.promoted.is_set():
            raise InvalidRequest("this standby has taken over already")
        await self._stop_following()
        term = min(max(self._state.standing.term + 1, int(time.time() * 1e3)), MOST_TERM - 1)
        try:
            await asyncio.to_thread(self._state.take_over, term)
        except FleetError:
            self._follow()
            raise
        if not is_primary_silent:
            await self._tell_primary(term)
        logger.warning("taking over", extra={"tracker": self.following.primary, "term": term})
        self.promoted.set()
        return term

    async def _tell_primary(self, term: int) -> None:
        """Tell a live primary the larger term, so that it stops granting at once."""
        key = load_or_make_key(self._options.directory / SIGNING_KEY)
        await exchange_terms(self.following.primary, make_proof(key, term), self._state.authority().certificate_pem)

    async def __aenter__(self) -> Standby:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _watch(self) -> None:
        """Take over once the tracker is silent and most of its agents say so; runs until then."""
        attached, counted_at_sec = frozenset[str](), -1.0
        while not self.promoted.is_set():
            await asyncio.sleep(_WATCH_SEC)
            heard_at_sec = self.following.heard_at_sec
            if time.monotonic() - heard_at_sec < SILENCE_SEC or not self._state.standing.is_whole:
                continue
            if not attached or counted_at_sec != heard_at_sec:
                attached, counted_at_sec = await asyncio.to_thread(self._state.attached_agents), heard_at_sec
            now_sec = time.monotonic()
            if self._witnesses.agree(attached, now_sec - heard_at_sec, now_sec):
                logger.error("the tracker is gone, its agents say", extra={"tracker": self.following.primary})
                with contextlib.suppress(FleetError):  # it was promoted meanwhile, or its disk is full
                    async with self._promotion:
                        await self._take_over(is_primary_silent=True)

    def note_witness(self, key_id: str) -> None:
        """Note that an agent finds the tracker away or silent."""
        self._witnesses.note(key_id, time.monotonic())

    def _follow(self) -> None:
        self._running = asyncio.create_task(self.following.run(), name="follow the tracker")

    async def _stop_following(self) -> None:
        running, self._running = self._running, None
        if running is not None:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    async def _listen(self) -> str:
        """Listen unless it does; return the address for others."""
        host = self._options.listening_host
        if self._server is None:
            self._server = await self._serve(host)
        return address_of("" if is_any_host(host) else host, int(self.address.rpartition(":")[2]))

    async def _serve(self, host: str) -> grpc.aio.Server:
        authority = self._state.authority()
        server = rpc.make_server(rpc.MAX_REQUEST_BYTES)
        guard = Guard(check_member=self._check_member)
        refusing = Refusing(self.following.primary)
        stubs.add_replica_service(server, StandbyServicer(self), guard)
        for service in _TRACKERS_ALONE:
            rpc.add_service(server, service, refusing, guard)
        witnessed = Refusing(self.following.primary, self.note_witness)
        rpc.add_service(server, _AGENTS, witnessed, guard)
        security = server_security(authority.credentials, admits_strangers=True)
        port = rpc.bind(server, host, self._options.port, security, what="the standby")
        self.address = address_of(host, port)
        store = CredentialStore()
        authority.serve_account(
            store, self.address, home=self._options.directory, is_revoked=self._state.revoked.__contains__
        )
        await server.start()
        logger.info("standby listening", extra={"address": self.address, "tracker": self.following.primary})
        return server

    def _check_member(self, caller: Identity) -> None:
        if caller.key_id in self._state.revoked:
            raise KeyRevoked(f"the key {caller.key_id[:8]} was revoked; ask an admin for a token to join again")


class StandbyServicer:
    """fleet.v1.ReplicaService of a standby."""

    def __init__(self, standby: Standby) -> None:
        self._standby = standby
        self._refusing = Refusing(standby.following.primary)

    async def get_tracker(self, request: pb.GetTrackerRequest, context: CallContext) -> pb.GetTrackerResponse:
        if request.is_other_silent and (caller := caller_of(context)).role is Role.AGENT:
            self._standby.note_witness(caller.key_id)
        return pb.GetTrackerResponse(is_standby=True, other_address=self._standby.following.primary)

    async def follow(self, _: object, context: CallContext) -> AsyncIterator[pb.FollowResponse]:
        self._refusing.check_call(context)
        yield pb.FollowResponse()

    async def promote(self, _: pb.PromoteRequest, __: object) -> pb.PromoteResponse:
        return pb.PromoteResponse(term=await self._standby.promote())
