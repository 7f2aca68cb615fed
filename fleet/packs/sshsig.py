"""Verifies SSH signatures (SSHSIG), as `ssh-keygen -Y sign` makes them. No I/O.

https://github.com/openssh/openssh-portable/blob/master/PROTOCOL.sshsig
"""

from __future__ import annotations

import base64
import hashlib
import struct
from collections.abc import Callable
from dataclasses import dataclass

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa, utils
from cryptography.hazmat.primitives.hashes import SHA256, SHA384, SHA512, HashAlgorithm
from cryptography.hazmat.primitives.serialization import load_ssh_public_key

from fleet.errors import InvalidRequest

NAMESPACE = "tvm-fleet-pack"
MOST_BYTES = 64 * 1024

_MAGIC = b"SSHSIG"
_BEGIN, _END = "-----BEGIN SSH SIGNATURE-----", "-----END SSH SIGNATURE-----"
_VERSION = 1
_DIGESTS: dict[bytes, Callable[[bytes], bytes]] = {
    b"sha256": lambda content: hashlib.sha256(content).digest(),
    b"sha512": lambda content: hashlib.sha512(content).digest(),
}
_RSA_HASHES: dict[bytes, HashAlgorithm] = {b"rsa-sha2-256": SHA256(), b"rsa-sha2-512": SHA512()}
_CURVE_HASHES: dict[str, HashAlgorithm] = {"secp256r1": SHA256(), "secp384r1": SHA384(), "secp521r1": SHA512()}
_FEWEST_RSA_BITS = 2048
_OTHERS = "; sign with an Ed25519, ECDSA or RSA key of at least 2048 bits"


@dataclass(frozen=True, slots=True)
class PublicKey:
    """A public key as SSH writes it."""

    blob: bytes

    @property
    def kind(self) -> str:
        """Its algorithm: "ssh-ed25519"."""
        return _Reader(self.blob).text().decode("ascii", "replace")

    @property
    def line(self) -> str:
        """The key as in a file of public keys: "ssh-ed25519 AAAA..."."""
        return f"{self.kind} {base64.b64encode(self.blob).decode()}"

    @property
    def fingerprint(self) -> str:
        """Its hash, as `ssh-keygen -l` prints it."""
        return "SHA256:" + base64.b64encode(hashlib.sha256(self.blob).digest()).decode().rstrip("=")


def signer_of(signature: bytes, content: bytes) -> PublicKey:
    """Return the key that signed some bytes for `NAMESPACE`.

    Raises:
        InvalidRequest: it is no signature of these bytes, or one of an unsupported kind.
    """
    reader = _Reader(_unarmored(signature))
    if reader.take(len(_MAGIC)) != _MAGIC or reader.number() != _VERSION:
        raise InvalidRequest("its signature is not SSHSIG version 1")
    key, namespace, reserved, hash_name, signed = (reader.text() for _ in range(5))
    reader.end()
    if namespace != NAMESPACE.encode():
        raise InvalidRequest(f"its signature is for another purpose than {NAMESPACE!r}; sign with -n {NAMESPACE}")
    if hash_name not in _DIGESTS:
        raise InvalidRequest("its signature uses a hash other than SHA-256 and SHA-512")
    message = _MAGIC + b"".join(map(_packed, (namespace, reserved, hash_name, _DIGESTS[hash_name](content))))
    try:
        _verify(PublicKey(key), _Reader(signed), message)
    except InvalidSignature:
        raise InvalidRequest("its signature is not of this manifest: one of them was changed") from None
    return PublicKey(key)


def _unarmored(signature: bytes) -> bytes:
    try:
        lines = signature.decode("ascii").strip().splitlines()
        if len(signature) > MOST_BYTES or (lines[0], lines[-1]) != (_BEGIN, _END):
            raise ValueError("no armor")
        return base64.b64decode("".join(lines[1:-1]), validate=True)
    except (IndexError, ValueError) as error:
        raise InvalidRequest("its signature is not in the form of ssh-keygen -Y sign") from error


def _verify(key: PublicKey, signed: _Reader, message: bytes) -> None:
    """Raises:
    InvalidSignature: the key did not sign this message.
    InvalidRequest: the key is unsupported.
    """
    algorithm, signature = signed.text(), signed.text()
    signed.end()
    try:
        found = load_ssh_public_key(key.line.encode())
    except (ValueError, UnsupportedAlgorithm) as error:
        raise InvalidRequest(f"its signature is by an unsupported key{_OTHERS}") from error
    if isinstance(found, ed25519.Ed25519PublicKey) and algorithm == b"ssh-ed25519":
        found.verify(signature, message)
    elif isinstance(found, rsa.RSAPublicKey) and algorithm in _RSA_HASHES and found.key_size >= _FEWEST_RSA_BITS:
        found.verify(signature, message, padding.PKCS1v15(), _RSA_HASHES[algorithm])
    elif isinstance(found, ec.EllipticCurvePublicKey) and algorithm.decode("ascii", "replace") == key.kind:
        pair = _Reader(signature)
        r, s = (int.from_bytes(pair.text(), "big") for _ in range(2))
        found.verify(utils.encode_dss_signature(r, s), message, ec.ECDSA(_CURVE_HASHES[found.curve.name]))
    else:
        raise InvalidRequest(f"its signature is by an unsupported key{_OTHERS}")


def _packed(text: bytes) -> bytes:
    return struct.pack(">I", len(text)) + text


class _Reader:
    """Reads SSH's numbers and texts. Raises InvalidRequest where bytes are missing or left."""

    def __init__(self, content: bytes) -> None:
        self._left = content

    def take(self, count: int) -> bytes:
        if count > len(self._left):
            raise InvalidRequest("its signature is truncated")
        found, self._left = self._left[:count], self._left[count:]
        return found

    def number(self) -> int:
        return int.from_bytes(self.take(4), "big")

    def text(self) -> bytes:
        return self.take(self.number())

    def end(self) -> None:
        if self._left:
            raise InvalidRequest("its signature has more bytes than it needs")
