"""A verified copy of the journal, made beside it while the tracker runs, and restoring from it."""

from __future__ import annotations

import os
import shutil
import sqlite3
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from fleet.errors import ConfigError, JournalDamaged
from fleet.tracker.journal.checking import Contents, check_file, damaged, is_intact, read_chain, read_journal
from fleet.tracker.journal.mark import MarkWriter, mark_path, read_mark

_SUFFIXES = ("", "-wal", "-shm", "-journal")
"""Suffixes of the files that SQLite keeps for one database."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The state of a journal file or its copy."""

    path: Path
    problem: str
    """Why a tracker cannot start with it; empty if it can."""
    commits: int = 0
    devices: int = 0
    leases: int = 0
    requests: int = 0
    written_at_sec: float = 0.0
    """Time of the file's last change."""


def copy_path(journal: Path) -> Path:
    """Return the path of a journal's copy."""
    return journal.with_name(f"{journal.stem}-copy{journal.suffix}")


def keep_copy(journal: Path) -> bool:
    """Update the copy of a journal, which may be in use; return False if the copy is up to date.

    Raises:
        JournalDamaged: the new copy is damaged. The former copy stays.
        OSError, sqlite3.Error: the journal cannot be read, or the copy cannot be written.
    """
    kept = copy_path(journal)
    with closing(reader(journal)) as source:
        if kept.exists() and _commits(kept) == _chain_commits(source):
            return False
        fresh = kept.with_name(f".{kept.name}.{os.getpid()}")
        for left in kept.parent.glob(f".{kept.name}.*"):  # left by a killed tracker
            left.unlink(missing_ok=True)
        try:
            copy_database(source, fresh)
            with closing(reader(fresh)) as copied:
                if not is_intact(copied):
                    raise damaged(journal, "is damaged while it is in use")
            fresh.replace(kept)
        finally:
            fresh.unlink(missing_ok=True)
    return True


def copy_database(source: sqlite3.Connection, path: Path) -> None:
    """Copy an open database, which may be in use, into a new file of mode 0600.

    Raises:
        OSError, sqlite3.Error: it cannot be read, or the copy cannot be written.
    """
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    with closing(sqlite3.connect(path, isolation_level=None)) as target:
        source.backup(target)
        target.execute("PRAGMA journal_mode = DELETE").fetchall()
    _sync(path)


def look(journal: Path) -> Found:
    """Describe a journal."""
    try:
        contents = read_journal(journal)
    except ConfigError as error:
        return Found(path=journal, problem=str(error))
    return _found(journal, contents)


def look_at_copy(journal: Path) -> Found:
    """Describe the copy of a journal."""
    path = copy_path(journal)
    return _look_at_file(path) if path.exists() else Found(path=path, problem="there is no copy")


def restore(journal: Path) -> Found:
    """Replace a damaged journal by its copy or by itself without its last commits; return the one with more commits.

    The damaged file is moved aside.

    Raises:
        JournalDamaged: neither is intact.
    """
    rest = _look_at_file(journal) if journal.exists() else Found(path=journal, problem=f"{journal} is not there")
    best = max((rest, look_at_copy(journal)), key=lambda found: (not found.problem, found.commits))
    if best.problem:
        raise JournalDamaged(
            f"neither {journal} nor its copy is whole; 'fleet tracker fsck --empty --state-dir {journal.parent}' "
            "starts without either: live leases and waiting requests are forgotten, devices come back with their agents"
        )
    if best.path != journal:
        set_aside(journal)
        fresh = journal.with_name(f".{journal.name}.{os.getpid()}")
        shutil.copyfile(best.path, fresh)
        fresh.chmod(0o600)
        _sync(fresh)
        fresh.replace(journal)
    _renew_mark(journal, best.commits)
    return best


def set_aside(journal: Path) -> Path | None:
    """Move a journal's files into a new folder and return it; None if there are no files."""
    present = [path for suffix in _SUFFIXES if (path := journal.with_name(journal.name + suffix)).exists()]
    if not present:
        return None
    folder = journal.with_name(f"damaged-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{os.getpid()}")
    folder.mkdir(mode=0o700)
    for path in present:
        path.rename(folder / path.name)
    return folder


def start_empty(journal: Path) -> Path | None:
    """Move the journal aside and return its folder. The tracker starts empty, with a larger boot number."""
    folder = set_aside(journal)
    copy_path(journal).unlink(missing_ok=True)
    _renew_mark(journal, 0)
    return folder


def _renew_mark(journal: Path, commits: int) -> None:
    mark = read_mark(journal)
    mark_path(journal).unlink(missing_ok=True)
    writer = MarkWriter(journal)
    writer.open()
    try:
        writer.write(commits, mark.boot if mark else 0)
    finally:
        writer.close()


def _look_at_file(path: Path) -> Found:
    """Describe a file that may lack its last commits."""
    try:
        return _found(path, check_file(path))
    except ConfigError as error:
        return Found(path=path, problem=str(error))


def _found(path: Path, contents: Contents | None) -> Found:
    if contents is None:
        return Found(path=path, problem="")
    return Found(
        path=path,
        problem="",
        commits=contents.chain.commits,
        devices=len(contents.durable.devices),
        leases=sum(1 for device in contents.durable.devices if device.lease),
        requests=len(contents.durable.requests),
        written_at_sec=path.stat().st_mtime,
    )


def reader(path: Path) -> sqlite3.Connection:
    """Open a database read-only.

    Raises:
        sqlite3.Error: it is not there, or cannot be read.
    """
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None, timeout=1.0)


def _commits(path: Path) -> int | None:
    try:
        with closing(reader(path)) as connection:
            return _chain_commits(connection)
    except sqlite3.Error:
        return None


def _chain_commits(connection: sqlite3.Connection) -> int | None:
    chain = read_chain(connection)
    return chain.commits if chain else None


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
