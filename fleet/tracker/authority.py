"""The fleet's own certificate authority: created at the tracker's first start, stored in its state directory.

The tracker's own certificate is made anew at each start and before it expires, so that it is in no file.
"""

from __future__ import annotations

import datetime as dt
import logging
import threading
from collections.abc import Callable
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import ec

from fleet.base.machine import account_name
from fleet.base.private_files import make_private_dir, read_private, write_private
from fleet.errors import ConfigError, DiskFull
from fleet.identity.certificates import issue, issue_own, make_authority, make_key, needs_renewal, own_key_id, pin_of
from fleet.identity.credentials import Credentials, parse_proof
from fleet.identity.roles import Role
from fleet.identity.store import CredentialStore

logger = logging.getLogger(__name__)

_FILE = "authority.pem"


class Authority:
    """Signs the certificates of one fleet. Validity follows the machine's clock, as in TLS."""

    def __init__(self, credentials: Credentials) -> None:
        self._own = credentials
        self.pin = pin_of(credentials.authority_pem)
        """Pin of the authority in join tokens."""

        self.account_name = account_name()
        """Name of the tracker's own account, an admin."""

        self._key_pem = make_key()
        self._shown: Credentials | None = None
        self._lock = threading.Lock()

    @property
    def certificate_pem(self) -> bytes:
        """The certificate that members trust."""
        return self._own.authority_pem

    def credentials(self) -> Credentials:
        """Return the tracker's current credentials. Also called by gRPC's threads."""
        with self._lock:
            now = dt.datetime.now(dt.UTC)
            if self._shown is None or needs_renewal(self._shown.certificate_pem, now):
                self._shown = issue_own(self._own, self._key_pem, name="tracker", role=Role.TRACKER, now=now)
            return self._shown

    def sign(self, public_key: ec.EllipticCurvePublicKey, *, name: str, role: Role) -> bytes:
        """Return a member's certificate, PEM."""
        return issue(self._own, public_key, name=name, role=role, now=dt.datetime.now(dt.UTC))

    def issue_standby(self, key_pem: bytes, name: str) -> Credentials:
        """Return credentials of a standby that has this authority."""
        return issue_own(self._own, key_pem, name=name, role=Role.STANDBY, now=dt.datetime.now(dt.UTC))

    def serve_account(
        self, store: CredentialStore, address: str, *, home: Path, is_revoked: Callable[[str], bool]
    ) -> None:
        """Give this account credentials as the tracker's admin: it can read the tracker's state anyway.

        The key stays the same from start to start, since leases belong to it, unless it was revoked.
        """
        try:
            known = store.find(address)
        except ConfigError:
            logger.warning("this account's credentials are replaced", extra={"path": str(store.path_of(address))})
            known = None
        known = known or store.of_authority(self.certificate_pem)  # a standby's tracker has its leases, too
        key_pem = known.key_pem if isinstance(known, Credentials) else make_key()
        if is_revoked(own_key_id(key_pem)):
            key_pem = make_key()
        made = issue_own(self._own, key_pem, name=self.account_name, role=Role.ADMIN, now=dt.datetime.now(dt.UTC))
        store.save(address, made, home=home)


def open_authority(folder: Path) -> Authority:
    """Read the authority in a tracker's state directory, creating one if missing.

    Raises:
        ConfigError: the file holds something else, or others can read it.
        DiskFull: there is no space for a new one.
    """
    path = folder / _FILE
    try:
        found = parse_proof(read_private(path), where=str(path))
    except FileNotFoundError:
        made = make_authority(dt.datetime.now(dt.UTC))
        try:
            make_private_dir(folder)
            write_private(path, made.to_pem())
        except OSError as error:
            raise DiskFull(f"cannot keep the fleet's authority in {path}: {error.strerror}") from error
        return Authority(made)
    if not isinstance(found, Credentials):
        raise ConfigError(f"{path} holds no authority; move it away, and everybody joins again")
    own_key_id(found.key_pem)
    return Authority(found)
