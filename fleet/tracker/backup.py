"""Backup of a tracker: one file, made while the tracker runs, with which a new machine goes on in its place.

The file is a plain tar: `manifest.json` with the digests of all others comes first. It holds the fleet's authority and
signing key, so that it is as secret as the state directory. Restoring moves a complete directory into place at once: a
tracker that started with half of one would make a new authority, and everybody would have to join again.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import sqlite3
import stat
import tarfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

from fleet.base.plain import from_plain, to_plain
from fleet.base.private_files import private_file
from fleet.base.scratch import scratch_dir
from fleet.errors import ConfigError, DiskFull, InvalidRequest, JournalDamaged
from fleet.tracker.audit import OLDER_FILES
from fleet.tracker.journal import copy
from fleet.tracker.journal.checking import check_file

AUTHORITY, SIGNING_KEY, MEMBERS, JOURNAL, HISTORY = (
    "authority.pem",
    "tracker.key",
    "members.sqlite",
    "journal.sqlite",
    "history.sqlite",
)
"""Names in a tracker's state directory, and in its backup."""

POLICY, STANDING, AUDIT = "tracker.yaml", "standing.json", "audit.jsonl"
"""Further names, of files that need not exist."""

_REQUIRED = (AUTHORITY, SIGNING_KEY, MEMBERS, JOURNAL)
_FILES = (
    AUTHORITY,
    SIGNING_KEY,
    STANDING,
    POLICY,
    AUDIT,
    *(f"audit.jsonl.{n}" for n in range(1, OLDER_FILES + 1)),
)
_DATABASES = (MEMBERS, JOURNAL, HISTORY)
_MANIFEST = "manifest.json"
_MOST_MANIFEST_BYTES = 64 * 1024
_FORMAT = 1
_PIECE_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """First file of a backup."""

    made_at: datetime
    files: dict[str, str] = field(default_factory=dict)
    """SHA-256 in hex, by file name."""

    format: int = _FORMAT


@dataclass(frozen=True, slots=True, kw_only=True)
class Backup:
    """Contents of a backup."""

    path: Path
    made_at: datetime
    files: tuple[str, ...]
    size_bytes: int
    members: int
    devices: int
    leases: int
    requests: int
    bookings: int


def back_up(state_dir: Path, path: Path, *, has_history: bool = False) -> Backup:
    """Back up a tracker, running or stopped, to a file of mode 0600. Replaces an existing file.

    Args:
        has_history: include the history of ended leases, up to 1 GiB.

    Raises:
        ConfigError: there is no tracker's state, or a file of it cannot be read or written.
        JournalDamaged: the journal is damaged.
        DiskFull: there is no room.
    """
    if missing := [name for name in _REQUIRED if not (state_dir / name).exists()]:
        raise ConfigError(f"{state_dir} lacks {', '.join(missing)}: name the --state-dir of a tracker that ran")
    try:
        with scratch_dir("backup") as scratch:
            names = [name for name in _FILES if (state_dir / name).exists()]
            for name in names:
                shutil.copyfile(state_dir / name, scratch / name)
            databases = [name for name in _DATABASES if has_history or name != HISTORY]
            for name in databases:
                copy_checked(state_dir / name, scratch / name)
            manifest = Manifest(
                made_at=datetime.now(UTC), files={name: _digest(scratch / name) for name in (*names, *databases)}
            )
            (scratch / _MANIFEST).write_text(json.dumps(to_plain(manifest), indent=1))
            with private_file(path) as file, tarfile.open(fileobj=file, mode="w:") as archive:
                for name in (_MANIFEST, *manifest.files):
                    archive.add(scratch / name, arcname=name)
            return _describe(path, scratch, manifest)
    except OSError as error:
        raise _not_possible(f"cannot back up {state_dir} to {path}", error) from error


def restore(path: Path, state_dir: Path) -> Backup:
    """Create a tracker's state directory from a backup.

    Leaves join tokens out: some may have been used since the backup.

    Raises:
        ConfigError: the file is no intact backup or readable by others, or the directory is not empty.
        DiskFull: there is no room.
    """
    if state_dir.exists() and any(state_dir.iterdir()):
        raise ConfigError(f"{state_dir} is not empty; move its files away, or name another --state-dir")
    try:
        state_dir.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with _emptied(state_dir.with_name(f".{state_dir.name}.restoring")) as fresh:
            manifest = _unpack(path, fresh)
            found = _describe(path, fresh, manifest)
            drop_join_tokens(fresh / MEMBERS)
            (fresh / JOURNAL).rename(copy.copy_path(fresh / JOURNAL))
            copy.restore(fresh / JOURNAL)  # counts as a copy that may lack commits, and gets a mark of its own
            fresh.rename(state_dir)
            return found
    except JournalDamaged as error:
        raise ConfigError(f"{path} holds no intact journal; use another backup") from error
    except OSError as error:
        raise _not_possible(f"cannot restore {path} to {state_dir}", error) from error


