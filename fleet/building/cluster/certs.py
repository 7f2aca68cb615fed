"""Self-signed certificate that all processes of a Dask cluster share.

Dask sends code between machines, so a cluster is a single trust domain: separate certificates per machine would add no
protection. They are independent of the fleet's certificates.
"""

from __future__ import annotations

import logging
import os
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from fleet.base.private_files import make_private_dir
from fleet.building.cluster.address import CA, CERT, KEY
from fleet.errors import AlreadyExists, ConfigError

logger = logging.getLogger(__name__)

_VALID = timedelta(days=3 * 365)
_NAME = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "tvm-fleet builders")])


def ensure_certs(folder: Path) -> None:
    """Create the certificates of this account's cluster unless they exist. Safe for concurrent processes.

    Expired certificates are replaced, since no connection accepts them.

    Raises:
        ConfigError: the folder cannot be written.
    """
    if (folder / CERT).is_file() and _is_valid(folder / CERT):
        return
    make_private_dir(folder.parent)
    fresh = folder.with_name(f".{folder.name}.{os.getpid()}")
    shutil.rmtree(fresh, ignore_errors=True)  # left by an earlier process with our pid
    make_certs(fresh)
    try:
        if (folder / CERT).is_file():
            logger.warning(
                "the certificates of the builders have expired; new ones made", extra={"folder": str(folder)}
            )
            shutil.rmtree(folder)
        fresh.rename(folder)
    except OSError as error:
        if not (folder / CERT).is_file():  # otherwise another process was faster
            raise ConfigError(f"cannot write certificates to {folder}: {error.strerror}") from error
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def make_certs(folder: Path, now: datetime | None = None) -> None:
    """Write a fresh key and its certificate into a folder, readable for their owner only.

    Raises:
        AlreadyExists: the folder has a key.
        ConfigError: nothing can be written there.
    """
    if (folder / KEY).exists():
        raise AlreadyExists(f"{folder / KEY} is there already; choose another folder to make a new one")
    begins = now or datetime.now(UTC)
    key = ec.generate_private_key(ec.SECP256R1())
    cert = (
        x509.CertificateBuilder()
        .subject_name(_NAME)
        .issuer_name(_NAME)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begins - timedelta(hours=1))  # clocks of other machines may be behind
        .not_valid_after(begins + _VALID)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = cert.public_bytes(serialization.Encoding.PEM)
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    made: list[Path] = []
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for name, content in ((KEY, private), (CERT, pem), (CA, pem)):
            with os.fdopen(os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                made.append(folder / name)
                file.write(content)
    except OSError as error:
        for path in made:  # a partial set would block the next attempt
            path.unlink(missing_ok=True)
        raise ConfigError(f"cannot write certificates to {folder}: {error.strerror}") from error


def _is_valid(path: Path) -> bool:
    try:
        return x509.load_pem_x509_certificate(path.read_bytes()).not_valid_after_utc > datetime.now(UTC)
    except ValueError:
        return True  # TLS reports a damaged file; replacing it would hide the damage
