"""The agent's membership of a fleet: its key, its certificate, and how it obtains them.

    <state directory>/identity.pem

The key stays the same for the agent's life: its device names belong to it. Four ways lead in: a join token, joining by
this account's own credentials where they are an admin's (`fleet up`, or a tracker of the same account), an admin's
approval, or having joined before. Until then the agent serves with a certificate that nobody's is accepted for.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import logging
import socket
from pathlib import Path

from fleet.base.network import addresses_of, host_of, is_loopback
from fleet.base.private_files import read_private, write_private
from fleet.errors import FleetError, KeyRevoked, NotJoined
from fleet.identity.certificates import issue_own, make_authority, make_key, pin_of, read_identity
from fleet.identity.credentials import MEMBER_NAME, Credentials, PlainSecret, Proof, parse_proof
from fleet.identity.join_tokens import JoinToken
from fleet.identity.other_tracker import OtherTracker
from fleet.identity.roles import Identity, Role
from fleet.identity.store import CredentialStore
from fleet.wire import joining
from fleet.wire.approval import ask_to_join
from fleet.wire.replicas import find_successor
from fleet.wire.rpc import Channel, make_channel

logger = logging.getLogger(__name__)

_FILE = "identity.pem"
_OTHER_FILE = "other-tracker"
_LOOK_SEC = 600.0
"""Interval of checks for a certificate that expires soon. Short, because a board without a battery for its clock starts
in 1970, and may be switched off again within the hour.
"""


class Membership:
    """One agent's membership of the fleet of one tracker."""

    def __init__(
        self,
        folder: Path,
        tracker: str,
        *,
        token: JoinToken | None = None,
        asks_to_join: bool = False,
        is_plain: bool = False,
    ) -> None:
        """Args:
        folder: where the key is stored.
        tracker: "host:port", or several with commas between them.
        token: to join with, unless that fleet is joined already.
        asks_to_join: without a token, ask the fleet's admins for approval, and wait.
        is_plain: use no TLS; only with a tracker of this account that uses none.
        """
        self._path = folder / _FILE
        self._configured = addresses_of(tracker)
        self._other = OtherTracker(folder / _OTHER_FILE)
        self._dialled = 0
        self._successor = ""
        self._token = token
        self._asks_to_join = asks_to_join
        self._is_plain = is_plain
        self._store = CredentialStore()
        self._own: Credentials | None = None
        self._provisional: Credentials | None = None
        self._new_key_pem = b""
        self.join_code = ""
        """Code that an admin compares while this agent waits for approval; empty otherwise."""

    @property
    def tracker(self) -> str:
        """Address of the tracker that is dialled now."""
        trackers = self._trackers
        return trackers[self._dialled % len(trackers)]

    @property
    def _trackers(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*self._configured, *self._other.addresses)))

    def dial_next(self) -> bool:
        """Dial the next tracker from now on, one that has taken over if any; return False after the last one."""
        trackers, successor = self._trackers, self._successor
        self._successor = ""
        if successor in trackers:
            self._dialled = trackers.index(successor)
            return True
        self._dialled = (self._dialled + 1) % len(trackers)
        return self._dialled > 0

    async def await_successor(self, term: int) -> None:
        """Tell the fleet's other tracker that the dialled one is silent, until it has taken over; it is dialled next.

        Args:
            term: the largest known one.
        """
        own = self._own
        others = {} if own is None else {one: own for one in self._trackers if one != self.tracker}
        self._successor = await find_successor(others, term)

    def learn_other(self, address: str) -> None:
        """Keep the address of the fleet's other tracker; empty: nothing new."""
        if address not in self._configured:
            self._other.learn(address)

    @property
    def own(self) -> Credentials | None:
        """Credentials of the fleet that it has joined."""
        return self._own

    @property
    def is_plain(self) -> bool:
        return self._is_plain

    def load(self) -> None:
        """Read the key of an agent that has joined before.

        Raises:
            ConfigError: others can read it, or the file holds something else.
        """
        try:
            found = parse_proof(read_private(self._path), where=str(self._path))
        except FileNotFoundError:
            return
        self._own = found if isinstance(found, Credentials) else None

    def credentials(self) -> Credentials:
        """Return the server's credentials for callers of the data path. Also called by gRPC's threads."""
        if self._own is not None:
            return self._own
        if self._provisional is None:
            now = dt.datetime.now(dt.UTC)
            self._provisional = issue_own(make_authority(now), make_key(), name="agent", role=Role.AGENT, now=now)
        return self._provisional

    def secret(self) -> PlainSecret | None:
        """Return the secret of callers without TLS, or None if there is none."""
        found = self._store.find(self.tracker)
        return found if isinstance(found, PlainSecret) else None

    @property
    def path(self) -> Path:
        """Path of the key file."""
        return self._path

    async def join(self) -> Identity:
        """Redeem the join token and return the member. Joins with the former key, or with a new one if that was
        revoked.

        Raises:
            FleetError: see `fleet.wire.joining.join`.
        """
        if self._token is None:
            raise NotJoined("there is no join token to join with")
        try:
            made, member = await self._joined(self._token, self._key())
        except KeyRevoked:
            made, member = await self._joined(self._token, make_key())
        self._keep(made)
        logger.info("joined the fleet", extra={"member": member.name, "key": member.key_id})
        return member

    async def _joined(self, token: JoinToken, key_pem: bytes) -> tuple[Credentials, Identity]:
        name, roles = socket.gethostname(), frozenset({Role.AGENT})
        return await joining.join(self.tracker, token, name=name, key_pem=key_pem, roles=roles)

    async def channel(self) -> Channel:
        """Return a channel to the tracker, joining its fleet first where needed.

        Raises:
            NotJoined: there are no credentials; the message names the remedy.
            FleetError: joining failed.
        """
        return make_channel(self.tracker, await self._proof())

    def relay_channel(self, relay: str) -> Channel:
        """Return a channel to a relay of the fleet.

        Raises:
            NotJoined: this agent has not joined it yet.
        """
        if self._own is None:
            raise NotJoined("this agent has joined no fleet yet")
        return make_channel(relay, self._own, MEMBER_NAME)

    async def revoked_keys(self) -> frozenset[str]:
        """Return the ids of the keys that the tracker has revoked.

        Raises:
            FleetError: it does not answer, or this agent is no member.
        """
        return await joining.revoked_keys(self.tracker, await self._proof())

    async def renew(self) -> None:
        """Renew the certificate when it is due; best effort, as weeks remain."""
        if self._own is None:
            return
        try:
            fresh = await joining.renewed(self.tracker, self._own, dt.datetime.now(dt.UTC))
        except FleetError as error:
            logger.warning("certificate is not renewed yet", extra={"reason": str(error)})
            return
        if fresh is not None:
            self._keep(fresh)

    async def _proof(self) -> Proof:
        if self._is_plain:
            secret = self.secret()
            if secret is None:
                raise NotJoined(f"there is no tracker of this account without TLS at {self.tracker}; leave out --plain")
            return secret
        if self._token is not None and (self._own is None or pin_of(self._own.authority_pem) != self._token.pin):
            await self.join()
        await self._join_own_account()
        if self._own is None and self._asks_to_join:
            await self._ask_to_join()
        if self._own is None:
            raise NotJoined(
                "this agent has joined no fleet; make a token (fleet tracker token create --role agent), then here: "
                f"fleet agent join --tracker {self.tracker}"
            )
        return self._own

    async def _ask_to_join(self) -> None:
        authority_pem = await joining.shown_authority(self.tracker)
        await self._join_own_account()  # by now a tracker of this account has written its credentials
        if self._own is not None:
            return
        name, key_pem = socket.gethostname(), self._key()
        try:
            self._keep(
                await ask_to_join(self.tracker, authority_pem, name=name, key_pem=key_pem, on_code=self._tell_code)
            )
        finally:
            self.join_code = ""

    def _tell_code(self, code: str) -> None:
        self.join_code = code
        remedy = f"fleet agent approve {code}"
        logger.warning("an admin has to approve this agent", extra={"tracker": self.tracker, "remedy": remedy})

    async def _join_own_account(self) -> None:
        """Join the fleet of a tracker that this account administers, unless the agent has joined it."""
        account = self._store.find(self.tracker)
        if account is None and self._own is None:
            account = await joining.find_proof(self.tracker, self._store)
        if not isinstance(account, Credentials):
            return
        if self._own is not None and self._own.authority_pem == account.authority_pem:
            return
        if read_identity(account.certificate_pem).role is Role.ADMIN:
            name = socket.gethostname()
            self._keep(await joining.admit_own(self.tracker, account, name=name, key_pem=self._key()))

    def _key(self) -> bytes:
        if self._own is not None:
            return self._own.key_pem
        self._new_key_pem = self._new_key_pem or make_key()
        return self._new_key_pem

    def _keep(self, credentials: Credentials) -> None:
        self._own = credentials
        try:
            write_private(self._path, credentials.to_pem())
        except OSError as error:
            logger.warning("the agent's key is not kept", extra={"path": str(self._path), "error": str(error)})

    def may_come(self, error: FleetError) -> bool:
        """Tell whether waiting helps: a tracker of this account writes its credentials at its start."""
        return isinstance(error, NotJoined) and is_loopback(host_of(self.tracker))

    async def why_no_tracker(self) -> str:
        """Return why the tracker cannot be reached, in a sentence; empty: it does not answer."""
        own = self._own
        return await asyncio.to_thread(joining.why_no_tracker, self.tracker, own) if own is not None else ""


def has_joined(folder: Path) -> bool:
    """Tell whether the agent of a state directory has joined a fleet before."""
    return (folder / _FILE).exists()


async def renew_in_time(membership: Membership, look_sec: float = _LOOK_SEC) -> None:
    """Renew certificates before they end, until cancelled."""
    while True:
        try:
            await membership.renew()
        except Exception:  # outermost loop of this task: weeks remain, and the next attempt may succeed
            logger.exception("looking after the certificate failed")
        await asyncio.sleep(look_sec)
