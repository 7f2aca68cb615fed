"""Tokens prove leases, and nothing else does."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from fleet.domain.tokens import Claims, TokenSigner, TokenVerifier, load_or_make_key
from fleet.errors import ConfigError, Unauthenticated
from fleet.wire.tokens import read_claims, sign_claims, verify_token

SIGNER = TokenSigner(Ed25519PrivateKey.generate())
VERIFIER = TokenVerifier(SIGNER.public_key)
CLAIMS = Claims(
    lease_name="leases/1", device_name="devices/a", epoch=7, holder="me@here", issued_at_sec=50.0, expires_at_sec=80.5
)
TOKEN = sign_claims(CLAIMS, SIGNER).SerializeToString()


def test_a_signed_token_keeps_its_claims() -> None:
    """Claims survive the trip."""
    assert verify_token(TOKEN, VERIFIER) == CLAIMS == read_claims(TOKEN)


@given(st.data())
def test_no_changed_token_is_accepted(data: st.DataObject) -> None:
    """A flipped bit anywhere, in claims or signature, is found."""
    forged = bytearray(TOKEN)
    forged[data.draw(st.integers(0, len(forged) - 1))] ^= 1 << data.draw(st.integers(0, 7))

    try:
        found = verify_token(bytes(forged), VERIFIER)
    except Unauthenticated:
        return
    assert found == CLAIMS  # the flipped bit belonged to the surrounding message


def test_invalid_tokens_are_refused() -> None:
    """Bytes of anything else are the caller's mistake, not a crash."""
    for read in (read_claims, lambda content: verify_token(content, VERIFIER)):
        with pytest.raises(Unauthenticated, match="holds no token"):
            read(b"\xff\xff")


def test_another_trackers_token_is_refused() -> None:
    """Only the tracker that the agent is attached to can lend its devices."""
    other = TokenSigner(Ed25519PrivateKey.generate())

    with pytest.raises(Unauthenticated, match="not signed by this fleet's tracker"):
        verify_token(sign_claims(CLAIMS, other).SerializeToString(), VERIFIER)


def test_a_signature_of_something_else_is_refused() -> None:
    """Bytes that the same key signed for another purpose are no token."""
    key = Ed25519PrivateKey.generate()
    content = sign_claims(CLAIMS, SIGNER).claims

    with pytest.raises(Unauthenticated):
        TokenVerifier(key.public_key().public_bytes_raw()).verify(content, key.sign(content))


def test_the_key_is_made_once_and_is_private(tmp_path: Path) -> None:
    """The second start finds the key of the first, which only its owner can read."""
    path = tmp_path / "state" / "key.pem"

    first, second = load_or_make_key(path), load_or_make_key(path)

    assert first.private_bytes_raw() == second.private_bytes_raw()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [path] == list(path.parent.iterdir())


def test_leftovers_of_an_interrupted_start_are_replaced(tmp_path: Path) -> None:
    """Every tracker in a container is process 1, so a half-written key with the same number may exist."""
    (tmp_path / f".key.pem.{os.getpid()}").write_text("half")
    assert load_or_make_key(tmp_path / "key.pem")


@pytest.mark.parametrize("content", ["", "no key", "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"])
def test_a_key_file_that_holds_none_is_named(tmp_path: Path, content: str) -> None:
    """The error names the file and a remedy."""
    (tmp_path / "key.pem").write_text(content)
    with pytest.raises(ConfigError, match=r"key\.pem holds no Ed25519 key; move it away"):
        load_or_make_key(tmp_path / "key.pem")
