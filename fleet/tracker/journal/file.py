"""The open journal: transactions of many entries; other threads checkpoint and copy it.

Commits are in WAL mode without a sync each: a killed tracker loses nothing, a power cut may lose the last moments.
Even then an epoch must never repeat, so every start makes a new `boot` number durable before anything else, and
epochs count from it. It comes from the clock, so neither a lost journal nor a restored copy repeats a number.

Another thread folds the log into the file beside the commits. If the log becomes long nevertheless, or no longer fits
the disk, writes pause (`is_busy`) and it begins anew. SQLite would block the caller of the next commit meanwhile, 90 to
130 ms for a log of 256 MiB. A start folds in the log of a killed tracker, since trackers killed early never do.

A start rewrites a journal of an older version in one transaction, so a kill in the middle leaves it as it was.

Each commit also counts itself in the chain and in the mark beside the file, so that a start detects lost commits.
"""

from __future__ import annotations

import contextlib
import logging
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from fleet.errors import ConfigError, DiskFull
from fleet.tracker.core.records import Changes, Durable
from fleet.tracker.journal.checking import APPLICATION_ID, Chain, is_read_only, not_writable, read_journal
from fleet.tracker.journal.codec import Row, changed_rows, sum_of
from fleet.tracker.journal.commits import Commit
from fleet.tracker.journal.copy import keep_copy
from fleet.tracker.journal.mark import MarkWriter, read_mark
from fleet.tracker.journal.migrations import SCHEMA_VERSION

logger = logging.getLogger(__name__)

_SCHEMA = (
    """CREATE TABLE chain (
        id INTEGER PRIMARY KEY CHECK (id = 0), boot INTEGER NOT NULL, commits INTEGER NOT NULL, sum INTEGER NOT NULL
    )""",
    "CREATE TABLE entries (key TEXT PRIMARY KEY, content TEXT NOT NULL, sum INTEGER NOT NULL) WITHOUT ROWID",
    "INSERT INTO chain VALUES (0, 0, 0, 0)",
    f"PRAGMA application_id = {APPLICATION_ID}",
    f"PRAGMA user_version = {SCHEMA_VERSION}",
)
WRITE_CHAIN = "UPDATE chain SET boot = ?, commits = ?, sum = ?"
WRITE_ENTRY = "INSERT OR REPLACE INTO entries VALUES (?, ?, ?)"
DELETE_ENTRY = "DELETE FROM entries WHERE key = ?"

_LAST_CLOCK_MS = int(4e12)
"""The year 2096. A clock that says more is wrong, and must not use the numbers up."""

_CHECKPOINT_PAGES = 2_000
"""The log is folded into the file, by another thread, each time it has grown by this much [pages of 4 KiB]."""
_MAX_LOG_PAGES = 16_000
"""Length [pages of 4 KiB] beyond which the log is restarted, which takes a moment without commits: checkpoints
never catch up with continuous commits.
"""


_FULL = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE)


