"""Connection to a fleet's tracker: a channel with this account's credentials.

The credentials are looked up by the tracker's address for each call: a tracker of this account writes them when it
starts, and certificates are renewed.

With several addresses, the first that answers is used until a call fails.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from fleet.base.network import addresses_of, is_answered
from fleet.errors import NotJoined, TrackerUnavailable
from fleet.identity.credentials import Credentials, Proof
from fleet.identity.store import CredentialStore
from fleet.wire.replicas import find_successor, granting_terms
from fleet.wire.rpc import Channel, make_channel

_KEPT = 2
"""Channels kept open when the credentials change: calls are under way in the older one."""


class TrackerConnection:
    """Channels to one tracker. Used on one event loop."""

    def __init__(self, address: str, store: CredentialStore | None = None) -> None:
        """Args: address: "host:port", or several with commas between them."""
        self._configured = addresses_of(address) or (address,)
        self._chosen: str | None = None
        self._former = ""
        self._term = 0
        """The largest known one."""
        self._choice = asyncio.Lock()
        self._store = store or CredentialStore()
        self._other = self._store.other_tracker(self._configured[0])
        self._version = (0, 0)
        self._proof: Proof | None = None
        self._channels: list[Channel] = []

    @property
    def address(self) -> str:
        """The address in use, else all of them."""
        return self._chosen or " or ".join(self._addresses)

    @property
    def _addresses(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*self._configured, *self._other.addresses)))

    @property
    def proof(self) -> Proof:
        """The credentials in use.

        Raises:
            NotJoined: there are none yet.
        """
        if self._proof is None:
            raise not_joined(self.address)
        return self._proof

    def choose_again(self) -> None:
        """Look for an address that answers before the next call, since the last one failed."""
        self._chosen = None

    async def await_successor(self) -> None:
        """Wait until the fleet's other tracker has taken over from the silent one in use, and use it from then on."""
        own = self._proof
        others = {} if own is None else {one: own for one in self._addresses if one != self._former}
        self._chosen = await find_successor(others, self._term)

    def learn_other(self, address: str, term: int) -> None:
        """Keep the address of the fleet's other tracker.

        Args:
            term: that of the tracker in use.
        """
        self._term = max(self._term, term)
        if address not in self._configured:
            self._other.learn(address)

    async def channel(self) -> Channel:
        """Return the channel to use now.

        Raises:
            NotJoined: this account has no credentials for the tracker at this address.
            TrackerUnavailable: this account has no credentials, and nothing answers at the address.
            ConfigError: the credentials cannot be used.
        """
        address = self._chosen or await self._choose()
        version = self._store.version(address)
        if self._proof is None or version != self._version or address != self._former:
            found = _kept(address, self._store, self._proof)
            if address != self._former and _is_of_same_fleet(found, self._proof):
                found = self._proof  # leases belong to its key
            found = found or await _find_proof(address, self._store)
            if found is None:
                raise await _no_credentials(address)
            if found != self._proof or address != self._former:
                self._channels.append(make_channel(address, found))
            self._proof, self._version, self._former = found, version, address
        while len(self._channels) > _KEPT:
            await self._channels.pop(0).close()
        return self._channels[-1]

    async def _choose(self) -> str:
        """Return the address of the tracker that grants with the largest term; of equals, the one in use or the first.

        Raises:
            TrackerUnavailable: there are several addresses, and none grants.
        """
        addresses = self._addresses
        if len(addresses) == 1:
            return addresses[0]
        async with self._choice:
            if self._chosen is None:
                order = [address for address in (self._former, *addresses) if address in addresses]
                self._chosen = await self._granting(order)
            return self._chosen

    async def _granting(self, addresses: Sequence[str]) -> str:
        proofs: dict[str, Proof] = {}
        for address in addresses:
            proof = _kept(address, self._store, self._proof) or await _find_proof(address, self._store)
            if proof is not None:
                proofs[address] = proof
            elif await asyncio.to_thread(is_answered, address):
                return address
        if not proofs:
            return addresses[0]
        terms = await granting_terms(proofs)
        if not terms:
            raise TrackerUnavailable(
                f"no tracker grants at {' or '.join(addresses)}; start it, or if it is gone for good, have its standby "
                "take over: fleet tracker promote"
            )
        chosen = max(terms, key=terms.__getitem__)
        self._term = max(self._term, terms[chosen])
        return chosen

    async def close(self) -> None:
        """Close all channels. Idempotent."""
        while self._channels:
            await self._channels.pop().close()


def not_joined(address: str) -> NotJoined:
    """Return the error for a tracker that this account has no credentials for."""
    return NotJoined(
        f"this account has no credentials for the tracker at {address}; ask for a token "
        f"(fleet tracker token create --role user), then: fleet login --tracker {address}"
    )


def no_tracker(address: str, tried: str = "") -> TrackerUnavailable:
    """Return the error for an address where nothing answers."""
    return TrackerUnavailable(
        f"no tracker answers at {address}{tried}: is it running? start one with: fleet up, or for other machines: "
        "fleet tracker serve --allow-network"
    )


async def account_credentials(address: str) -> Callable[[], Credentials]:
    """Return a function that returns this account's current credentials for a tracker, including renewed ones.

    Raises:
        NotJoined: it has none, or the tracker runs without TLS.
    """
    store, addresses = CredentialStore(), addresses_of(address)
    found = [proof for one in addresses if (proof := store.find(one) or await _find_proof(one, store)) is not None]
    first = next(iter(found), None)
    if not isinstance(first, Credentials):
        raise not_joined(address)

    def current() -> Credentials:
        kept = _kept(addresses[0], store, first)
        return kept if isinstance(kept, Credentials) else first

    return current


async def _no_credentials(address: str) -> NotJoined | TrackerUnavailable:
    """Return the error for missing credentials, which depends on whether a tracker answers at the address."""
    is_there = await asyncio.to_thread(is_answered, address)
    return not_joined(address) if is_there else no_tracker(address)


def _kept(address: str, store: CredentialStore, known: Proof | None) -> Proof | None:
    """Return the stored credentials for a tracker: by its address, or by the authority of known ones."""
    found = store.find(address)
    if found is None and isinstance(known, Credentials):
        return store.of_authority(known.authority_pem)
    return found


def _is_of_same_fleet(found: Proof | None, known: Proof | None) -> bool:
    if not isinstance(found, Credentials) or not isinstance(known, Credentials):
        return False
    return found.authority_pem == known.authority_pem


async def _find_proof(address: str, store: CredentialStore) -> Proof | None:
    from fleet.wire.joining import find_proof  # takes 20 ms to import, and is seldom needed

    return await find_proof(address, store)