@contextmanager
def _emptied(folder: Path) -> Iterator[Path]:
    """Make a private folder, without the files of a killed attempt, and remove it at the end."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o700)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def copy_checked(source: Path, target: Path) -> None:
    """Copy a database, which may be in use, and check the copy.

    Raises:
        ConfigError: it is damaged, or cannot be copied.
    """
    try:
        with closing(copy.reader(source)) as connection:
            copy.copy_database(connection, target)
        with closing(copy.reader(target)) as copied:
            ((problem,), *_) = copied.execute("PRAGMA quick_check").fetchall()
    except sqlite3.Error as error:
        raise ConfigError(f"cannot copy {source}: {error}") from error
    if problem != "ok":
        raise ConfigError(f"cannot copy {source}, which is damaged: {problem}")


def _unpack(path: Path, folder: Path) -> Manifest:
    """Write the files of a backup into a folder, and verify their digests."""
    try:
        with _private(path) as file, tarfile.open(fileobj=file, mode="r:") as archive:
            manifest = _read_manifest(path, archive)
            while (member := archive.next()) is not None:  # iteration would begin with the manifest again
                if member.name not in manifest.files or (folder / member.name).exists():
                    raise _not_a_backup(path, f"unexpected {member.name[:80]!r}")
                _unpack_one(archive, _checked(path, member), folder / member.name)
    except (tarfile.TarError, ValueError) as error:
        raise _not_a_backup(path, str(error)) from error
    for name, digest in manifest.files.items():
        if not (folder / name).exists() or _digest(folder / name) != digest:
            raise _not_a_backup(path, f"{name} is missing or changed")
    return manifest


def _read_manifest(path: Path, archive: tarfile.TarFile) -> Manifest:
    first = archive.next()
    if first is None or first.name != _MANIFEST or first.size > _MOST_MANIFEST_BYTES:
        raise _not_a_backup(path, f"it does not begin with {_MANIFEST}")
    with _content(archive, _checked(path, first)) as file:
        try:
            manifest = from_plain(Manifest, json.loads(file.read()))
        except (ValueError, RecursionError, InvalidRequest) as error:
            raise _not_a_backup(path, f"{_MANIFEST}: {error}") from error
    if manifest.format != _FORMAT:
        raise ConfigError(
            f"{path} is a backup of format {manifest.format}, and this version reads {_FORMAT}; update it"
        )
    if unknown := manifest.files.keys() - {*_FILES, *_DATABASES}:
        raise _not_a_backup(path, f"unexpected {min(unknown)[:80]!r}")
    if missing := set(_REQUIRED) - manifest.files.keys():
        raise _not_a_backup(path, f"{min(missing)} is missing")
    return manifest


def _checked(path: Path, member: tarfile.TarInfo) -> tarfile.TarInfo:
    if not member.isfile() or member.issparse():
        raise _not_a_backup(path, f"{member.name[:80]!r} is no plain file")
    return member


def _unpack_one(archive: tarfile.TarFile, member: tarfile.TarInfo, target: Path) -> None:
    with _content(archive, member) as source, private_file(target) as file:
        shutil.copyfileobj(source, file, _PIECE_BYTES)


def _content(archive: tarfile.TarFile, member: tarfile.TarInfo) -> IO[bytes]:
    content = archive.extractfile(member)
    if content is None:
        raise tarfile.ReadError(f"{member.name!r} has no content")
    return content


def _private(path: Path) -> IO[bytes]:
    """Open a backup, which others must not be able to read or change."""
    file = path.open("rb")
    if os.fstat(file.fileno()).st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        file.close()
        raise ConfigError(f"others can read or write {path}, which holds the fleet's authority: chmod 600 {path}")
    return file


def _describe(path: Path, folder: Path, manifest: Manifest) -> Backup:
    try:
        contents = check_file(folder / JOURNAL)
        with closing(copy.reader(folder / MEMBERS)) as connection:
            ((members,),) = connection.execute("SELECT count(*) FROM members WHERE revoked_at_sec IS NULL").fetchall()
    except sqlite3.Error as error:
        raise _not_a_backup(path, f"{MEMBERS}: {error}") from error
    durable = contents.durable if contents else None
    return Backup(
        path=path,
        made_at=manifest.made_at,
        files=tuple(manifest.files),
        size_bytes=path.stat().st_size,
        members=members,
        devices=len(durable.devices) if durable else 0,
        leases=sum(1 for device in durable.devices if device.lease) if durable else 0,
        requests=len(durable.requests) if durable else 0,
        bookings=len(durable.bookings) if durable else 0,
    )


def drop_join_tokens(members: Path) -> None:
    """Remove all join tokens from a list of members."""
    with closing(sqlite3.connect(members)) as connection, connection:
        connection.execute("DELETE FROM join_tokens")


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _not_a_backup(path: Path, problem: str) -> ConfigError:
    return ConfigError(f"{path} is no intact backup of a tracker: {problem}")


def _not_possible(what: str, error: OSError) -> ConfigError | DiskFull:
    kind = DiskFull if error.errno in (errno.ENOSPC, errno.EDQUOT) else ConfigError
    return kind(f"{what}: {error.strerror or error}")
