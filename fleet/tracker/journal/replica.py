"""A standby's copy of a journal: commits of another tracker, written as they come."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path

from fleet.errors import DiskFull, JournalDamaged
from fleet.tracker.journal.checking import Chain, read_chain
from fleet.tracker.journal.codec import Row
from fleet.tracker.journal.commits import Commit, check_commit
from fleet.tracker.journal.file import DELETE_ENTRY, WRITE_CHAIN, WRITE_ENTRY
from fleet.tracker.journal.mark import MarkWriter


class ReplicaJournal:
    """One open copy. Used by one thread at a time."""

    def __init__(self, path: Path) -> None:
        """Open the journal of a snapshot.

        Raises:
            JournalDamaged: its chain cannot be read.
        """
        self._path = path
        self._mark = MarkWriter(path)
        self._connection = sqlite3.connect(path, isolation_level=None, timeout=1.0, check_same_thread=False)
        try:
            self._connection.execute("PRAGMA journal_mode = WAL")
            self._connection.execute("PRAGMA synchronous = NORMAL")  # as durable as the tracker's own
            chain = read_chain(self._connection)
            self._mark.open()
        except (sqlite3.Error, OSError) as error:
            self.close()
            raise JournalDamaged(f"cannot use the copy of the journal {path}: {error}") from error
        if chain is None:
            self.close()
            raise JournalDamaged(f"the chain of {path} is damaged")
        self.chain = chain

    def write(self, commits: Sequence[Commit]) -> Chain:
        """Write commits in one transaction; return the chain after them. Those that it has are skipped.

        Raises:
            JournalDamaged: one does not follow on the former; nothing was written.
            DiskFull: they cannot be written; nothing was.
        """
        chain = self.chain
        fresh = [commit for commit in commits if commit.chain.commits > chain.commits]
        for commit in fresh:
            check_commit(chain, commit)
            chain = commit.chain
        try:
            self._write(fresh, chain)
        except sqlite3.Error as error:
            if self._connection.in_transaction:
                self._connection.rollback()
            raise DiskFull(f"cannot write {self._path}: {error}; free some space there") from error
        self.chain = chain
        self._mark.write(chain.commits, chain.boot)
        return chain

    def close(self) -> None:
        """Close the file. Idempotent."""
        self._connection.close()
        self._mark.close()

    def _write(self, commits: Sequence[Commit], chain: Chain) -> None:
        newest: dict[str, Row | None] = {}
        for commit in commits:
            newest.update((row[0], row) for row in commit.rows)
            newest.update(dict.fromkeys(commit.removed))
        self._connection.execute("BEGIN IMMEDIATE")
        self._connection.executemany(WRITE_ENTRY, [row for row in newest.values() if row is not None])
        self._connection.executemany(DELETE_ENTRY, [(key,) for key, row in newest.items() if row is None])
        self._connection.execute(WRITE_CHAIN, (chain.boot, chain.commits, chain.sum))
        self._connection.execute("COMMIT")
