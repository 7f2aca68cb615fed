"""Tells whether a journal is whole, without changing it: pages, every entry, their sum, and how far it had come."""

from __future__ import annotations

import logging
import sqlite3
import zlib
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from fleet.errors import ConfigError, JournalDamaged
from fleet.tracker.core.records import DeviceEntry, RequestEntry
from fleet.tracker.journal.codec import UNREADABLE, entries_of, sum_of
from fleet.tracker.journal.mark import read_mark

logger = logging.getLogger(__name__)

APPLICATION_ID = 0x54564D46
SCHEMA_VERSION = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """What the journal says of itself; one row, changed by every commit."""

    boot: int = 0
    commits: int = 0
    entries: int = 0
    """How many there are."""
    total: int = 0
    """All their sums, added."""

    @property
    def sum(self) -> int:
        """Of the other fields."""
        return zlib.crc32(f"{self.boot},{self.commits},{self.entries},{self.total}".encode())


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """A journal that is whole."""

    chain: Chain
    devices: list[DeviceEntry]
    requests: list[RequestEntry]
    sums: dict[str, int]
    """The sum of every entry."""


def read_journal(path: Path) -> Contents | None:
    """Return what a journal holds; None when there is none yet, and never was.

    Raises:
        JournalDamaged: less is there than was, or something else.
        ConfigError: it was never a journal, or is one of another version.
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
    """Return what a file holds, however far it had come; None when it is empty or not there.

    Args:
        was_journal: whether it is known to have been a journal, so that what is none now is damaged.

    Raises:
        JournalDamaged, ConfigError: see `read_journal`.
    """
    if not path.exists() or not path.stat().st_size:
        return None
    try:
        # Read only: a connection that may write folds what it understands of a damaged log into the file.
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=1.0)) as connection:
            if is_empty(connection):
                return None
            check_header(path, connection)
            return _contents(path, connection)
    except (sqlite3.Error, sqlite3.Warning, ConfigError, *UNREADABLE) as error:
        if isinstance(error, JournalDamaged):
            raise
        if was_journal and not _is_of_another_version(error):
            raise damaged(path, f"cannot be read: {error}") from error
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(
            f"cannot use {path} as the tracker's journal: {error}; move it away or name another --state-dir"
        ) from error


def is_empty(connection: sqlite3.Connection) -> bool:
    """Tell whether a database was only just made."""
    (application_id,) = connection.execute("PRAGMA application_id").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    return not tables and not application_id


class _OtherVersion(ConfigError):
    """A journal that another program wrote well."""


def check_header(path: Path, connection: sqlite3.Connection) -> None:
    """Refuse a database that is no journal of this version.

    Raises:
        ConfigError: it is not.
    """
    (application_id,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if application_id != APPLICATION_ID:
        raise ConfigError(
            f"{path} is a database of another program, no tracker's journal; move it away or name another --state-dir"
        )
    if version != SCHEMA_VERSION:
        raise _OtherVersion(
            f"{path} has version {version}, this tracker reads {SCHEMA_VERSION}; 'fleet tracker fsck --empty "
            f"--state-dir {path.parent}' sets it aside (leases and waiting requests end), or name another --state-dir"
        )


def adds_up(connection: sqlite3.Connection) -> bool:
    """Tell, within SQLite, whether a database's pages are well and its entries are those that it says."""
    if connection.execute("PRAGMA quick_check(1)").fetchone() != ("ok",):
        return False
    chain = read_chain(connection)
    found = connection.execute("SELECT count(*), ifnull(sum(sum), 0) FROM entries").fetchone()
    return chain is not None and found == (chain.entries, chain.total)


def read_chain(connection: sqlite3.Connection) -> Chain | None:
    """Return what a journal says of itself; None when that is damaged."""
    row = connection.execute("SELECT boot, commits, entries, total, sum FROM chain").fetchone()
    if row is None or not all(isinstance(value, int) for value in row):
        return None
    chain = Chain(boot=row[0], commits=row[1], entries=row[2], total=row[3])
    return chain if chain.sum == row[4] else None


def damaged(path: Path, what: str) -> JournalDamaged:
    """Return the error that keeps a tracker from starting."""
    return JournalDamaged(
        f"the tracker's journal {path} {what}; 'fleet tracker fsck --state-dir {path.parent}' says what can be restored"
    )


def _contents(path: Path, connection: sqlite3.Connection) -> Contents:
    pages = connection.execute("PRAGMA quick_check(1)").fetchone()
    if pages != ("ok",):
        raise damaged(path, f"is damaged: {' '.join(str(pages[0]).split())}")  # SQLite heads its findings with a line
    chain = read_chain(connection)
    if chain is None:
        raise damaged(path, "is damaged: it does not say how much it holds")
    rows = connection.execute("SELECT key, content, sum FROM entries").fetchall()
    sums = {key: found for key, _, found in rows}
    wrong = sum(1 for key, content, found in rows if found != sum_of(key, content))
    if wrong or len(sums) != chain.entries or sum(sums.values()) != chain.total:
        raise damaged(path, f"is damaged: of {chain.entries} entries {len(sums) - wrong} are whole")
    devices, requests = entries_of(row[:2] for row in rows)
    return Contents(chain=chain, devices=devices, requests=requests, sums=sums)


def _is_of_another_version(error: Exception) -> bool:
    return isinstance(error, _OtherVersion)
