"""Membership of a standby: its key, in a file of its state directory, and certificates for that key.

It joins with a token, or by this account's own credentials where they are an admin's. Once it has the fleet's
authority, it issues its certificates itself, and the tracker still refuses the key after a revocation.
"""

from __future__ import annotations

import socket
from pathlib import Path

from fleet.base.private_files import make_private_dir, read_private, write_private
from fleet.errors import ConfigError, DiskFull, NotJoined
from fleet.identity.certificates import make_key, read_identity
from fleet.identity.credentials import Credentials, parse_proof
from fleet.identity.join_tokens import JoinToken
from fleet.identity.roles import Identity, Role
from fleet.identity.store import CredentialStore
from fleet.tracker.authority import open_authority
from fleet.tracker.backup import AUTHORITY
from fleet.wire import joining

_FILE = "standby.pem"


async def join_as_standby(token: JoinToken, tracker: str, directory: Path) -> tuple[Path, Identity]:
    """Redeem a join token for a state directory; return the path of its key, and the member.

    Raises:
        FleetError: see `fleet.wire.joining.join`.
        DiskFull: the key cannot be kept.
    """
    made, member = await joining.join(tracker, token, name=socket.gethostname(), roles=frozenset({Role.STANDBY}))
    return _keep(directory, made), member


async def standby_credentials(directory: Path, tracker: str) -> Credentials:
    """Return the credentials to follow a tracker with, joining its fleet first where this account is an admin.

    Raises:
        NotJoined: this standby has not joined, and this account is no admin.
        ConfigError: the key cannot be read.
        DiskFull: a new key cannot be kept.
    """
    own = _kept(directory)
    if own is None:
        own = await _joined_by_account(tracker)
        _keep(directory, own)
    if (directory / AUTHORITY).exists():
        authority = open_authority(directory)
        if authority.certificate_pem == own.authority_pem:
            return authority.issue_standby(own.key_pem, read_identity(own.certificate_pem).name)
    return own


async def _joined_by_account(tracker: str) -> Credentials:
    account = await joining.find_proof(tracker, CredentialStore())
    if not isinstance(account, Credentials) or read_identity(account.certificate_pem).role is not Role.ADMIN:
        raise NotJoined(
            f"this standby has not joined the fleet of the tracker at {tracker}, or that does not answer; make a token "
            f"there (fleet tracker token create --role standby), then here: fleet tracker join --tracker {tracker}"
        )
    name = socket.gethostname()
    return await joining.admit_own(tracker, account, name=name, key_pem=make_key(), role=Role.STANDBY)


def _kept(directory: Path) -> Credentials | None:
    path = directory / _FILE
    try:
        found = parse_proof(read_private(path), where=str(path))
    except FileNotFoundError:
        return None
    if not isinstance(found, Credentials):
        raise ConfigError(f"{path} holds no key of a standby; move it away, and join again: fleet tracker join")
    return found


def _keep(directory: Path, credentials: Credentials) -> Path:
    path = directory / _FILE
    try:
        make_private_dir(directory)
        write_private(path, credentials.to_pem())
    except OSError as error:
        raise DiskFull(f"cannot keep the standby's key in {path}: {error.strerror}; free some space there") from error
    return path
