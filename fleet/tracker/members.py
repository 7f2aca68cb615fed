"""The tracker's store of members: identities, revoked keys, unused join tokens, and the agent's key that owns each
device name.

A file of its own beside the journal: it is written when people do something, not with every grant, so that each
change is synced to the disk before it counts. Losing the journal frees no device name.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
import re
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

from fleet.errors import (
    ConfigError,
    DiskFull,
    InvalidRequest,
    KeyRevoked,
    NotFound,
    QueueFull,
    Unauthenticated,
)
from fleet.identity.certificates import MAX_NAME_CHARS, printable_name
from fleet.identity.join_tokens import id_of
from fleet.identity.member import Member
from fleet.identity.roles import Identity, Role

_APPLICATION_ID = 0x54564D49
_VERSION = 3
_SCHEMA = """
CREATE TABLE join_tokens (
    digest TEXT PRIMARY KEY, role TEXT NOT NULL, created_at_sec REAL NOT NULL, expires_at_sec REAL NOT NULL,
    created_by TEXT NOT NULL, note TEXT NOT NULL
) WITHOUT ROWID;
CREATE TABLE device_keys (
    device_name TEXT PRIMARY KEY, key_id TEXT NOT NULL, bound_at_sec REAL NOT NULL
) WITHOUT ROWID;
"""
_MEMBERS_SCHEMA = """
CREATE TABLE members (
    key_id TEXT PRIMARY KEY, name TEXT NOT NULL, role TEXT NOT NULL, joined_at_sec REAL NOT NULL, revoked_at_sec REAL,
    revoked_by TEXT NOT NULL, reason TEXT NOT NULL
) WITHOUT ROWID;
"""
"""Since version 2."""

_ACCOUNTS_SCHEMA = """
ALTER TABLE join_tokens ADD COLUMN account TEXT NOT NULL DEFAULT '';
ALTER TABLE join_tokens ADD COLUMN may_ask_for_others INTEGER NOT NULL DEFAULT 0;
ALTER TABLE members ADD COLUMN account TEXT NOT NULL DEFAULT '';
ALTER TABLE members ADD COLUMN may_ask_for_others INTEGER NOT NULL DEFAULT 0;
"""
"""Since version 3."""

_STEPS = (_SCHEMA, _MEMBERS_SCHEMA, _ACCOUNTS_SCHEMA)
"""Each leads from one version to the next; a new file takes all."""

_Row: TypeAlias = tuple[str | float | None, ...]

_WRITE_KEY = "INSERT OR REPLACE INTO device_keys VALUES (?, ?, ?)"
_WRITE_MEMBER = "INSERT OR REPLACE INTO members VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
_NOTE_MEMBER = (
    "INSERT INTO members VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) "
    "ON CONFLICT (key_id) DO UPDATE SET name = excluded.name, role = excluded.role"
)
"""Unlike the former, it takes no revocation and no account back that was written meanwhile."""
_KEY_ID = re.compile(r"[0-9a-f]{40}")
_BEGINNING = re.compile(r"[0-9a-f]{8,40}")
_MAX_TOKENS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingToken:
    """A join token that can still be used."""

    digest: str
    role: Role
    created_at_sec: float
    expires_at_sec: float
    created_by: str
    note: str
    account: str = ""
    """Account that the member's requests count for; empty: the member's key."""
    may_ask_for_others: bool = False

    @property
    def token_id(self) -> str:
        """Public id of the token."""
        return id_of(self.digest)


class Members:
    """The open file. Used from one event loop."""

    def __init__(self, path: Path) -> None:
        """Raises:
        ConfigError: the file is something else.
        DiskFull: there is no space for a new one.
        """
        self._path = path
        try:
            self._connection = _open(path)
            rows = self._connection.execute("SELECT device_name, key_id FROM device_keys").fetchall()
            members = self._connection.execute("SELECT * FROM members").fetchall()
        except sqlite3.Error as error:
            if error.sqlite_errorcode in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE):
                raise DiskFull(f"no space left for {path}; free some and start again") from error
            raise ConfigError(
                f"cannot use {path}: {error}; restore it, or move it away: then all join again"
            ) from error
        self._keys: dict[str, str] = dict(rows)
        self._members = {member.key_id: member for member in map(_member, members)}
        self._unwritten: dict[str, str] = {}
        """Keys by device name that are not written yet."""
        self._noted: dict[str, Member] = {}
        """New members that are not yet written down, by key."""
        self._aside = asyncio.Lock()
        self.version = 0
        """Grows with every write."""

    @property
    def keys(self) -> Mapping[str, str]:
        """Key of the agent that owns each device name."""
        return self._keys

    def close(self) -> None:
        """Write the noted members down, and close the file. Idempotent."""
        if self._noted:
            with contextlib.suppress(DiskFull):
                self._write(_NOTE_MEMBER, list(map(_row, self._noted.values())))
            self._noted = {}
        self._connection.close()

    async def bind(self, names: Sequence[str], key_id: str, now: float) -> None:
        """Bind the unowned ones of these names to a key. Nobody else gets them during the write.

        Raises:
            DiskFull: this cannot be remembered, so it was not done.
        """
        free = [name for name in names if self._keys.get(name) is None or self._unwritten.get(name) == key_id]
        if not free:
            return
        self._keys |= dict.fromkeys(free, key_id)
        self._unwritten |= dict.fromkeys(free, key_id)
        try:
            await self._write_aside(_WRITE_KEY, [(name, key_id, now) for name in free])
        except DiskFull:
            for name in free:
                if self._unwritten.pop(name, None):
                    self._keys.pop(name, None)
            raise
        self._keys |= dict.fromkeys(free, key_id)
        for name in free:  # not if this was cancelled: then the next call writes again
            self._unwritten.pop(name, None)

    def names_of(self, key_id: str) -> list[str]:
        """Return the sorted device names of a key."""
        return sorted(name for name, owner in self._keys.items() if owner == key_id)

    def unbind(self, name: str) -> str:
        """Unbind a device name; return the key that owned it.

        Raises:
            NotFound: it is nobody's.
        """
        if name not in self._keys:
            raise NotFound(f"{name!r} is bound to no agent's key; 'fleet devices' lists the names")
        self._write("DELETE FROM device_keys WHERE device_name = ?", [(name,)])
        return self._keys.pop(name)

    def all(self) -> list[Member]:
        """Return all members, current ones first, each kind by the time of joining."""
        names: dict[str, list[str]] = {}
        for name, owner in sorted(self._keys.items()):
            names.setdefault(owner, []).append(name)
        found = [replace(each, device_names=tuple(names.get(each.key_id, ()))) for each in self._members.values()]
        return sorted(found, key=lambda each: (each.revoked_at_sec is not None, each.joined_at_sec, each.key_id))

    def display_name(self, caller: Identity) -> str:
        """Return a member's name, with the beginning of its key if an earlier member has the same name."""
        own = self._members.get(caller.key_id)
        since_sec = math.inf if own is None else own.joined_at_sec
        earlier = any(
            other.name == caller.name
            and other.key_id != caller.key_id
            and other.revoked_at_sec is None
            and other.joined_at_sec <= since_sec
            for other in self._members.values()
        )
        return f"{caller.name}#{caller.key_id[:8]}" if earlier else caller.name

    def is_revoked(self, key_id: str) -> bool:
        """Tell whether a key is revoked."""
        known = self._members.get(key_id)
        return known is not None and known.revoked_at_sec is not None

    def revoked_keys(self) -> list[str]:
        """Return the revoked keys, sorted."""
        return sorted(filter(self.is_revoked, self._members))

    def refuse_revoked(self, key_id: str) -> None:
        """Refuse revoked keys.

        Raises:
            KeyRevoked: it says by whom and why.
        """
        known = self._members.get(key_id)
        if known is not None and known.revoked_at_sec is not None:
            raise revoked(known)

    def check(self, caller: Identity, now: float) -> None:
        """Refuse a caller with a revoked key; note a new one, which `write_noted` writes down.

        Raises:
            KeyRevoked: it says by whom and why.
        """
        self.refuse_revoked(caller.key_id)
        known = self._members.get(caller.key_id)
        if known is not None and (known.name, known.role) == (caller.name, caller.role):
            return
        self._members[caller.key_id] = self._noted[caller.key_id] = self._member(caller, now)

    def admit(self, joined: Identity, now: float, *, account: str = "", may_ask_for_others: bool = False) -> Member:
        """Write down and return a member that joined, with its account.

        Raises:
            DiskFull: this cannot be remembered, so it was not done.
        """
        member = replace(self._member(joined, now), account=account, may_ask_for_others=may_ask_for_others)
        self._write(_WRITE_MEMBER, [_row(member)])
        self._noted.pop(member.key_id, None)
        self._members[member.key_id] = member
        return member

    def account_of(self, key_id: str) -> tuple[str, bool]:
        """Return the account that a key's requests count for, and whether it may ask for others."""
        member = self._members.get(key_id)
        return (member.account or key_id, member.may_ask_for_others) if member is not None else (key_id, False)

    def _member(self, caller: Identity, now: float) -> Member:
        """Return a member by its certificate, with other known facts about its key."""
        new = Member(key_id=caller.key_id, name=caller.name, role=caller.role, joined_at_sec=now)
        return replace(self._members.get(caller.key_id, new), name=caller.name, role=caller.role)

    async def write_noted(self) -> None:
        """Write the noted members down. A member missed by a kill of the tracker is noted again at its next call."""
        noted, self._noted = self._noted, {}
        if noted:
            with contextlib.suppress(DiskFull):  # a full disk must not lock members out
                await self._write_aside(_NOTE_MEMBER, list(map(_row, noted.values())))

    def find(self, beginning: str) -> str:
        """Return the key with this prefix.

        Raises:
            NotFound: there is none.
            InvalidRequest: there are several, or the prefix is too short.
        """
        if not _BEGINNING.fullmatch(beginning):
            raise InvalidRequest("name a member by its key, or by at least the first 8 digits of the key")
        found = [key_id for key_id in self._members if key_id.startswith(beginning)]
        if len(found) > 1:
            raise InvalidRequest(f"{len(found)} keys begin with {beginning}; give more digits")
        if not found and not _KEY_ID.fullmatch(beginning):
            raise NotFound(f"no member's key begins with {beginning}; 'fleet tracker members' lists those there are")
        return found[0] if found else beginning  # members from before there was a list, without later calls

    def revoke(self, key_id: str, now: float, *, by: str, reason: str) -> tuple[Member, list[str]]:
        """End the membership of a key; return the former member, and the device names that are free now. Idempotent.

        Raises:
            DiskFull: this cannot be remembered, so it was not done.
        """
        unknown = Member(key_id=key_id, name="unknown", role=Role.STRANGER, joined_at_sec=now)
        member = self._members.get(key_id, unknown)
        if member.revoked_at_sec is None:
            member = replace(member, revoked_at_sec=now, revoked_by=by, reason=reason)
            self._write(_WRITE_MEMBER, [_row(member)])
            self._members[key_id] = member
        freed = self.names_of(key_id)
        self._write("DELETE FROM device_keys WHERE device_name = ?", [(name,) for name in freed])
        for name in freed:
            del self._keys[name]
        return member, freed

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
            *(token.created_by, token.note, token.account, token.may_ask_for_others),
        )
        self._write("INSERT INTO join_tokens VALUES (?, ?, ?, ?, ?, ?, ?, ?)", [values])

    def tokens(self, now: float) -> list[WaitingToken]:
        """Return the usable tokens, oldest first."""
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
                account=row[6],
                may_ask_for_others=bool(row[7]),
            )
            for row in rows
        ]

    def find_token(self, digest: str, now: float) -> WaitingToken:
        """Return the join token with this digest. It stays usable.

        Raises:
            Unauthenticated: no usable token has this digest.
        """
        found = next((token for token in self.tokens(now) if token.digest == digest), None)
        if found is None:
            raise Unauthenticated(
                "this join token is unknown, used, revoked or expired; ask for another: fleet tracker token create"
            )
        return found

    def use_token(self, digest: str, now: float) -> WaitingToken:
        """Use up a join token.

        Raises:
            Unauthenticated: no usable token has this digest.
        """
        found = self.find_token(digest, now)
        self._write("DELETE FROM join_tokens WHERE digest = ?", [(digest,)])
        return found

    def name_of(self, key_id: str) -> str:
        """Return the name of the member with a key; empty for unknown keys."""
        known = self._members.get(key_id)
        return known.name if known is not None else ""

    def role_of(self, key_id: str) -> Role:
        """Return the role of the member with a key."""
        known = self._members.get(key_id)
        return known.role if known is not None else Role.STRANGER

    def free_name(self, wanted: str, key_id: str, *, reserved: str = "") -> str:
        """Return a unique name for a new member's key: the wanted name, followed by a number if it is taken.

        Args:
            reserved: name of an account that may not have joined yet.
        """
        others = (each for each in self._members.values() if each.key_id != key_id and each.revoked_at_sec is None)
        taken = {reserved, *(each.name for each in others)}
        return next(name for name in _numbered(printable_name(wanted)) if name not in taken)

    def revoke_token(self, token_id: str, now: float) -> None:
        """Invalidate a join token.

        Raises:
            NotFound: there is none with this id.
        """
        found = [token.digest for token in self.tokens(now) if token.token_id == token_id]
        if not found:
            raise NotFound(f"there is no join token {token_id!r}; 'fleet tracker token list' lists those there are")
        self._write("DELETE FROM join_tokens WHERE digest = ?", [(digest,) for digest in found])

    def _write(self, statement: str, rows: Sequence[_Row]) -> None:
        self.version += 1
        try:
            _commit(self._connection, statement, rows)
        except sqlite3.Error as error:
            raise self._full(error) from error

    async def _write_aside(self, statement: str, rows: Sequence[_Row]) -> None:
        """Write on a thread: a disk takes tens of milliseconds to sync."""
        async with self._aside:
            await asyncio.to_thread(self._write_in_thread, statement, rows)
        self.version += 1

    def _write_in_thread(self, statement: str, rows: Sequence[_Row]) -> None:
        try:
            with closing(_connect(self._path)) as connection:
                _commit(connection, statement, rows)
        except sqlite3.Error as error:
            raise self._full(error) from error

    def _full(self, error: sqlite3.Error) -> DiskFull:
        return DiskFull(f"the tracker cannot write {self._path}: {error}; free some space there")


