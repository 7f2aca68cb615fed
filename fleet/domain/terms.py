"""Terms: each takeover by a standby begins a larger one. Agents obey no tracker with a smaller one than they have seen.

A proof is the term and its signature by the fleet's signing key, so that an agent can hand it on but not make one up.
"""

from __future__ import annotations

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from fleet.errors import Unauthenticated

MOST_TERM = 2**62
_DOMAIN = b"fleet.v1.Term\0"
_TERM_BYTES, _SIGNATURE_BYTES = 8, 64


def make_proof(key: Ed25519PrivateKey, term: int) -> bytes:
    """Return the proof of a term; empty for term 0, which needs none."""
    if not term:
        return b""
    content = term.to_bytes(_TERM_BYTES, "big")
    return content + key.sign(_DOMAIN + content)


def read_term(public_key: bytes, proof: bytes) -> int:
    """Return the term that a proof is of; 0 if it is empty.

    Raises:
        Unauthenticated: no tracker with this key has signed it.
    """
    if not proof:
        return 0
    content, signature = proof[:_TERM_BYTES], proof[_TERM_BYTES:]
    term = int.from_bytes(content, "big")
    try:
        if len(signature) != _SIGNATURE_BYTES or not 0 < term < MOST_TERM:
            raise InvalidSignature
        Ed25519PublicKey.from_public_bytes(public_key).verify(signature, _DOMAIN + content)
    except (InvalidSignature, ValueError):
        raise Unauthenticated("the proof of the term was not signed by this fleet's tracker") from None
    return term


def claimed_term(proof: bytes) -> int:
    """Return the term of a proof without a check of its signature; 0 if it is empty."""
    return int.from_bytes(proof[:_TERM_BYTES], "big")


def larger_term(key: Ed25519PrivateKey, term: int, proof: bytes) -> int:
    """Return the larger of a term and that of a proof, which is ignored if it is not genuine."""
    try:
        return max(term, read_term(key.public_key().public_bytes_raw(), proof))
    except Unauthenticated:
        return term
