"""Verification of a journal without changing it: its pages, the sum of every entry, and its number of commits."""

from __future__ import annotations

import logging
import sqlite3
import zlib
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from fleet.errors import ConfigError, JournalDamaged
from fleet.tracker.core.records import Durable
from fleet.tracker.journal.codec import UNREADABLE, Row, entries_of, sum_of
from fleet.tracker.journal.mark import read_mark
from fleet.tracker.journal.migrations import OLDEST_VERSION, SCHEMA_VERSION, migrate

logger = logging.getLogger(__name__)

_PRIMARY_CODE = 0xFF
"""Bits of SQLite's extended error codes that tell the kind."""

APPLICATION_ID = 0x54564D46


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """Number of starts and of commits; one row, changed by every commit."""

    boot: int = 0
    commits: int = 0

    @property
    def sum(self) -> int:
        """Checksum of the other fields."""
        return _chain_sum(self.boot, self.commits)


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """The contents of an intact journal."""

    chain: Chain
    durable: Durable
    migrated: list[Row] | None = None
    """All rows as this version writes them, if the file is of an older version; None if it is of this version."""


def read_journal(path: Path) -> Contents | None:
    """Return the contents of a journal; None before the first start.

    Raises:
        JournalDamaged: it is damaged, gone, or lacks its last commits.
        ConfigError: the file is not a journal, or it has a version that this tracker cannot read.
    """
    mark = read_mark(path)
    contents = check_file(path, was_journal=mark is not None)
    missing = (mark.commits if mark else 0) - (contents.chain.commits if contents else 0)
    if mark is None or missing <= 0:
        return contents
    if mark.is_of_this_boot or contents is None:
        what = "is gone" if contents is None else f"lacks its last {missing} changes"
        raise damaged(path, what)
    logger.warning("journal lost its last changes in a power cut", extra={"path": str(path), "changes": missing})
    return contents


def check_file(path: Path, *, was_journal: bool = True) -> Contents | None:
    """Return the contents of a file without comparing it with its mark; None if it is empty or absent.

    Args:
        was_journal: whether the file is known to have been a journal, so that an unreadable one is damaged.

    Raises:
        JournalDamaged, ConfigError: see `read_journal`.
    """
    if not path.exists() or not path.stat().st_size:
        return None
    try:
        # Read only: a writing connection would fold the readable part of a damaged log into the file.
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=1.0)) as connection:
            if is_empty(connection):
                return None
            return _contents(path, connection, check_header(path, connection))
    except (JournalDamaged, _OtherVersion):
        raise
    except (sqlite3.Error, sqlite3.Warning, ConfigError, *UNREADABLE) as error:
        if is_read_only(error):  # reading its log takes writing beside it
            raise not_writable(path, error) from error
        if was_journal:
            raise damaged(path, f"cannot be read: {error}") from error
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(
            f"cannot use {path} as the tracker's journal: {error}; move it away or name another --state-dir"
        ) from error


def is_read_only(error: Exception) -> bool:
    """Return True for a directory or files that this account may not write."""
    code = getattr(error, "sqlite_errorcode", None)  # errors of the module itself have none
    return code is not None and code & _PRIMARY_CODE in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN)


def not_writable(path: Path, error: Exception) -> ConfigError:
    """Return the error about a journal that this account may not write."""
    return ConfigError(
        f"the tracker's journal {path} cannot be written: {error}; make its directory and files writable for this "
        "account, or name another --state-dir"
    )


def is_empty(connection: sqlite3.Connection) -> bool:
    """Return whether a database has no tables yet."""
    (application_id,) = connection.execute("PRAGMA application_id").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    return not tables and not application_id


class _OtherVersion(ConfigError):
    """An intact journal of a version that this tracker cannot read."""


def check_header(path: Path, connection: sqlite3.Connection) -> int:
    """Return the version of a journal that this tracker can read.

    Raises:
        ConfigError: the database is not a journal, or a newer tracker has written it.
    """
    (application_id,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if application_id != APPLICATION_ID:
        raise ConfigError(
            f"{path} is a database of another program, no tracker's journal; move it away or name another --state-dir"
        )
    if not OLDEST_VERSION <= version <= SCHEMA_VERSION:
        newer = "start the newer tracker that wrote it, or " if version > SCHEMA_VERSION else ""
        raise _OtherVersion(
            f"{path} has version {version}, this tracker reads {OLDEST_VERSION} to {SCHEMA_VERSION}; {newer}"
            f"set it aside by 'fleet tracker fsck --empty --state-dir {path.parent}' (leases and waiting requests end) "
            "or name another --state-dir"
        )
    return int(version)


def is_intact(connection: sqlite3.Connection) -> bool:
    """Check a database's pages and its chain, within SQLite."""
    return connection.execute("PRAGMA quick_check(1)").fetchone() == ("ok",) and read_chain(connection) is not None


def read_chain(connection: sqlite3.Connection) -> Chain | None:
    """Return the chain; None if it is damaged. In version 2 it has two more values before the sum."""
    row = connection.execute("SELECT * FROM chain").fetchone()
    if row is None or not all(isinstance(value, int) for value in row):
        return None
    _, *values, found = row
    return Chain(boot=values[0], commits=values[1]) if found == _chain_sum(*values) else None


def damaged(path: Path, what: str) -> JournalDamaged:
    """Return the error that keeps a tracker from starting."""
    return JournalDamaged(
        f"the tracker's journal {path} {what}; 'fleet tracker fsck --state-dir {path.parent}' says what can be restored"
    )


def _contents(path: Path, connection: sqlite3.Connection, version: int) -> Contents:
    pages = connection.execute("PRAGMA quick_check(1)").fetchone()
    if pages != ("ok",):
        # SQLite begins its findings with a header line
        raise damaged(path, f"is damaged: {' '.join(str(pages[0]).split())}")
    chain = read_chain(connection)
    if chain is None:
        raise damaged(path, "is damaged: its number of commits is unreadable")
    rows = connection.execute("SELECT key, content, sum FROM entries").fetchall()
    wrong = sum(1 for key, content, found in rows if found != sum_of(key, content))
    if wrong:
        raise damaged(path, f"is damaged: of {len(rows)} entries {len(rows) - wrong} are whole")
    migrated = None
    if version < SCHEMA_VERSION:
        fresh = migrate((row[:2] for row in rows), version)
        rows = migrated = [(key, content, sum_of(key, content)) for key, content in fresh]
    durable = entries_of((row[:2] for row in rows), chain.boot)
    return Contents(chain=chain, durable=durable, migrated=migrated)


def _chain_sum(*values: int) -> int:
    return zlib.crc32(",".join(map(str, values)).encode())
