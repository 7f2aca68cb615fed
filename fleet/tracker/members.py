"""What the tracker remembers of its members: join tokens that wait, and which agent's key each device name belongs to.

A file of its own beside the journal: it is written when people do something, not with every grant, so that each
change is synced to the disk before it counts. Losing the journal frees no device name.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fleet.errors import ConfigError, DiskFull, NotFound, QueueFull, Unauthenticated
from fleet.identity.roles import Role

_APPLICATION_ID = 0x54564D49
_VERSION = 1
_SCHEMA = """
CREATE TABLE join_tokens (
    digest TEXT PRIMARY KEY, role TEXT NOT NULL, created_at_sec REAL NOT NULL, expires_at_sec REAL NOT NULL,
    created_by TEXT NOT NULL, note TEXT NOT NULL
) WITHOUT ROWID;
CREATE TABLE device_keys (
    device_name TEXT PRIMARY KEY, key_id TEXT NOT NULL, bound_at_sec REAL NOT NULL
) WITHOUT ROWID;
"""
_MAX_TOKENS = 10_000
_ID_CHARS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingToken:
    """A join token that can still be used."""

    digest: str
    role: Role
    created_at_sec: float
    expires_at_sec: float
    created_by: str
    note: str

    @property
    def token_id(self) -> str:
        """By which people name it."""
        return self.digest[:_ID_CHARS]


class Members:
    """The open file. Used from one thread."""

    def __init__(self, path: Path) -> None:
        """Raises:
        ConfigError: the file is something else.
        DiskFull: there is no space for a new one.
        """
        self._path = path
        try:
            self._connection = _open(path)
            rows = self._connection.execute("SELECT device_name, key_id FROM device_keys").fetchall()
        except sqlite3.Error as error:
            if error.sqlite_errorcode in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE):
                raise DiskFull(f"no space left for {path}; free some and start again") from error
            raise ConfigError(
                f"cannot use {path}: {error}; restore it, or move it away: then all join again"
            ) from error
        self._keys: dict[str, str] = dict(rows)

    @property
    def keys(self) -> Mapping[str, str]:
        """Key of the agent that owns each device name."""
        return self._keys

    def close(self) -> None:
        """Close the file. Idempotent."""
        self._connection.close()

    def bind(self, names: list[str], key_id: str, now: float) -> None:
        """Give those names that belong to nobody to a key.

        Raises:
            DiskFull: this cannot be remembered, so it was not done.
        """
        free = [name for name in names if name not in self._keys]
        if free:
            self._write("INSERT INTO device_keys VALUES (?, ?, ?)", [(name, key_id, now) for name in free])
            self._keys |= dict.fromkeys(free, key_id)

    def unbind(self, name: str) -> str:
        """Free a device name; return the key that had it.

        Raises:
            NotFound: it is nobody's.
        """
        if name not in self._keys:
            raise NotFound(f"{name!r} is bound to no agent's key; 'fleet devices' lists the names")
        self._write("DELETE FROM device_keys WHERE device_name = ?", [(name,)])
        return self._keys.pop(name)

    def add_token(self, token: WaitingToken, now: float) -> None:
        """Remember a new join token.

        Raises:
            QueueFull: too many wait to be used.
        """
        self._write("DELETE FROM join_tokens WHERE expires_at_sec <= ?", [(now,)])
        if len(self.tokens(now)) >= _MAX_TOKENS:
            raise QueueFull(f"{_MAX_TOKENS} join tokens wait to be used; revoke some: fleet tracker token list")
        values = (
            *(token.digest, str(token.role), token.created_at_sec, token.expires_at_sec),
            *(token.created_by, token.note),
        )
        self._write("INSERT INTO join_tokens VALUES (?, ?, ?, ?, ?, ?)", [values])

    def tokens(self, now: float) -> list[WaitingToken]:
        """Return those that can still be used, the oldest first."""
        rows = self._connection.execute(
            "SELECT * FROM join_tokens WHERE expires_at_sec > ? ORDER BY created_at_sec, digest", (now,)
        )
        return [
            WaitingToken(
                digest=row[0],
                role=Role(row[1]),
                created_at_sec=row[2],
                expires_at_sec=row[3],
                created_by=row[4],
                note=row[5],
            )
            for row in rows
        ]

    def use_token(self, digest: str, now: float) -> WaitingToken:
        """Use a join token up: from here on nobody can.

        Raises:
            Unauthenticated: there is none with this digest, any more.
        """
        found = next((token for token in self.tokens(now) if token.digest == digest), None)
        if found is None:
            raise Unauthenticated(
                "this join token is unknown, used, revoked or expired; ask for another: fleet tracker token create"
            )
        self._write("DELETE FROM join_tokens WHERE digest = ?", [(digest,)])
        return found

    def revoke_token(self, token_id: str, now: float) -> None:
        """Make a join token useless.

        Raises:
            NotFound: there is none with this id.
        """
        found = [token.digest for token in self.tokens(now) if token.token_id == token_id]
        if not found:
            raise NotFound(f"there is no join token {token_id!r}; 'fleet tracker token list' lists those there are")
        self._write("DELETE FROM join_tokens WHERE digest = ?", [(digest,) for digest in found])

    def _write(self, statement: str, rows: list[tuple[str | float, ...]]) -> None:
        try:
            with self._connection:
                self._connection.execute("BEGIN IMMEDIATE")
                self._connection.executemany(statement, rows)
        except sqlite3.Error as error:
            raise DiskFull(f"the tracker cannot write {self._path}: {error}; free some space there") from error


def _open(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None, timeout=1.0)
    path.chmod(0o600)
    connection.execute("PRAGMA synchronous = FULL")
    (application_id,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    if not tables and not application_id:
        header = f"PRAGMA application_id = {_APPLICATION_ID}; PRAGMA user_version = {_VERSION};"
        connection.executescript(f"BEGIN; {header} {_SCHEMA} COMMIT;")
    elif (application_id, version) != (_APPLICATION_ID, _VERSION):
        connection.close()
        raise ConfigError(f"{path} is no list of this tracker's members, or of another version; move it away")
    return connection
