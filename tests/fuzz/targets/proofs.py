"""Credentials of callers: tokens, secrets, certificates."""

from __future__ import annotations

import contextlib

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fleet.domain.tokens import Claims, TokenSigner, TokenVerifier
from fleet.errors import ConfigError, InvalidRequest, Unauthenticated
from fleet.identity import stranger
from fleet.identity.certificates import authority_in, read_request
from fleet.identity.credentials import Credentials, PlainSecret, parse_proof
from fleet.wire.tokens import read_claims, sign_claims, verify_token
from tests.fuzz.target import Target, no_loop

SIGNER = TokenSigner(Ed25519PrivateKey.from_private_bytes(bytes(32)))
_VERIFIER = TokenVerifier(SIGNER.public_key)
_CLAIMS = Claims(
    lease_name="leases/7", device_name="devices/a", epoch=7, holder="me@here", expires_at_sec=80.5, nonce="ab"
)


def _lease_token(content: bytes) -> None:
    with contextlib.suppress(Unauthenticated):
        read_claims(content)
    with contextlib.suppress(Unauthenticated):
        assert verify_token(content, _VERIFIER) == _CLAIMS


def _credentials(content: bytes) -> None:
    with contextlib.suppress(ConfigError):
        parse_proof(content, where="here")


def _certificates(content: bytes) -> None:
    for read in (read_request, authority_in):
        with contextlib.suppress(InvalidRequest):
            read(content)


def _known_credentials() -> bytes:
    return Credentials(
        key_pem=stranger.KEY_PEM, certificate_pem=stranger.CERTIFICATE_PEM, authority_pem=stranger.CERTIFICATE_PEM
    ).to_pem()


def _ders() -> list[bytes]:
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import Encoding

    return [x509.load_pem_x509_certificate(stranger.CERTIFICATE_PEM).public_bytes(Encoding.DER)]


PROOFS = [
    Target(
        name="lease_token",
        run=no_loop(_lease_token),
        seeds=lambda: [sign_claims(_CLAIMS, SIGNER).SerializeToString()],
        quick_inputs=1000,
    ),
    Target(
        name="credentials",
        run=no_loop(_credentials),
        seeds=lambda: [PlainSecret(secret=bytes(range(32))).to_pem(), _known_credentials()],
        words=(b"-----BEGIN FLEET SECRET-----", b"-----END FLEET SECRET-----", b"-----BEGIN CERTIFICATE-----", b"\n"),
        large_bytes=64 * 1024,  # a file of its reader's own
        quick_inputs=500,
    ),
    Target(name="certificates", run=no_loop(_certificates), seeds=_ders, quick_inputs=500),
]
