"""Calls of one tracker to the fleet's other one, with this account's credentials."""

from __future__ import annotations

from fleet.errors import FleetError, NotJoined
from fleet.identity.credentials import Proof
from fleet.identity.store import CredentialStore
from fleet.wire.joining import find_proof
from fleet.wire.replicas import ask_tracker


async def credentials_for(address: str) -> Proof:
    """Return this account's credentials for the fleet of a tracker.

    Raises:
        NotJoined: this account has not joined it.
    """
    proof = await find_proof(address, CredentialStore())
    if proof is None:
        raise NotJoined(
            f"this account has no credentials for the tracker at {address}, or it does not answer; make a token there "
            f"(fleet tracker token create --role admin), then here: fleet login --tracker {address}"
        )
    return proof


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
