"""The code that an admin compares before an agent joins without a token.

Both sides show it, and it authenticates each to the other (Vaudenay, "Secure communications over insecure channels
based on short authenticated strings", CRYPTO 2005). The agent commits itself to a random number before it sees the
tracker's. An attacker between them therefore has one guess of 60 bits per attempt. Without the numbers, equal codes
would be found among some 2^30 key pairs.
"""

from __future__ import annotations

import base64
import hashlib
import secrets

NUMBER_BYTES = 16
_CODE_CHARS = 12
_GROUP_CHARS = 4
_DOMAIN = b"tvm-fleet join code 1"


def make_number() -> bytes:
    """Return a random number for one attempt."""
    return secrets.token_bytes(NUMBER_BYTES)


def commitment_to(number: bytes) -> bytes:
    """Return the commitment to a number: its SHA-256."""
    return hashlib.sha256(number).digest()


def join_code(pin: bytes, key_id: str, agent_number: bytes, tracker_number: bytes) -> str:
    """Return the code "ABCD-EFGH-2345", 60 bits in base32.

    Args:
        pin: SHA-256 of the fleet's authority.
        key_id: id of the agent's key.
    """
    content = b"".join((_DOMAIN, pin, bytes.fromhex(key_id), agent_number, tracker_number))
    return grouped(base64.b32encode(hashlib.sha256(content).digest()).decode()[:_CODE_CHARS])


def grouped(text: str) -> str:
    """Return a typed code in the form of `join_code`: upper case, with hyphens."""
    chars = "".join(text.upper().replace("-", " ").split())
    return "-".join(chars[start : start + _GROUP_CHARS] for start in range(0, len(chars), _GROUP_CHARS))
