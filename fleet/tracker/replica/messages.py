"""Commits of a journal as messages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from fleet.tracker.journal.checking import Chain
from fleet.tracker.journal.commits import Commit
from fleet.v1 import replica_service_pb2 as pb

_MESSAGE_ROWS = 500
"""Rows of one message, unless one commit has more."""


def commit_to_proto(commit: Commit) -> pb.JournalCommit:
    rows = (pb.JournalRow(key=key, content=content, sum=checksum) for key, content, checksum in commit.rows)
    chain = commit.chain
    return pb.JournalCommit(boot=chain.boot, commits=chain.commits, sum=chain.sum, rows=rows, removed=commit.removed)


def commit_from_proto(message: pb.JournalCommit) -> Commit | None:
    """Return a commit; None if its chain is damaged."""
    chain = Chain(boot=message.boot, commits=message.commits)
    if chain.sum != message.sum:
        return None
    rows = tuple((row.key, row.content, row.sum) for row in message.rows)
    return Commit(chain=chain, rows=rows, removed=tuple(message.removed))


def portions_of(commits: Iterable[Commit]) -> Iterator[list[Commit]]:
    """Yield commits in groups for one message each."""
    portion: list[Commit] = []
    size = 0
    for commit in commits:
        portion.append(commit)
        size += 1 + len(commit.rows) + len(commit.removed)
        if size >= _MESSAGE_ROWS:
            yield portion
            portion, size = [], 0
    if portion:
        yield portion
