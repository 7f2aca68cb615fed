"""Output of workers by lease, in files that outlive the lease and the agent.

`<state directory>/private/lease-logs/` has one file for each lease whose workers wrote anything. Its first line is a
header in JSON; output follows as it came. The name has the time of the lease and a digest of its name: the tracker's
time, since boards without a battery start in 1970.

Writes go to the kernel's cache at once, so kill -9 of the agent loses nothing. A log that cannot be written ends, and
costs neither the lease nor other logs.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from device_agents.serving.store import disk_bytes
from fleet.domain.tokens import Claims

logger = logging.getLogger(__name__)

LEASE_BYTES = 1024**2
"""Kept output of a lease; the rest is cut."""

TOTAL_BYTES = 100 * 1024**2
KEPT_SEC = 7 * 86_400.0
_PRUNE_SEC = 3_600.0

_CUT = b"\n(later output was not kept)\n"
_MOST_HEADER_BYTES = 4_096
_CHUNK_BYTES = 64 * 1024
_FULL_BYTES = disk_bytes(LEASE_BYTES + 2 * _MOST_HEADER_BYTES)
"""Disk space of a full log."""

_NAME = re.compile(r"(\d{12})-([0-9a-f]{32})\.log")


@dataclass(frozen=True, slots=True, kw_only=True)
class LogOwner:
    """The lease of a log."""

    lease_name: str
    holder_key_id: str


class LeaseLog:
    """The log of one session. Made by `LeaseLogs.begin`."""

    def __init__(self, owner: LogOwner, find_path: Callable[[], Path | None]) -> None:
        """Args: find_path: called once, before the first output; returns None if nothing is kept."""
        self.owner = owner
        self._find_path = find_path
        self._file: int | None = None
        self._is_closed = False
        self._rest_bytes = LEASE_BYTES

    def write(self, content: bytes) -> None:
        """Add output. Never fails."""
        if self._is_closed:
            return
        try:
            if self._file is None:
                self._open()
            self._append(content)
        except OSError as error:
            logger.warning("output of a lease is not kept", extra={"lease": self.owner.lease_name, "error": str(error)})
            self.close()

    def close(self) -> None:
        """Keep no more. Idempotent."""
        self._is_closed = True
        descriptor, self._file = self._file, None
        if descriptor is not None:
            os.close(descriptor)

    def _open(self) -> None:
        path = self._find_path()
        if path is None:
            self.close()
            return
        header = _header(self.owner)
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        size_bytes = os.fstat(self._file).st_size
        if not size_bytes:
            _write_whole(self._file, header)
        self._rest_bytes = LEASE_BYTES - max(size_bytes - len(header), 0)

    def _append(self, content: bytes) -> None:
        if self._file is None:
            return
        kept = content[: max(self._rest_bytes, 0)]
        _write_whole(self._file, kept)
        self._rest_bytes -= len(kept)
        if len(kept) < len(content):
            if self._rest_bytes == 0:
                _write_whole(self._file, _CUT)
            self.close()


class LeaseLogs:
    """The logs of an agent."""

    def __init__(self, directory: Path | None = None, now_sec: Callable[[], float | None] = lambda: None) -> None:
        """Args:
        directory: None: nothing is kept.
        now_sec: returns the tracker's time; None: it is unknown yet.
        """
        self._directory = directory
        self._now_sec = now_sec
        self._live: dict[str, LeaseLog] = {}
        self._files: dict[str, _File] = {}
        """By digest of the lease's name, oldest first."""

        self._total_bytes = 0

    def open(self) -> None:
        """Make the folder, and find the logs of earlier agents. Without such a folder nothing is kept."""
        if self._directory is None:
            return
        try:
            self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._directory.chmod(0o700)
            found = [(name, path) for path in self._directory.iterdir() if (name := _NAME.fullmatch(path.name))]
            for name, path in sorted(found, key=lambda pair: pair[1].name):
                self._add(name[2], _File(path, int(name[1]), _disk_bytes(path)))
        except OSError as error:
            logger.warning("output of leases is not kept", extra={"path": str(self._directory), "error": str(error)})
            self._directory = None
        self.prune()

    def begin(self, claims: Claims) -> LeaseLog:
        """Return the log for a session. A lease that had a session before goes on with its log."""
        owner = LogOwner(lease_name=claims.lease_name, holder_key_id=claims.holder_key_id)
        log = LeaseLog(owner, lambda: self._path_for(claims))
        self._live[claims.lease_name] = log
        return log

    def end(self, log: LeaseLog) -> None:
        """Keep no more of a session. Idempotent."""
        log.close()
        if self._live.get(log.owner.lease_name) is not log:
            return
        del self._live[log.owner.lease_name]
        digest = _digest(log.owner.lease_name)
        if (file := self._files.get(digest)) is not None:
            self._files[digest] = ended = replace(file, size_bytes=_disk_bytes(file.path))
            self._total_bytes += ended.size_bytes - file.size_bytes

    def owner(self, lease_name: str) -> LogOwner | None:
        """Return the owner of a lease's log, or None without a log."""
        if (log := self._live.get(lease_name)) is not None:
            return log.owner
        file = self._files.get(_digest(lease_name))
        return None if file is None else _read_owner(file.path, lease_name)

    def is_live(self, lease_name: str) -> bool:
        """Tell whether a session of a lease may still write."""
        return lease_name in self._live

    def chunks(self, lease_name: str, position: int) -> Iterator[bytes]:
        """Yield the output from a position on, up to its present end.

        Args:
            position: bytes of output before.
        """
        file = self._files.get(_digest(lease_name))
        if file is None:
            return
        try:
            with file.path.open("rb") as opened:
                opened.readline(_MOST_HEADER_BYTES)
                opened.seek(position, os.SEEK_CUR)
                while chunk := opened.read(_CHUNK_BYTES):
                    yield chunk
        except OSError as error:
            logger.warning("output of a lease cannot be read", extra={"path": str(file.path), "error": str(error)})

    def prune(self) -> None:
        """Remove logs that are too old, and the oldest ones until another lease's log has room."""
        now_sec = self._now_sec()
        live = {_digest(name) for name in self._live}
        for digest, file in list(self._files.items()):
            is_old = now_sec is not None and file.began_sec < now_sec - KEPT_SEC
            if not is_old and self._total_bytes <= TOTAL_BYTES - _FULL_BYTES:
                return
            if digest not in live:
                file.path.unlink(missing_ok=True)
                self._total_bytes -= self._files.pop(digest).size_bytes

    def _path_for(self, claims: Claims) -> Path | None:
        """Return the file of a lease, which counts as full from now on; None: nothing is kept."""
        if self._directory is None:
            return None
        digest = _digest(claims.lease_name)
        former = self._files.pop(digest, None)
        if former is not None:
            self._total_bytes -= former.size_bytes
        self.prune()
        began_sec = former.began_sec if former is not None else int(claims.issued_at_sec)
        path = self._directory / f"{began_sec:012d}-{digest}.log"
        self._add(digest, _File(path, began_sec, _FULL_BYTES))
        return path

    def _add(self, digest: str, file: _File) -> None:
        self._files[digest] = file
        self._total_bytes += file.size_bytes


