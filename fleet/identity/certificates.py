"""Keys and certificates of a fleet: its authority, and the ones it issues for trackers, agents and people. Pure.

Keys are ECDSA on P-256, which every TLS library has and which cost microseconds to make. A certificate says three
things of its owner: a name for people, a role, and the key. The identity of a member is its key: `key_id`.

Nothing is valid only from a certain day on: a board without a clock's battery starts in 1970.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import secrets
from collections.abc import Iterable

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID, ObjectIdentifier

from fleet.errors import InvalidRequest
from fleet.identity.credentials import MEMBER_NAME, TRACKER_NAME, Credentials, agent_name
from fleet.identity.roles import Identity, Role

AUTHORITY_LIFE = dt.timedelta(days=3650)
CERTIFICATE_LIFE = dt.timedelta(days=90)
RENEW_BEFORE = dt.timedelta(days=30)
"""A certificate that ends sooner is renewed."""

_AUTHORITY_INSIDE = ObjectIdentifier("2.25.114514229")
"""Extension of certificates, but agents', with their authority's, DER: compared with the join token. Python's TLS
shows an unverified peer's own certificate, but not the rest of its chain. The number is random, under the arc that
needs no registry."""

_START = dt.datetime(1970, 1, 1, 0, 0, 1, tzinfo=dt.UTC)
MAX_NAME_CHARS = 64
"""Bound of a common name in X.509."""


def make_key() -> bytes:
    """Return a new private key, PEM."""
    return ec.generate_private_key(ec.SECP256R1()).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def make_authority(now: dt.datetime) -> Credentials:
    """Return a new authority: its own key, and its self-signed certificate."""
    key_pem = make_key()
    key = _private(key_pem)
    # A unique name: some libraries treat two authorities of one name as the same.
    subject = _subject(f"tvm-fleet {secrets.token_hex(4)}", "authority")
    builder = _builder(subject, subject, key.public_key(), now + AUTHORITY_LIFE)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_key_usage(signs_certificates=True), critical=True)
    certificate_pem = builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    return Credentials(key_pem=key_pem, certificate_pem=certificate_pem, authority_pem=certificate_pem)


def issue(
    authority: Credentials, public_key: ec.EllipticCurvePublicKey, *, name: str, role: Role, now: dt.datetime
) -> bytes:
    """Issue a certificate for a key, PEM. The authority sets role and names."""
    issuer = x509.load_pem_x509_certificate(authority.certificate_pem)
    ends_at = min(now + CERTIFICATE_LIFE, ends_at_of(issuer))
    builder = _builder(_subject(name, role), issuer.subject, public_key, ends_at)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(_key_usage(signs_certificates=False), critical=True)
    # Without an alternative name some libraries check the common name, which its owner chooses.
    names = [server_name(role, key_id_of(public_key)), *([MEMBER_NAME] if role in (Role.USER, Role.ADMIN) else [])]
    builder = builder.add_extension(x509.SubjectAlternativeName(map(x509.DNSName, names)), critical=False)
    builder = builder.add_extension(x509.ExtendedKeyUsage(_usages(role)), critical=False)
    signer = _private(authority.key_pem)
    from_issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
    builder = builder.add_extension(from_issuer, critical=False)
    if role is not Role.AGENT:
        content = issuer.public_bytes(serialization.Encoding.DER)
        builder = builder.add_extension(x509.UnrecognizedExtension(_AUTHORITY_INSIDE, content), critical=False)
    return builder.sign(signer, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def issue_own(authority: Credentials, key_pem: bytes, *, name: str, role: Role, now: dt.datetime) -> Credentials:
    """Issue credentials for a key of the authority's own process."""
    certificate_pem = issue(authority, _private(key_pem).public_key(), name=name, role=role, now=now)
    return Credentials(key_pem=key_pem, certificate_pem=certificate_pem, authority_pem=authority.certificate_pem)


def server_name(role: Role, key_id: str) -> str:
    """Return the server name in a certificate."""
    if role is Role.TRACKER:
        return TRACKER_NAME
    return agent_name(key_id) if role is Role.AGENT else f"{key_id}.{role}.fleet"


def make_request(key_pem: bytes) -> bytes:
    """Return a certificate request, DER: the public key, and the proof of possession."""
    key = _private(key_pem)
    builder = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([]))
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.DER)


def read_request(content: bytes) -> ec.EllipticCurvePublicKey:
    """Return the key in a certificate request.

    Raises:
        InvalidRequest: it is no request, its key is of another kind, or its owner did not sign it.
    """
    try:
        request = x509.load_der_x509_csr(content)
        key = request.public_key()
        is_signed = request.is_signature_valid
    except Exception as error:  # the library has a dozen classes of parse errors, without a common base
        raise InvalidRequest("this is no request for a certificate; send PKCS #10, DER") from error
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1) or not is_signed:
        raise InvalidRequest("a certificate request must be signed by its own key, on P-256")
    return key


