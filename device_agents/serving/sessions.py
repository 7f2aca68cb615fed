"""All sessions of an agent: at most one per device, opened by tokens, ended by time, by fences, and by newer leases."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
from collections.abc import Coroutine, Iterable
from typing import Any

from device_agents.serving.admission import Admission, Fence
from device_agents.serving.device import ServedDevice
from device_agents.serving.failures import superseded
from device_agents.serving.intake import Intake, share_bytes
from device_agents.serving.lease_logs import LeaseLogs
from device_agents.serving.session import Session
from device_agents.serving.store import ArtifactStore
from device_agents.workers.pool import WorkerPool
from fleet.domain.tokens import Claims
from fleet.errors import DeviceClosed, FleetError, LeaseExpired, LeaseRevoked, TrackerUnavailable, Unauthenticated

logger = logging.getLogger(__name__)

_FIRST_CONTACT_SEC = 2.0
"""Wait for a tracker's first message: a holder may arrive before it, as both are sent at once."""


class SessionTable:
    """The live sessions."""

    def __init__(
        self,
        devices: Iterable[ServedDevice],
        admission: Admission,
        pool: WorkerPool,
        store: ArtifactStore,
        logs: LeaseLogs | None = None,
    ) -> None:
        self._devices = {device.name: device for device in devices}
        self._admission = admission
        self._pool = pool
        self._store = store
        self._logs = logs or LeaseLogs()
        self._sessions: dict[str, Session] = {}
        self._locks = {name: asyncio.Lock() for name in self._devices}
        self._endings: set[asyncio.Task[None]] = set()
        self._entering: set[asyncio.Task[Session]] = set()
        self._newest: dict[str, tuple[Claims, bytes]] = {}
        """Claims and token of the lease that entered last or waits to enter, by device: a hook may outlast a token."""

        self._is_closed = False
        self._meeting = asyncio.Event()
        """Set, and replaced, when the tracker's message with key and nonces arrives."""

    def has_session(self, device_name: str) -> bool:
        """Tell whether a device has a live session."""
        session = self._sessions.get(device_name)
        return session is not None and session.life.is_live

    def add(self, device: ServedDevice) -> None:
        """Accept leases of an additional device."""
        self._devices[device.name] = device
        self._locks.setdefault(device.name, asyncio.Lock())
        self._admission.add(device.name)

    def remove(self, device_name: str) -> None:
        """Stop accepting leases of a device, which must have no session."""
        del self._devices[device_name]
        self._newest.pop(device_name, None)
        self._admission.remove(device_name)

    async def enter(self, token: bytes) -> Session:
        """Return the session of a token, opening or extending it. An older lease's session is ended first.

        Raises:
            FleetError: see Admission.check.
        """
        if not self._could_be_good(token):
            await self._await_tracker(token)
        claims = self._check(token)
        session = self._sessions.get(claims.device_name)
        if session is not None and session.life.is_live and session.holds(claims):
            self._extend(session, claims)
            return session
        self._note(claims, token)
        entering = asyncio.create_task(
            self._enter_in_turn(claims.device_name, token), name=f"enter-{claims.lease_name}"
        )
        self._entering.add(entering)
        entering.add_done_callback(self._entered)
        return await asyncio.shield(entering)  # a hook in progress ends also if its holder hangs up

    def check_signature(self, token: bytes) -> None:
        """Refuse tokens that the tracker did not sign for a device of this agent. `enter` checks whether they are still
        valid.

        Raises:
            Unauthenticated: the signature is wrong, or the device is not of this agent.
        """
        with contextlib.suppress(TrackerUnavailable):  # no tracker yet: calls wait for it
            self._admission.read(token)

    def enter_to_upload(self, ticket: bytes) -> Session:
        """Return the live session that issued an upload ticket.

        Raises:
            Unauthenticated: none did, or it is over.
        """
        for session in self._sessions.values():
            if session.life.is_live and hmac.compare_digest(session.upload_ticket, ticket):
                return session
        raise Unauthenticated("no live session of this agent made this upload ticket; ask for another one")

    def trust(self, public_key: bytes) -> None:
        """Accept tokens signed by this tracker. If it is a new one, leases of the former tracker end."""
        is_other = self._admission.trust(public_key)
        self._meet()
        if not is_other:
            return
        for session in self._sessions.values():
            if session.life.is_live:
                name = session.claims.lease_name
                error = LeaseRevoked(f"the tracker that granted {name} was replaced; acquire again")
                self._soon(session.end(error), f"disown-{name}")

    @property
    def term_proof(self) -> bytes:
        """See `Admission.term_proof`."""
        return self._admission.term_proof

    def obey(self, term_proof: bytes) -> None:
        """See `Admission.obey`."""
        self._admission.obey(term_proof)

    def fence(self, fence: Fence) -> None:
        """End every session of a device that the tracker reports as ended, or does not know."""
        if fence.device_name not in self._devices:
            return
        self._admission.fence(fence)
        if fence.nonce:
            self._meet()
        session = self._sessions.get(fence.device_name)
        if session is None:
            return
        claims = session.claims
        if claims.epoch <= fence.epoch or not self._admission.expects(claims):
            error = LeaseRevoked(f"{claims.lease_name} of {claims.device_name} was ended by the tracker; acquire again")
            self._soon(session.end(error), f"fence-{claims.lease_name}")

    def fenced_epoch(self, device_name: str) -> int:
        """Return the largest epoch that was fenced on a device; 0: none."""
        return self._admission.fenced_epoch(device_name)

    def highest_epoch(self, device_name: str) -> int:
        """Return the largest epoch that was admitted or fenced on a device; 0: none."""
        return self._admission.highest_epoch(device_name)

    async def leave(self, session: Session) -> None:
        """End a session at its holder's request."""
        await session.end(LeaseRevoked(f"the session of {session.claims.lease_name} was closed by its holder"))

    async def close(self) -> None:
        """End all sessions and take no new ones."""
        self._is_closed = True
        for entering in self._entering:
            entering.cancel()
        await asyncio.gather(*self._entering, return_exceptions=True)
        for session in list(self._sessions.values()):
            await session.end(DeviceClosed("the agent is shutting down; acquire another device"))
        await asyncio.gather(*self._endings, return_exceptions=True)

    async def _await_tracker(self, token: bytes) -> None:
        """Wait briefly for the first message of a tracker that has just granted one of our devices."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_FIRST_CONTACT_SEC):
                while not self._could_be_good(token):
                    await self._meeting.wait()

    def _could_be_good(self, token: bytes) -> bool:
        try:
            return self._admission.expects(self._admission.read(token))
        except TrackerUnavailable:
            return False

    def _meet(self) -> None:
        self._meeting.set()
        self._meeting = asyncio.Event()

    def _entered(self, entering: asyncio.Task[Session]) -> None:
        self._entering.discard(entering)
        if not entering.cancelled():
            entering.exception()  # its caller may have hung up

    def _note(self, claims: Claims, token: bytes) -> None:
        known = self._newest.get(claims.device_name)
        if known is None or (known[0].epoch, known[0].expires_at_sec) < (claims.epoch, claims.expires_at_sec):
            self._newest[claims.device_name] = claims, token

    def _check(self, token: bytes) -> Claims:
        """Return the newest claims of a token's lease, which may have been renewed since the token came.

        Raises:
            FleetError: see Admission.check.
        """
        claims = self._admission.read(token)
        newest, newest_token = self._newest.get(claims.device_name, (claims, token))
        is_same = (newest.lease_name, newest.epoch) == (claims.lease_name, claims.epoch)
        is_newer = is_same and newest.expires_at_sec > claims.expires_at_sec
        return self._admission.check(newest_token if is_newer else token)

    async def _enter_in_turn(self, device_name: str, token: bytes) -> Session:
        async with self._locks[device_name]:
            return await self._enter_alone(token)

    async def _enter_alone(self, token: bytes) -> Session:
        # Check again: while an older session was ending, another lease may have started, or this one ended.
        claims = self._check(token)
        if self._is_closed:
            raise DeviceClosed("the agent is shutting down; acquire another device")
        self._admission.admit(claims)
        older = self._sessions.get(claims.device_name)
        if older is not None:
            if older.life.is_live and older.holds(claims):
                self._extend(older, claims)
                return older
            await older.end(superseded(older.claims))
        intake = Intake(share_bytes(len(self._devices), self._pool.limits.memory_bytes))
        session = Session(claims, self._devices[claims.device_name], self._pool, self._store, intake, self._logs)
        try:
            await session.prepare()
        except BaseException:  # also if cancelled; raised again
            await session.end(DeviceClosed(f"{claims.device_name} could not be prepared for {claims.lease_name}"))
            raise
        self._sessions[claims.device_name] = session
        # A fence may have arrived during the waits above, when there was no session for it to end.
        try:
            session.extend(self._check(token))
        except FleetError as error:
            await session.end(error)
            raise
        self._arm(session)
        logger.info("session opened", extra={"lease": claims.lease_name, "device": claims.device_name})
        session.warm_up()
        return session

    def _extend(self, session: Session, claims: Claims) -> None:
        if session.extend(claims):
            self._arm(session)

    def _arm(self, session: Session) -> None:
        session.life.arm(self._admission.remaining_sec(session.claims), lambda: self._expire(session))

    def _expire(self, session: Session) -> None:
        remaining = self._admission.remaining_sec(session.claims)
        if remaining > 0:
            # The estimate of the tracker's clock has improved since.
            self._arm(session)
            return
        claims = session.claims
        error = LeaseExpired(
            f"{claims.lease_name} of {claims.device_name} expired; renew in time or ask for a longer ttl"
        )
        self._soon(session.end(error), f"expire-{claims.lease_name}")

    def _soon(self, ending: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.create_task(ending, name=name)
        self._endings.add(task)
        task.add_done_callback(self._endings.discard)
