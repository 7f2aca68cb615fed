"""Promotes the standby among a fleet's trackers."""

from __future__ import annotations

from fleet.base.network import addresses_of
from fleet.client.connection import not_joined
from fleet.errors import InvalidRequest
from fleet.identity.store import CredentialStore
from fleet.wire import replicas
from fleet.wire.joining import find_proof


async def promote_standby(tracker: str) -> tuple[str, int]:
    """Promote the first standby of these addresses; return its address and its term.

    Raises:
        InvalidRequest: none of them is a standby that answers.
        FleetError: it cannot take over.
    """
    store = CredentialStore()
    for address in addresses_of(tracker):
        proof = await find_proof(address, store)
        if proof is None:
            raise not_joined(address)
        if not await replicas.grants(address, proof):
            return address, await replicas.promote(address, proof)
    raise InvalidRequest(f"the tracker at {tracker} grants already; name its standby: --tracker HOST:PORT")
