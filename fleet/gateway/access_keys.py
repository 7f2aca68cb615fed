"""Keys by which stock clients use a gateway for an account: kept as hashes, with the times of their use and end.

A client puts its secret before the tracker key: "SECRET/kind=cpu". It has 192 random bits, so a plain hash will do.

Keys are made and revoked beside the gateway, without a tracker, so the log of these changes lies there, too:
audit.jsonl, in the form of the tracker's audit log. That one has the leases, with the key's id in their purpose.
"""

from __future__ import annotations

import fcntl
import getpass
import hashlib
import json
import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from fleet.base.plain import from_plain, to_plain
from fleet.base.private_files import make_private_dir, read_private, write_private
from fleet.domain.accounts import checked_new_account
from fleet.errors import ConfigError, InvalidRequest, NotFound
from fleet.identity.audit_entry import AuditEntry
from fleet.identity.roles import Role
from fleet.tracker.audit import AuditLog

_SECRET_BYTES = 24
_ID_CHARS = 12
_MOST_KEYS = 1_000
_FILE, _LOCK, _AUDIT = "keys.json", "keys.lock", "audit.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessKey:
    """A key, without its secret."""

    key_id: str
    digest: str
    """SHA-256 of the secret, in hex."""

    account: str
    """Account that its leases count for."""

    created_at_sec: float
    revoked_at_sec: float | None = None


class AccessKeys:
    """The keys in one folder. Changes count from the next request on, also in other processes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._path = folder / _FILE
        self._version: tuple[int, int] | None = None
        self._keys: tuple[AccessKey, ...] = ()

    def all(self) -> Sequence[AccessKey]:
        """Return all keys, oldest first, with the revoked ones.

        Raises:
            ConfigError: the file is damaged, or others can read it.
        """
        version = self._stat()
        if version is None:
            return ()
        if version != self._version:
            self._keys, self._version = _parse(self._path), version
        return self._keys

    def find(self, secret: str) -> AccessKey | None:
        """Return the valid key with this secret, or None.

        Raises:
            ConfigError: see `all`.
        """
        digest = _digest(secret)
        return next((key for key in self.all() if key.digest == digest and key.revoked_at_sec is None), None)

    def create(self, account: str, now: float) -> tuple[str, AccessKey]:
        """Make a key; return its secret, which is not stored, and the key.

        Raises:
            InvalidRequest: the account's name is malformed, or there are too many keys.
            ConfigError: the folder cannot be written.
        """
        if not account:
            raise InvalidRequest("a key needs the account whose share pays; name one with --account")
        secret = secrets.token_urlsafe(_SECRET_BYTES)
        digest = _digest(secret)
        key = AccessKey(
            key_id=digest[:_ID_CHARS], digest=digest, account=checked_new_account(account), created_at_sec=now
        )
        with self._changing():
            if len(self.all()) >= _MOST_KEYS:
                raise InvalidRequest(f"there are {_MOST_KEYS} keys already; remove the file {self._path} to start anew")
            self._write((*self.all(), key))
            self._log("GatewayKey.Create", key, now)
        return secret, key

    def revoke(self, key_id: str, now: float) -> AccessKey:
        """Invalidate a key. Idempotent.

        Raises:
            NotFound: there is no such key.
            ConfigError: the folder cannot be written.
        """
        with self._changing():
            found = next((key for key in self.all() if key.key_id == key_id), None)
            if found is None:
                raise NotFound(f"there is no key {key_id!r}; 'fleet gateway key list' shows all")
            if found.revoked_at_sec is not None:
                return found
            revoked = replace(found, revoked_at_sec=now)
            self._write([revoked if key is found else key for key in self.all()])
            self._log("GatewayKey.Revoke", revoked, now)
        return revoked

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Let one process at a time change the file."""
        try:
            make_private_dir(self._folder)
            descriptor = os.open(self._folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise ConfigError(f"cannot keep keys in {self._folder}: {error.strerror}") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _write(self, keys: Sequence[AccessKey]) -> None:
        try:
            write_private(self._path, json.dumps(to_plain(keys)).encode())
        except OSError as error:
            raise ConfigError(f"cannot write {self._path}: {error.strerror}") from error

    def _log(self, action: str, key: AccessKey, now: float) -> None:
        subject = json.dumps({"key_id": key.key_id, "account": key.account})
        log = AuditLog(self._folder / _AUDIT)
        log.write(
            AuditEntry(
                at_sec=now,
                name=_user_name(),
                role=Role.USER,
                key_id="",
                peer="",
                action=action,
                subject=subject,
                outcome="ok",
            )
        )
        log.close()

    def _stat(self) -> tuple[int, int] | None:
        try:
            found = self._path.stat()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise ConfigError(f"cannot read {self._path}: {error.strerror}") from error
        return found.st_mtime_ns, found.st_ino


def _parse(path: Path) -> tuple[AccessKey, ...]:
    content = read_private(path)
    try:
        return tuple(from_plain(AccessKey, entry) for entry in json.loads(content))
    except (ValueError, TypeError, RecursionError, InvalidRequest) as error:
        raise ConfigError(f"{path} is damaged; remove it, and make new keys: {error}") from error


def _user_name() -> str:
    """Return the name of this process's user, or its number."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
