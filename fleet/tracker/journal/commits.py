"""Commits of a journal as a standby follows them. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from fleet.errors import JournalDamaged
from fleet.tracker.journal.checking import Chain
from fleet.tracker.journal.codec import Row, sum_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """One commit."""

    chain: Chain
    """After the commit."""

    rows: tuple[Row, ...] = ()
    """New and changed rows."""

    removed: tuple[str, ...] = ()
    """Keys of removed rows."""


def check_commit(former: Chain, commit: Commit) -> None:
    """Check that a commit follows on a chain, and that each row is as it was written.

    Raises:
        JournalDamaged: it does not, so that the follower needs a new snapshot.
    """
    if commit.chain != Chain(boot=former.boot, commits=former.commits + 1):
        raise JournalDamaged(
            f"commit {commit.chain.commits} of start {commit.chain.boot} does not follow on commit {former.commits} of "
            f"start {former.boot}"
        )
    for key, content, found in commit.rows:
        if found != sum_of(key, content):
            raise JournalDamaged(f"the row {key[:80]!r} of commit {commit.chain.commits} is damaged")
