"""State directory of a standby: a snapshot put in place, then commits and files as they come.

A killed standby leaves a whole state or one that is marked as not whole, which only a new snapshot makes useful.
"""

from __future__ import annotations

import shutil
import sqlite3
import threading
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from fleet.errors import ConfigError, DiskFull, InvalidRequest, JournalDamaged
from fleet.tracker.authority import Authority, open_authority
from fleet.tracker.backup import AUDIT, AUTHORITY, JOURNAL, MEMBERS, STANDING, drop_join_tokens, restore
from fleet.tracker.journal.checking import Chain, read_journal
from fleet.tracker.journal.codec import UNREADABLE, entries_of
from fleet.tracker.journal.commits import Commit
from fleet.tracker.journal.copy import copy_path, reader
from fleet.tracker.journal.mark import mark_path
from fleet.tracker.journal.replica import ReplicaJournal
from fleet.tracker.messages import key_of
from fleet.tracker.replica.standing import Duty, Standing, read_standing, write_standing
from fleet.tracker.replica.state_files import keep_file


class ReplicaState:
    """One standby's directory, which this process has locked. For several threads."""

    def __init__(self, directory: Path, primary: str) -> None:
        self.directory = directory
        self.standing = replace(read_standing(directory), duty=Duty.FOLLOWS, other=primary)
        self.standing = replace(self.standing, is_whole=self.standing.is_whole and _is_complete(directory))
        write_standing(directory, self.standing)
        self._journal: ReplicaJournal | None = None
        self._lock = threading.RLock()
        self.revoked: frozenset[str] = frozenset()
        """Revoked keys."""
        if self.standing.is_whole:
            self.revoked = _revoked_keys(directory / MEMBERS)

    @property
    def has_authority(self) -> bool:
        """True once it has the fleet's authority."""
        return (self.directory / AUTHORITY).exists()

    def authority(self) -> Authority:
        """Return the fleet's authority."""
        return open_authority(self.directory)

    def install(self, snapshot: Path) -> Chain:
        """Replace the state by a snapshot; return its chain.

        Raises:
            ConfigError: the snapshot is damaged, or of another fleet.
            DiskFull: the disk is full.
        """
        with self._lock:
            self._refuse_if_granting()
            return self._install(snapshot, self.directory / ".incoming")

    def _install(self, snapshot: Path, incoming: Path) -> Chain:
        shutil.rmtree(incoming, ignore_errors=True)
        restore(snapshot, incoming)
        own, new = self.directory / AUTHORITY, incoming / AUTHORITY
        if own.exists() and own.read_bytes() != new.read_bytes():
            shutil.rmtree(incoming)
            raise ConfigError(
                f"{self.directory} holds another fleet's authority than the tracker at {self.standing.other}; name "
                "another --state-dir"
            )
        term = max(self.standing.term, read_standing(incoming).term)
        self._keep(replace(self.standing, term=term, is_whole=False))
        self.close()
        self._replace_files(incoming)
        self._keep(replace(self.standing, is_whole=True))
        self.revoked = _revoked_keys(self.directory / MEMBERS)
        self._journal = ReplicaJournal(self.directory / JOURNAL)
        return self._journal.chain

    def write(self, commits: Sequence[Commit]) -> Chain:
        """Write commits; return the chain after them.

        Raises:
            JournalDamaged: one does not follow on the former, or there is no snapshot yet.
            DiskFull: they cannot be written.
        """
        with self._lock:
            self._refuse_if_granting()
            if self._journal is None:
                raise JournalDamaged("a commit came before the snapshot")
            return self._journal.write(commits)

    def attached_agents(self) -> frozenset[str]:
        """Return the keys of the agents that were attached at the last commit."""
        try:
            with closing(reader(self.directory / JOURNAL)) as connection:
                rows = connection.execute("SELECT key, content FROM entries WHERE key LIKE 'device %'").fetchall()
            devices = entries_of(rows, 0).devices
        except (sqlite3.Error, *UNREADABLE):  # while it is replaced
            return frozenset()
        return frozenset(key_of(device.agent_id) for device in devices if device.detached_at_sec is None)

    def keep_file(self, name: str, content: bytes) -> None:
        """Write a file beside the journal."""
        with self._lock:
            self._refuse_if_granting()
            if keep_file(self.directory, name, content) and name == MEMBERS:
                self.revoked = _revoked_keys(self.directory / MEMBERS)

    def take_over(self, term: int) -> Standing:
        """Check everything, and mark the directory as that of a tracker that grants.

        Raises:
            JournalDamaged: there is no whole snapshot.
            InvalidRequest: it grants already.
            ConfigError: the journal is of another version.
        """
        with self._lock:
            self._refuse_if_granting()
            return self._take_over(term)

    def _take_over(self, term: int) -> Standing:
        self.close()
        if not self.standing.is_whole or read_journal(self.directory / JOURNAL) is None:
            raise JournalDamaged(
                f"{self.directory} has no whole snapshot of the tracker at {self.standing.other} to take over with"
            )
        try:
            drop_join_tokens(self.directory / MEMBERS)  # some may have been used a moment ago
        except sqlite3.Error as error:
            raise DiskFull(f"cannot write {self.directory / MEMBERS}: {error}; free some space there") from error
        self._keep(replace(self.standing, duty=Duty.GRANTS, term=term))
        return self.standing

    def close(self) -> None:
        """Close the journal. Idempotent."""
        with self._lock:
            if self._journal is not None:
                self._journal.close()
            self._journal = None

    def _refuse_if_granting(self) -> None:
        """Raise an error after a takeover: a thread may still have a message of the former primary's."""
        if self.standing.duty is Duty.GRANTS:
            raise InvalidRequest("this standby has taken over already")

    def _keep(self, standing: Standing) -> None:
        write_standing(self.directory, standing)
        self.standing = standing

    def _has_audit(self, name: str) -> bool:
        """Tell whether a file is an audit log that is here already: a former primary keeps its own."""
        return name.startswith(AUDIT) and (self.directory / name).exists()

    def _replace_files(self, incoming: Path) -> None:
        journal = self.directory / JOURNAL
        for path in (*journal.parent.glob(f"{JOURNAL}*"), mark_path(journal), copy_path(journal)):
            path.unlink(missing_ok=True)
        for path in sorted(incoming.iterdir()):
            if path.is_file() and path.name != STANDING and not self._has_audit(path.name):
                path.replace(self.directory / path.name)
        shutil.rmtree(incoming)


def _is_complete(directory: Path) -> bool:
    return all((directory / name).exists() for name in (AUTHORITY, JOURNAL, MEMBERS))


def _revoked_keys(members: Path) -> frozenset[str]:
    try:
        with closing(reader(members)) as connection:
            rows = connection.execute("SELECT key_id FROM members WHERE revoked_at_sec IS NOT NULL").fetchall()
    except sqlite3.Error as error:
        raise ConfigError(f"cannot read {members}: {error}; follow the tracker anew") from error
    return frozenset(key for (key,) in rows)