class Journal:
    """One open journal file. Not for concurrent use by threads or processes, except `keep_copy`."""

    def __init__(
        self, path: Path, *, checkpoint_pages: int = _CHECKPOINT_PAGES, max_log_pages: int = _MAX_LOG_PAGES
    ) -> None:
        self.path = path
        self._max_log_pages = max_log_pages
        self._checkpoint_pages = checkpoint_pages
        self._connection: sqlite3.Connection | None = None
        self._mark = MarkWriter(path)
        self._chain = Chain()
        self._folding: threading.Thread | None = None
        self._pages_unfolded = 0
        self._log_pages = 0
        """Length of the log when it was folded last."""
        self.on_commit: Callable[[Commit], None] | None = None
        """Called after each commit: a standby follows."""
        self.is_busy = False
        """True if nothing may be written now. It is set by `write`, and over after some milliseconds."""

    def open(self, now: float) -> Durable:
        """Open or create the file, count this start, and return its content.

        Raises:
            JournalDamaged: its content differs from that of the last write.
            ConfigError: the file is no database, or one of another program or a newer version.
            DiskFull: there is no space to migrate the file or to count the start.
        """
        contents = read_journal(self.path)
        if contents is not None:
            self._chain = contents.chain
        try:
            connection = self._connection = self._connect()
            if contents is None:
                self._create(connection, [])
            elif contents.migrated is not None:
                self._create(connection, contents.migrated)
                logger.info("journal migrated", extra={"path": str(self.path), "version": SCHEMA_VERSION})
            self._count_boot(connection, now)
        except (sqlite3.Error, OSError) as error:
            self.close()
            if is_read_only(error):
                raise not_writable(self.path, error) from error
            if isinstance(error, sqlite3.Error) and error.sqlite_errorcode not in _FULL:
                raise ConfigError(
                    f"cannot use {self.path} as the tracker's journal: {error}; move it away or name another "
                    "--state-dir"
                ) from error
            raise DiskFull(f"no space left for {self.path}; free some and start again") from error
        durable = contents.durable if contents else Durable(boot=0, devices=[], requests=[])
        return replace(durable, boot=self._chain.boot)

    @property
    def commits(self) -> int:
        """Number of commits."""
        return self._chain.commits

    def write(self, changes: Changes) -> None:
        """Write these changes in one transaction.

        Raises:
            DiskFull: it cannot be written now; nothing was.
        """
        if not changes or self._connection is None:
            return
        present: list[Row] = []
        gone: list[tuple[str]] = []
        for key, content in changed_rows(changes):
            if content is None:
                gone.append((key,))
            else:
                present.append((key, content, sum_of(key, content)))
        chain = Chain(boot=self._chain.boot, commits=self._chain.commits + 1)
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            self._connection.executemany(WRITE_ENTRY, present)
            self._connection.executemany(DELETE_ENTRY, gone)
            self._write_chain(self._connection, chain)
            self._connection.execute("COMMIT")
        except sqlite3.Error as error:
            with contextlib.suppress(sqlite3.Error):
                self._connection.rollback()
            self._make_room()
            raise DiskFull(f"the tracker cannot write {self.path}: {error}; free some space there") from error
        self._chain = chain
        self._mark.write(chain.commits, chain.boot)
        if self.on_commit is not None:
            self.on_commit(Commit(chain=chain, rows=tuple(present), removed=tuple(key for (key,) in gone)))
        self._fold_log(len(present) + len(gone))

    def keep_copy(self) -> None:
        """Update the copy beside the journal; call it from another thread, since it takes as long as the disk does.

        A copy that cannot be made is logged: the former one is there still.
        """
        try:
            if keep_copy(self.path):
                logger.debug("journal copied", extra={"path": str(self.path)})
        except (ConfigError, OSError, sqlite3.Error) as error:
            logger.warning("cannot copy the journal", extra={"path": str(self.path), "error": str(error)})

    def wait_until_free(self) -> None:
        """Wait until the journal can be written."""
        if self._folding and self.is_busy:
            self._folding.join()

    def close(self) -> None:
        """Close the file. Idempotent."""
        if self._folding:
            self._folding.join()
        if self._connection:
            self._connection.close()
        self._mark.close()
        self._connection = self._folding = None

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self.path, isolation_level=None, timeout=1.0)
        self.path.chmod(0o600)  # client ids are secret: one suffices to take over its leases
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA wal_autocheckpoint = 0")
        # on a full disk the next start, or the next checkpoint, does it
        with contextlib.suppress(sqlite3.OperationalError):
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        return connection

    def _create(self, connection: sqlite3.Connection, rows: list[Row]) -> None:
        """Create the tables of this version with these rows, replacing those of an older version."""
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("DROP TABLE IF EXISTS chain")
        connection.execute("DROP TABLE IF EXISTS entries")
        for statement in _SCHEMA:
            connection.execute(statement)
        connection.executemany(WRITE_ENTRY, rows)
        self._write_chain(connection, self._chain)
        connection.execute("COMMIT")
        self._pages_unfolded = len(rows)

    def _count_boot(self, connection: sqlite3.Connection, now: float) -> None:
        """Count this start: the clock [ms], unless the journal or its mark has that number or a larger one."""
        mark = read_mark(self.path)
        stored = max(self._chain.boot, min(mark.boot, _LAST_CLOCK_MS) if mark else 0)
        boot = max(stored + 1, min(int(now * 1e3), _LAST_CLOCK_MS))
        chain = replace(self._chain, boot=boot, commits=self._chain.commits + 1)
        connection.execute("PRAGMA synchronous = FULL")
        self._write_chain(connection, chain)
        connection.execute("PRAGMA synchronous = NORMAL")
        self._chain = chain
        self._mark.open()
        self._mark.write(chain.commits, chain.boot)

    def _write_chain(self, connection: sqlite3.Connection, chain: Chain) -> None:
        connection.execute(WRITE_CHAIN, (chain.boot, chain.commits, chain.sum))

    def _fold_log(self, pages: int) -> None:
        self._pages_unfolded += pages
        if self._folding and self._folding.is_alive():
            return
        if self._log_pages > self._max_log_pages:
            self._make_room()
        elif self._pages_unfolded >= self._checkpoint_pages:
            self._pages_unfolded = 0
            self._start(self._fold)

    def _make_room(self) -> None:
        if self._folding and self._folding.is_alive():
            return
        self.is_busy = True
        self._start(self._begin_log_anew)

    def _start(self, work: Callable[[], None]) -> None:
        try:
            self._folding = threading.Thread(target=work, name="journal-checkpoint", daemon=True)
            self._folding.start()
        except RuntimeError:
            # Nothing is lost: with too few threads, the log only grows until the next attempt.
            self._folding, self.is_busy = None, False
            logger.warning("journal checkpoint failed", exc_info=True, extra={"path": str(self.path)})

    def _fold(self) -> None:
        """Checkpoint the log. Its syncs take tens of milliseconds, which would delay grants."""
        self._log_pages = checkpoint(self.path, "PASSIVE")

    def _begin_log_anew(self) -> None:
        """Checkpoint the rest while no commit is in progress, so that the next one starts the log from its
        beginning.
        """
        try:
            checkpoint(self.path, "RESTART")
        finally:
            self._log_pages = 0  # also while a copy is being made, which prevents it: the next checkpoint tries again
            self.is_busy = False


def checkpoint(path: Path, how: str) -> int:
    """Checkpoint over a separate connection; return the number of pages in the log."""
    try:
        with closing(sqlite3.connect(path, isolation_level=None, timeout=0.0)) as connection:
            connection.execute("PRAGMA wal_autocheckpoint = 0")
            ((_, pages, _),) = connection.execute(f"PRAGMA wal_checkpoint({how})").fetchall()
            return int(pages)
    except sqlite3.Error:
        # Nothing is lost: with a full disk the log only grows until the next attempt.
        logger.warning("journal checkpoint failed", exc_info=True, extra={"path": str(path)})
        return 0