def read_identity(certificate_pem: bytes) -> Identity:
    """Return the subject of a certificate. Does not check the signature."""
    certificate = x509.load_pem_x509_certificate(certificate_pem)
    roles = [role for role in Role if role == _said(certificate, NameOID.ORGANIZATIONAL_UNIT_NAME)]
    return Identity(
        name=_said(certificate, NameOID.COMMON_NAME),
        role=roles[0] if roles else Role.STRANGER,
        key_id=key_id_of(public_key_of(certificate_pem)),
    )


def public_key_of(certificate_pem: bytes) -> ec.EllipticCurvePublicKey:
    """Return the key in a certificate of a fleet.

    Raises:
        InvalidRequest: it is of another kind.
    """
    key = x509.load_pem_x509_certificate(certificate_pem).public_key()
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise InvalidRequest("the keys of a fleet's members are on P-256")
    return key


def key_id_of(public_key: ec.EllipticCurvePublicKey) -> str:
    """Return the id of a key."""
    content = public_key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    return hashlib.sha256(content).hexdigest()[:40]


def own_key_id(key_pem: bytes) -> str:
    """Return the id of a private key's public half."""
    return key_id_of(_private(key_pem).public_key())


def pin_of(authority_pem: bytes) -> bytes:
    """Return a join token's pin of an authority: SHA-256 of its certificate."""
    content = x509.load_pem_x509_certificate(authority_pem).public_bytes(serialization.Encoding.DER)
    return hashlib.sha256(content).digest()


def authority_in(shown: bytes) -> bytes:
    """Return the authority's certificate, PEM, embedded in a server's certificate, DER. Not verified: compare its pin.

    Raises:
        InvalidRequest: there is none.
    """
    try:
        certificate = x509.load_der_x509_certificate(shown)
        extension = certificate.extensions.get_extension_for_oid(_AUTHORITY_INSIDE).value
        if not isinstance(extension, x509.UnrecognizedExtension):
            raise InvalidRequest("the server at that address is no tracker")
        return x509.load_der_x509_certificate(extension.value).public_bytes(serialization.Encoding.PEM)
    except InvalidRequest:
        raise
    except Exception as error:  # see read_request
        raise InvalidRequest("the server at that address is no tracker") from error


def printable_name(name: str) -> str:
    """Sanitize a name for a certificate: drop unprintable characters and truncate it."""
    return "".join(char for char in name if char.isprintable())[:MAX_NAME_CHARS].strip() or "unnamed"


def needs_renewal(certificate_pem: bytes, now: dt.datetime) -> bool:
    """Tell whether a certificate ends soon."""
    return end_of(certificate_pem) - now < RENEW_BEFORE


def end_of(certificate_pem: bytes) -> dt.datetime:
    """Return a certificate's end of validity, as text."""
    return ends_at_of(x509.load_pem_x509_certificate(certificate_pem))


def ends_at_of(certificate: x509.Certificate) -> dt.datetime:
    """Return a certificate's end of validity."""
    with_zone = getattr(certificate, "not_valid_after_utc", None)  # missing in the library of the oldest boards
    if isinstance(with_zone, dt.datetime):
        return with_zone
    return certificate.not_valid_after.replace(tzinfo=dt.UTC)


def _private(key_pem: bytes) -> ec.EllipticCurvePrivateKey:
    key = serialization.load_pem_private_key(key_pem, password=None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise TypeError("a fleet's keys are on P-256")
    return key


def _subject(name: str, role: str) -> x509.Name:
    return x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, str(role)),
            x509.NameAttribute(NameOID.COMMON_NAME, printable_name(name)),
        ]
    )


def _said(certificate: x509.Certificate, oid: ObjectIdentifier) -> str:
    return next((str(attribute.value) for attribute in certificate.subject.get_attributes_for_oid(oid)), "")


def _builder(
    subject: x509.Name, issuer: x509.Name, public_key: ec.EllipticCurvePublicKey, ends_at: dt.datetime
) -> x509.CertificateBuilder:
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(public_key)
    builder = builder.serial_number(x509.random_serial_number()).not_valid_before(_START).not_valid_after(ends_at)
    return builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)


def _usages(role: Role) -> Iterable[ObjectIdentifier]:
    if role is Role.TRACKER:
        return [ExtendedKeyUsageOID.SERVER_AUTH]
    if role is not Role.STRANGER:
        return [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    return [ExtendedKeyUsageOID.CLIENT_AUTH]


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )
