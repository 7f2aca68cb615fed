"""`fleet tracker fsck`: verification and restoration of a journal. The tracker must not run."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from fleet.errors import ConfigError
from fleet.tracker.journal import copy
from fleet.tracker.server import lock_directory


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """Descriptions of a journal and its copy, and whether a tracker would start with the journal."""

    is_whole: bool
    journal: str
    copy: str


def check(state_dir: Path) -> Checked:
    """Verify a journal and its copy.

    Raises:
        ConfigError: a tracker is running on it, or there is no such directory.
    """
    with lock_directory(_existing(state_dir)):
        journal = copy.look(_journal(state_dir))
        kept = copy.look_at_copy(_journal(state_dir))
    return Checked(
        is_whole=not journal.problem,
        journal=journal.problem or _described(journal),
        copy=kept.problem or _described(kept),
    )


def restore(state_dir: Path) -> str:
    """Restore a damaged journal and return a sentence about its source and contents.

    Raises:
        JournalDamaged: neither the journal nor its copy is intact.
        ConfigError: see `check`.
    """
    with lock_directory(_existing(state_dir)):
        if not copy.look(_journal(state_dir)).problem:
            return "the journal is whole; nothing was changed"
        found = copy.restore(_journal(state_dir))
    source = "what is left of the journal itself" if found.path == _journal(state_dir) else "the copy"
    return f"restored {source}: {_described(found)}; what is missing ends when agents and clients come back"


def start_empty(state_dir: Path) -> str:
    """Move a journal aside, so that the tracker starts empty; return a sentence with its folder.

    Raises:
        ConfigError: see `check`.
    """
    with lock_directory(_existing(state_dir)):
        folder = copy.start_empty(_journal(state_dir))
    return f"the former journal is in {folder}" if folder else "there was no journal"


def _journal(state_dir: Path) -> Path:
    return state_dir / "journal.sqlite"


def _existing(state_dir: Path) -> Path:
    if not state_dir.is_dir():
        raise ConfigError(f"there is no {state_dir}; name the tracker's --state-dir")
    return state_dir


def _described(found: copy.Found) -> str:
    if not found.commits:
        return "none yet"
    written = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(found.written_at_sec))
    return (
        f"whole, with {found.devices} devices, {found.leases} leases and {found.requests} waiting requests, "
        f"written {written}"
    )