def revoked(member: Member) -> KeyRevoked:
    """Return the error for a member with a revoked key."""
    why = f": {member.reason}" if member.reason else ""
    return KeyRevoked(
        f"the key {member.key_id[:8]} was revoked by {member.revoked_by}{why}; "
        "ask an admin for a token to join again with another key: fleet login, for an agent fleet agent join"
    )


def _numbered(name: str) -> Iterator[str]:
    """Yield a name, then the name followed by 2, 3, ..., each short enough for a certificate."""
    yield name
    for number in itertools.count(2):
        end = f" ({number})"
        yield f"{name[: MAX_NAME_CHARS - len(end)]}{end}"


def _row(member: Member) -> _Row:
    return (
        *(member.key_id, member.name, str(member.role), member.joined_at_sec),
        *(member.revoked_at_sec, member.revoked_by, member.reason, member.account, member.may_ask_for_others),
    )


def _member(row: tuple[str, str, str, float, float | None, str, str, str, int]) -> Member:
    key_id, name, role, joined_at_sec, revoked_at_sec, revoked_by, reason, account, may_ask_for_others = row
    return Member(
        key_id=key_id,
        name=name,
        role=Role(role),
        joined_at_sec=joined_at_sec,
        revoked_at_sec=revoked_at_sec,
        revoked_by=revoked_by,
        reason=reason,
        account=account,
        may_ask_for_others=bool(may_ask_for_others),
    )


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None, timeout=1.0)
    connection.execute("PRAGMA synchronous = FULL")
    return connection


def _commit(connection: sqlite3.Connection, statement: str, rows: Sequence[_Row]) -> None:
    with connection:
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany(statement, rows)


def _open(path: Path) -> sqlite3.Connection:
    connection = _connect(path)
    path.chmod(0o600)
    (application_id,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    if not tables and not application_id:
        application_id, version = _APPLICATION_ID, 0
    elif application_id != _APPLICATION_ID or not 1 <= version <= _VERSION:
        connection.close()
        raise ConfigError(f"{path} is no list of this tracker's members, or of another version; move it away")
    if version < _VERSION:
        header = f"PRAGMA application_id = {_APPLICATION_ID}; PRAGMA user_version = {_VERSION};"
        connection.executescript(f"BEGIN; {header} {' '.join(_STEPS[version:])} COMMIT;")
    return connection