async def keep_pruned(logs: LeaseLogs) -> None:
    """Remove old logs in time, until cancelled."""
    while True:
        await asyncio.sleep(_PRUNE_SEC)
        logs.prune()


@dataclass(frozen=True, slots=True)
class _File:
    path: Path
    began_sec: int
    """Time of the lease [s since 1970, the tracker's clock]."""

    size_bytes: int
    """On disk; while the lease lives, the most that it may take."""


def _disk_bytes(path: Path) -> int:
    try:
        return disk_bytes(path.stat().st_size)
    except OSError:
        return 0


def _digest(lease_name: str) -> str:
    return hashlib.sha256(lease_name.encode()).hexdigest()[:32]


def _header(owner: LogOwner) -> bytes:
    return json.dumps({"lease": owner.lease_name, "holder_key_id": owner.holder_key_id}).encode() + b"\n"


def _read_owner(path: Path, lease_name: str) -> LogOwner | None:
    """Return the owner in a log's header; None if it is damaged, or another's."""
    try:
        with path.open("rb") as file:
            found = json.loads(file.readline(_MOST_HEADER_BYTES))
        owner = LogOwner(lease_name=str(found["lease"]), holder_key_id=str(found["holder_key_id"]))
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return owner if owner.lease_name == lease_name else None


def _write_whole(file: int, content: bytes) -> None:
    """Write bytes completely, also where the system writes only a part at once.

    Raises:
        OSError: the disk is full.
    """
    while content:
        content = content[os.write(file, content) :]
