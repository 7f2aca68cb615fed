"""Calls of one tracker to the fleet's other one, with this account's credentials."""

from __future__ import annotations

from fleet.errors import FleetError
from fleet.identity.store import CredentialStore
from fleet.wire.replicas import ask_tracker


async def exchange_terms(address: str, own_proof: bytes, authority_pem: bytes) -> bytes:
    """Tell a tracker of this authority's fleet this one's term; return the proof of its own, empty if it does not
    answer.
    """
    store = CredentialStore()
    try:
        credentials = store.find(address) or store.of_authority(authority_pem)
        return (await ask_tracker(address, credentials, own_proof)).proof if credentials is not None else b""
    except FleetError:
        return b""
